# SPDX-License-Identifier: Apache-2.0
"""Killed without notice at any moment, `feedrate pack` goes on to the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from feedrate import verify
from support.images import read_tree

pytestmark = pytest.mark.slow

# A process that has imported what it needs, and a child of it per run. A child counts what it does to files,
# and is killed at the moment that it was told. Source files are opened one by one, so moments fall inside
# shards as well as between them. Runs come as JSON lines, and so do answers.
FORKER = """
import json, os, signal, sys, tempfile
from feedrate.cli import main
import feedrate.packing.build.pack, feedrate.packing.build.engine, feedrate.packing.check.quality_report
import feedrate.report.progress, pyarrow

def run(words, die_at):
    events = 0
    source, target = words[1], words[2]
    def count(name, arguments):
        nonlocal events
        if name not in ("open", "os.rename", "os.remove", "os.mkdir", "fcntl.flock"):
            return
        path = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else target
        if path.startswith((source, target)):
            events += 1
            if events == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    code = main(words)
    print("events", events, file=sys.stderr, flush=True)
    os._exit(code)

for line in sys.stdin:
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(errors.fileno(), 2)
            run(*json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        print(json.dumps([code, errors.read().decode()]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    returncode: int
    stderr: str

    @property
    def events(self) -> int:
        return int(self.stderr.split()[-1])


@pytest.fixture(scope="module")
def forker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def feedrate(forker: subprocess.Popen[str]) -> Callable[..., Ended]:
    """Run a command of feedrate, killed at a moment; 0: never."""

    def run(*words: object, die_at: int = 0) -> Ended:
        assert forker.stdin is not None
        assert forker.stdout is not None
        forker.stdin.write(json.dumps([[*map(str, words)], die_at]) + "\n")
        forker.stdin.flush()
        return Ended(*json.loads(forker.stdout.readline()))

    return run


SIZE = ("--shard-size", "15KB")
ALONE = (*SIZE, "--workers", "1")


@pytest.fixture
def source(jpeg_folder: Path) -> Path:
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    return jpeg_folder


@pytest.fixture
def expected(source: Path, tmp_path: Path, feedrate: Callable[..., Ended]) -> dict[str, bytes]:
    whole = feedrate("pack", source, tmp_path / "undisturbed", *ALONE)
    assert whole.returncode == 0, whole.stderr
    return read_tree(tmp_path / "undisturbed")


def test_killed_at_twenty_moments_it_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, feedrate: Callable[..., Ended]
) -> None:
    whole = feedrate("pack", source, tmp_path / "undisturbed", *ALONE)
    assert whole.returncode == 0, whole.stderr
    expected = read_tree(tmp_path / "undisturbed")
    for moment in sorted(random.Random(0).sample(range(1, whole.events), 20)):
        target = tmp_path / f"killed-{moment}"
        killed = feedrate("pack", source, target, *ALONE, die_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        for path in target.glob("[!.]*.tar"):
            assert path.read_bytes() == expected[path.name], f"half a shard after event {moment}"
        go_on(target, lambda target=target: feedrate("pack", source, target, *ALONE))
        assert read_tree(target) == expected, f"killed at event {moment} of {whole.events}"


def test_hdf5_pack_killed_at_any_moment_of_its_end_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, feedrate: Callable[..., Ended]
) -> None:
    options = (*ALONE, "--format", "hdf5")
    whole = feedrate("pack", source, tmp_path / "undisturbed", *options)
    assert whole.returncode == 0, whole.stderr
    events = whole.events
    expected = read_tree(tmp_path / "undisturbed")
    assert not [name for name in expected if name.startswith("part-")]
    # The parts are joined at the end: that is where most of the moments are.
    moments = {*random.Random(0).sample(range(1, events), 3), *range(events - 36, events, 6)}
    for moment in sorted(moments):
        target = tmp_path / f"killed-{moment}"
        killed = feedrate("pack", source, target, *options, die_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if (target / "data.h5").exists():
            assert (target / "data.h5").read_bytes() == expected["data.h5"], f"half a file after {moment}"
        go_on(target, lambda target=target: feedrate("pack", source, target, *options))
        assert read_tree(target) == expected, f"killed at event {moment} of {events}"


def test_index_killed_at_eight_moments_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, feedrate: Callable[..., Ended]
) -> None:
    def index(target: Path, die_at: int = 0) -> Ended:
        return feedrate("index", source, target, "--workers", "1", die_at=die_at)

    before = read_tree(source)
    whole = index(tmp_path / "undisturbed")
    assert whole.returncode == 0, whole.stderr
    expected = read_tree(tmp_path / "undisturbed")
    for moment in sorted(random.Random(0).sample(range(1, whole.events), 8)):
        target = tmp_path / f"killed-{moment}"
        assert index(target, moment).returncode == -signal.SIGKILL
        go_on(target, lambda target=target: index(target))
        assert read_tree(target) == expected, f"killed at event {moment} of {whole.events}"
    assert read_tree(source) == before


def test_killed_again_and_again_it_ends_all_the_same(
    source: Path, tmp_path: Path, expected: dict[str, bytes], feedrate: Callable[..., Ended]
) -> None:
    target = tmp_path / "p"
    moment = 25
    while not is_finished(target):
        done = feedrate("pack", source, target, *ALONE, die_at=moment)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        moment += 5
    (target / ".packing.lock").unlink(missing_ok=True)  # of a run that was killed after all was done
    assert read_tree(target) == expected


@pytest.mark.parametrize("files", [1, 2, 4, 6, 9])
def test_parent_killed_among_its_workers_leaves_none_of_them_and_goes_on(
    source: Path, tmp_path: Path, expected: dict[str, bytes], feedrate: Callable[..., Ended], files: int
) -> None:
    target = tmp_path / "p"
    process = subprocess.Popen(
        [sys.executable, "-m", "feedrate", "pack", str(source), str(target), *SIZE, "--workers", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and len(list(target.glob("*"))) < files:
        time.sleep(0.001)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while group_lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_lives(process.pid), "a worker outlived its parent"
    if not is_finished(target):
        again = feedrate("pack", source, target, *SIZE, "--workers", "2")
        assert again.returncode == 0, again.stderr
    assert read_tree(target) == expected
    assert verify(target, workers=1).problems == ()


def go_on(target: Path, again: Callable[[], Ended]) -> None:
    """Run the same command again, unless the last one was killed when all was done but its lock's removal."""
    if is_finished(target):
        (target / ".packing.lock").unlink(missing_ok=True)
        return
    done = again()
    assert done.returncode == 0, done.stderr


def is_finished(target: Path) -> bool:
    return (target / "pack.json").exists() and not (target / "packing.json").exists()


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_source_that_can_be_read_only_once_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, feedrate: Callable[..., Ended]
) -> None:
    archive = tmp_path / "photos.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(source, "photos")
    whole = feedrate("pack", archive, tmp_path / "undisturbed", *ALONE)
    assert whole.returncode == 0, whole.stderr
    expected = read_tree(tmp_path / "undisturbed")
    for moment in sorted(random.Random(1).sample(range(1, whole.events), 4)):
        target = tmp_path / f"killed-{moment}"
        assert feedrate("pack", archive, target, *ALONE, die_at=moment).returncode == -signal.SIGKILL
        again = feedrate("pack", archive, target, *ALONE)
        assert again.returncode == 0, again.stderr
        assert read_tree(target) == expected, f"killed at event {moment} of {whole.events}"
