# SPDX-License-Identifier: Apache-2.0
"""Killed without notice at any moment, staging and evicting never leave wrong data, never touch a source, and
what they leave can be finished, deleted, and used again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.images import read_tree
from support.paths import TESTS
from support.scratch_copies import make_files, make_pack

pytestmark = pytest.mark.slow

# One process that has imported everything, and a child of it per step. A step is killed at the moment that it
# is told: the n-th time that it does something to a file (those of threads are counted too, so they differ
# from run to run). Steps come as JSON lines, and so do answers.
SERVER = """
import json, os, shutil, signal, sys, threading
from pathlib import Path
from feedrate.scratch.commands import collect_garbage, remove_copies
from feedrate.scratch.copy import Copy
from feedrate.scratch.staging import open_staging
from feedrate.scratch.staging import StagingOptions
import feedrate.packing

WATCHED = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "os.truncate",
           "os.listdir", "os.scandir", "fcntl.flock"}

def stage(source, scratch):
    with open_staging(source, scratch, options=StagingOptions(streams=2)) as staging:
        staging.run()
        return str(staging.copy.path)

def rm(source, scratch):
    return [one.why for one in remove_copies([source], scratch).kept]

def gc(source, scratch):
    result = collect_garbage(scratch, limit_bytes=1)
    return [one.why for one in result.kept]

def run(step, moment, words):
    events, lock = 0, threading.Lock()
    def count(name, arguments):
        nonlocal events
        if name in WATCHED:
            with lock:
                events += 1
                if events == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    return {"answer": globals()[step](*words), "events": events}

for line in sys.stdin:
    step, moment, *words = json.loads(line)
    there, here = os.pipe()
    child = os.fork()
    if not child:
        try:
            told = run(step, moment, words)
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        os.write(here, json.dumps(told).encode())
        os._exit(0)
    os.close(here)
    with open(there) as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"code": code, **(json.loads(text) if text else {})}), flush=True)
