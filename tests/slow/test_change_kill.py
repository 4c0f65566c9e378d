# SPDX-License-Identifier: Apache-2.0
"""Killed without notice at any moment, a command that changes a pack leaves it as it was or as it should be,
and goes on when it is run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate import PackOptions, index, pack, verify
from feedrate.packing.check.describe import describe
from support.images import read_tree, save_image

pytestmark = pytest.mark.slow

# Counts what the process does to files, and kills it at each of the moments that the environment names; a
# child per moment, since starting Python takes longer than all the rest. Each works on a copy of its own; run
# AGAIN, there and to the end.
RUN = """
import os, pathlib, shutil, signal, sys
import feedrate.packing
import feedrate.packing.change.append, feedrate.packing.change.entries
import feedrate.report.pack, feedrate.report.progress, pyarrow
from feedrate.cli import main
folder, moments = pathlib.Path(os.environ["FOLDER"]), os.environ["MOMENTS"].split()
WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.unlink", "fcntl.flock")
def run(moment):
    events = 0
    here = str(folder / f"at-{moment}")
    if "AGAIN" in os.environ:
        os.chdir(here)
        sys.stderr = open(folder / f"stderr-{moment}", "w", buffering=1)
        os._exit(main(sys.argv[1:]))
    shutil.copytree(folder / "start", here, symlinks=True)
    os.chdir(here)
    def count(name, arguments):
        nonlocal events
        if name in WATCHED and (name != "open" or "encodings" not in str(arguments[0])):
            events += 1
            if events == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    code = main(sys.argv[1:])
    (folder / "events").write_text(str(events))
    os._exit(code)
for moment in map(int, moments):
    child = os.fork()
    if not child:
        run(moment)
    print(moment, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run(folder: Path, command: list[str], moments: list[int], *, again: bool = False) -> dict[int, int]:
    """Run a command in copies of `folder`/start, killed at these moments (0: never); return exit codes."""
    environ = {**os.environ, "FOLDER": str(folder), "MOMENTS": " ".join(map(str, moments))}
    environ |= {"AGAIN": "yes"} if again else {}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line.split() for line in done.stdout.splitlines() if line[:1].isdigit() and len(line.split()) == 2
    ]
    return {int(moment): int(code) for moment, code in lines}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    for number in range(6):
        save_image(folder / "old" / ("cat" if number % 2 else "dog") / f"{number}.jpg", number)
        save_image(folder / "new" / ("ape" if number % 2 else "dog") / f"n{number}.jpg", 20 + number)
    (folder / "new" / "dog" / "bad.jpg").write_text("no image")
    options = PackOptions(workers=1, shard_bytes=8_000)
    pack(folder / "old", folder / "p", options)
    for number in range(6):
        save_image(folder / "more" / ("cat" if number % 2 else "dog") / f"m{number}.jpg", 40 + number)
    (folder / "more" / "dog" / "worse.jpg").write_text("no image")
    pack(folder / "more", folder / "q", options)
    index(folder / "old", folder / "i", workers=1)
    lines = describe(folder / "p", samples=10).first_samples
    (folder / "t.csv").write_text("path,age\n" + "".join(f"{s.path},{i}\n" for i, s in enumerate(lines)))
    return folder


COMMANDS = {
    "split": ["split", "p", "train=0.5", "test=0.5"],
    "add-column": ["add-column", "p", "t.csv", "--column", "age"],
    "another pack": ["append", "q", "p"],
    "append": ["append", "new", "p", "--workers", "1"],
    "entries": ["index", "p", "--entries", "16", "--workers", "1"],
    "entries of an index": ["index", "i", "--entries", "16", "--workers", "1"],
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_killed_at_any_moment_the_pack_is_whole_and_the_command_goes_on(
    start: Path, tmp_path: Path, name: str
) -> None:
    command, changed = COMMANDS[name], {"entries of an index": "i"}.get(name, "p")
    assert run(tmp_path, command, [0]) == {0: 0}
    expected = read_tree(tmp_path / "at-0")
    events = int((tmp_path / "events").read_text())
    before = read_tree(start)
    moments = sorted(random.Random(0).sample(range(1, events), min(events - 1, 16)))
    is_done = {}
    for moment, code in run(tmp_path, command, moments).items():
        where = f"killed at event {moment} of {events}"
        assert code == -signal.SIGKILL, where
        now = read_tree(tmp_path / f"at-{moment}")
        manifest = now.get(f"{changed}/pack.json")
        is_done[moment] = manifest == expected[f"{changed}/pack.json"]
        assert is_done[moment] or manifest == before.get(f"{changed}/pack.json"), where
        described = {f"{changed}/{file}" for file in ("pack.json", "quality.json", "rejected.jsonl")}
        shards = before.keys() - described
        assert {name: now[name] for name in shards} == {name: before[name] for name in shards}, where
    for moment, code in run(tmp_path, command, moments, again=True).items():
        where = f"killed at event {moment} of {events}, then run again"
        said = (tmp_path / f"stderr-{moment}").read_text()
        assert code == 0 or (is_done[moment] and "already" in said), f"{where}: {said}"
        after = read_tree(tmp_path / f"at-{moment}")
        assert after.items() >= expected.items(), where
        left = [n for n in after.keys() - expected.keys() if not n.endswith((".lock", ".tmp"))]
        assert not left, f"{where}: {left}"
    assert verify(tmp_path / "at-0" / changed, workers=1).problems == ()
