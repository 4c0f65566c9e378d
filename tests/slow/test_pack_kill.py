# SPDX-License-Identifier: Apache-2.0
"""Killed without notice at any moment, `feedrate pack` goes on to the bytes of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from feedrate.pack import verify
from images import read_tree

pytestmark = pytest.mark.slow

# Counts what the process does to files, and kills it at the moment that the environment names. Source files
# are opened one by one, so moments fall inside shards as well as between them.
RUN = """
import os, signal, sys
events, die_at = 0, int(os.environ.get("DIE_AT", "0"))
source, target = sys.argv[2], sys.argv[4] if sys.argv[3] == "--to" else sys.argv[3]
def count(name, arguments):
    global events
    if name not in ("open", "os.rename", "os.remove", "os.mkdir", "fcntl.flock"):
        return
    path = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], (str, bytes)) else target
    if path.startswith((source, target)):
        events += 1
        if events == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
from feedrate.cli import main
import feedrate.pack
if __name__ == "__main__":
    sys.addaudithook(count)
    code = main()
    print("events", events, file=sys.stderr)
    sys.exit(code)
"""


@pytest.fixture
def command(tmp_path: Path, jpeg_folder: Path) -> list[str]:
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    script = tmp_path / "run.py"
    script.write_text(RUN)
    return [sys.executable, str(script), "pack", str(jpeg_folder)]


def run(command: list[str], target: Path, *more: str, die_at: int = 0) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DIE_AT": str(die_at)}
    options = ["--shard-size", "15KB", *more]
    return subprocess.run(
        [*command, str(target), *options], env=environ, capture_output=True, text=True, check=False
    )


def test_killed_at_twenty_moments_it_goes_on_to_the_same_bytes(command: list[str], tmp_path: Path) -> None:
    whole = run(command, tmp_path / "undisturbed", "--workers", "1")
    assert whole.returncode == 0, whole.stderr
    events = int(whole.stderr.split()[-1])
    expected = read_tree(tmp_path / "undisturbed")
    moments = sorted(random.Random(0).sample(range(1, events), 20))
    for moment in moments:
        target = tmp_path / f"killed-{moment}"
        killed = run(command, target, "--workers", "1", die_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        for path in target.glob("[!.]*.tar"):
            assert path.read_bytes() == expected[path.name], f"half a shard after event {moment}"
        go_on(target, lambda target=target: run(command, target, "--workers", "1"))
        assert read_tree(target) == expected, f"killed at event {moment} of {events}"


def test_hdf5_pack_killed_at_any_moment_of_its_end_goes_on_to_the_same_bytes(
    command: list[str], tmp_path: Path
) -> None:
    options = ("--workers", "1", "--format", "hdf5")
    whole = run(command, tmp_path / "undisturbed", *options)
    assert whole.returncode == 0, whole.stderr
    events = int(whole.stderr.split()[-1])
    expected = read_tree(tmp_path / "undisturbed")
    assert not [name for name in expected if name.startswith("part-")]
    # The parts are joined at the end: that is where most of the moments are.
    moments = {*random.Random(0).sample(range(1, events), 3), *range(events - 36, events, 6)}
    for moment in sorted(moments):
        target = tmp_path / f"killed-{moment}"
        killed = run(command, target, *options, die_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if (target / "data.h5").exists():
            assert (target / "data.h5").read_bytes() == expected["data.h5"], f"half a file after {moment}"
        go_on(target, lambda target=target: run(command, target, *options))
        assert read_tree(target) == expected, f"killed at event {moment} of {events}"


def test_index_killed_at_eight_moments_goes_on_to_the_same_bytes(command: list[str], tmp_path: Path) -> None:
    command[2] = "index"
    folder = Path(command[3])

    def index(target: Path, die_at: int = 0) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "DIE_AT": str(die_at)}
        words = [*command, "--to", str(target), "--workers", "1"]
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)

    before = read_tree(folder)
    whole = index(tmp_path / "undisturbed")
    assert whole.returncode == 0, whole.stderr
    events = int(whole.stderr.split()[-1])
    expected = read_tree(tmp_path / "undisturbed")
    for moment in sorted(random.Random(0).sample(range(1, events), 8)):
        target = tmp_path / f"killed-{moment}"
        assert index(target, moment).returncode == -signal.SIGKILL
        go_on(target, lambda target=target: index(target))
        assert read_tree(target) == expected, f"killed at event {moment} of {events}"
    assert read_tree(folder) == before


def test_killed_again_and_again_it_ends_all_the_same(command: list[str], tmp_path: Path) -> None:
    run(command, tmp_path / "undisturbed", "--workers", "1")
    target = tmp_path / "p"
    moment = 25
    while not is_finished(target):
        done = run(command, target, "--workers", "1", die_at=moment)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        moment += 5
    (target / ".packing.lock").unlink(missing_ok=True)  # of a run that was killed after all was done
    assert read_tree(target) == read_tree(tmp_path / "undisturbed")


@pytest.mark.parametrize("files", [1, 2, 4, 6, 9])
def test_parent_killed_among_its_workers_leaves_none_of_them_and_goes_on(
    command: list[str], tmp_path: Path, files: int
) -> None:
    run(command, tmp_path / "undisturbed", "--workers", "1")
    target = tmp_path / "p"
    process = subprocess.Popen(
        [*command, str(target), "--shard-size", "15KB", "--workers", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and len(list(target.glob("*"))) < files:
        time.sleep(0.001)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while group_lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_lives(process.pid), "a worker outlived its parent"
    if not is_finished(target):
        again = run(command, target, "--workers", "2")
        assert again.returncode == 0, again.stderr
    assert read_tree(target) == read_tree(tmp_path / "undisturbed")
    assert verify(target, workers=1).problems == ()


def go_on(target: Path, again: Callable[[], subprocess.CompletedProcess[str]]) -> None:
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
    command: list[str], tmp_path: Path, jpeg_folder: Path
) -> None:
    archive = tmp_path / "photos.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(jpeg_folder, "photos")
    command = [*command[:-1], str(archive)]
    whole = run(command, tmp_path / "undisturbed", "--workers", "1")
    assert whole.returncode == 0, whole.stderr
    events, expected = int(whole.stderr.split()[-1]), read_tree(tmp_path / "undisturbed")
    for moment in sorted(random.Random(1).sample(range(1, events), 4)):
        target = tmp_path / f"killed-{moment}"
        assert run(command, target, "--workers", "1", die_at=moment).returncode == -signal.SIGKILL
        again = run(command, target, "--workers", "1")
        assert again.returncode == 0, again.stderr
        assert read_tree(target) == expected, f"killed at event {moment} of {events}"