"""


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, step: str, source: Path, scratch: Path, *, moment: int = 0) -> dict[str, Any]:
        self.begin(step, source, scratch, moment=moment)
        told = self.end()
        if not moment:
            assert "error" not in told, told["error"]
        return told

    def begin(self, step: str, source: Path, scratch: Path, *, moment: int = 0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([step, moment, str(source), str(scratch)]) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def server() -> Any:
    server = Server()
    yield server
    server.close()


def content(scratch: Path) -> dict[str, bytes]:
    """Return what copies hold under final names."""
    home = scratch / f"feedrate-{os.getuid()}"
    return {
        str(path.relative_to(data)): path.read_bytes()
        for data in home.glob("*/data")
        for path in data.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def bytes_in(scratch: Path) -> int:
    return sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())


def choose(events: int, count: int) -> list[int]:
    """Return moments all over the run, so often that every kind of moment is among them."""
    return [random.Random(seed).randrange(1, events + 1) for seed in range(count)]


@pytest.mark.parametrize(("make", "trials"), [(make_pack, 60), (make_files, 30)], ids=["pack", "files"])
def test_staging_killed_at_any_moment_is_finished_by_the_next(
    server: Server, tmp_path: Path, make: Any, trials: int
) -> None:
    source = make(tmp_path / "source")
    whole = read_tree(source)
    (tmp_path / "trial").mkdir()
    events = server.run("stage", source, tmp_path / "trial")["events"]
    assert content(tmp_path / "trial") == whole
    killed = 0
    for trial, moment in enumerate(choose(events, trials)):
        where = f"killed at event {moment} of {events}"
        scratch = tmp_path / f"scr-{trial}"
        scratch.mkdir()
        killed += server.run("stage", source, scratch, moment=moment)["code"] == -signal.SIGKILL
        assert content(scratch).items() <= whole.items(), f"wrong data under a final name, {where}"
        if trial % 2:
            # Somebody clears up before it is finished: all space comes back, however far it was.
            assert server.run("gc", source, scratch)["answer"] == [], where
            assert bytes_in(scratch) < 4096, where
        path = Path(server.run("stage", source, scratch)["answer"])
        assert read_tree(path) == whole, where
        assert server.run("rm", source, scratch)["answer"] == [], where
        assert content(scratch) == {}, where
        assert read_tree(source) == whole, f"the source was changed, {where}"
    assert killed >= trials * 0.8


@pytest.mark.parametrize(
    ("make", "step", "trials"),
    [(make_pack, "rm", 50), (make_files, "rm", 25), (make_pack, "gc", 50)],
    ids=["rm pack", "rm files", "gc pack"],
)
def test_evicting_killed_at_any_moment_is_finished_by_gc(
    server: Server, tmp_path: Path, make: Any, step: str, trials: int
) -> None:
    source = make(tmp_path / "source")
    whole = read_tree(source)
    (tmp_path / "trial").mkdir()
    server.run("stage", source, tmp_path / "trial")
    events = server.run(step, source, tmp_path / "trial")["events"]
    killed = 0
    for trial, moment in enumerate(choose(events, trials)):
        where = f"killed at event {moment} of {events}"
        scratch = tmp_path / f"scr-{trial}"
        scratch.mkdir()
        server.run("stage", source, scratch)
        killed += server.run(step, source, scratch, moment=moment)["code"] == -signal.SIGKILL
        assert read_tree(source) == whole, f"the source was changed, {where}"
        assert content(scratch).items() <= whole.items(), where
        if trial % 3 == 0:
            # The source goes away before somebody else comes: what is left of the copy is not deleted.
            before = bytes_of_data(scratch)
            source.rename(tmp_path / "away")
            server.run("gc", source, scratch)
            assert bytes_of_data(scratch) == before, where
            (tmp_path / "away").rename(source)
        if trial % 2:
            assert read_tree(Path(server.run("stage", source, scratch)["answer"])) == whole, where
        assert server.run("gc", source, scratch)["answer"] == [], where
        assert os.listdir(scratch / f"feedrate-{os.getuid()}") == [], f"space is not back, {where}"
    assert killed >= trials * 0.8


def bytes_of_data(scratch: Path) -> int:
    return sum(p.stat().st_size for p in scratch.glob("feedrate-*/*/data/**/*") if p.is_file())


def test_of_two_copies_of_each_other_two_evictors_leave_one(tmp_path: Path) -> None:
    # The registry would say that one is the other's source: neither would be tried.
    os.environ["XDG_STATE_HOME"] = "/dev/null/none"
    server, other = Server(), Server()
    try:
        for trial in range(25):
            top = tmp_path / f"trial-{trial}"
            source = make_files(top / "source", count=5)
            whole = read_tree(source)
            for name in ("one", "two"):
                (top / name).mkdir()
            first = Path(server.run("stage", source, top / "one")["answer"])
            second = Path(server.run("stage", first, top / "two")["answer"])
            shutil.rmtree(source)
            source.symlink_to(second)
            # Each of the two is now all that the other's source is; both are evicted at the same time.
            server.begin("rm", source, top / "one")
            other.begin("rm", first, top / "two")
            for one in (server, other):
                one.end()
            for one, scratch in ((server, top / "one"), (other, top / "two")):
                one.run("gc", source, scratch)
            assert whole in (read_tree(first), read_tree(second)), f"both were deleted in trial {trial}"
    finally:
        server.close()
        other.close()


RACER = """
import os, sys
from pathlib import Path
from feedrate.errors import FeedrateError
from feedrate.scratch.commands import remove_copies
from feedrate.scratch.staging import open_staging
role, source, scratch, notes = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
whole = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
used = deleted = 0
# Until each reader has read 40 times, and something was deleted meanwhile.
while not (notes / "over").exists() and (role == "evict" or used < 40 or not (notes / "deleted").exists()):
    try:
        if role == "evict":
            deleted += len(remove_copies([str(source)], scratch).removed)
            if deleted:
                (notes / "deleted").touch()
            continue
        with open_staging(source, scratch) as staging:
            staging.run()
            for _ in range(3):
                for name, data in whole.items():
                    assert (staging.copy.path / name).read_bytes() == data, name
            used += 1
    except FeedrateError as error:
        if role != "evict" or "no copy" not in str(error):
            raise
print(used, deleted)
"""


def test_two_evictors_never_take_a_copy_from_two_readers(tmp_path: Path) -> None:
    source, scratch = make_files(tmp_path / "source", count=8), tmp_path / "scr"
    scratch.mkdir()
    whole = read_tree(source)
    notes = tmp_path / "notes"
    notes.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, role, str(source), str(scratch), str(notes)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for role in ("read", "read", "evict", "evict")
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300) for process in processes[:2]]
    finally:
        (notes / "over").touch()
    outputs += [process.communicate() for process in processes[2:]]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    used = [int(out.split()[0]) for out, _ in outputs]
    deleted = [int(out.split()[1]) for out, _ in outputs]
    assert min(used[:2]) >= 40
    assert sum(deleted) > 0
    assert read_tree(source) == whole
