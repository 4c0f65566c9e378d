# SPDX-License-Identifier: Apache-2.0
"""Entry points while many processes add, look and merge at once and are killed without notice: what is
found is right, and what was merged stays."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.cache.entry_folder import home_of
from feedrate.run.inside.entries import open_cache
from feedrate.run.merging import find_folder, merge
from support.entry_caches import (
    add_all,
    count_good,
    entries_file,
    fill,
    in_child,
    journals,
    make_place,
)
from support.paths import TESTS
from support.scratches import NOT_ROOT, as_stranger

pytestmark = pytest.mark.slow

# Adds and looks for what others added; what it finds is right, or it ends with 1. Says how far it is.
WORKER = """
import os, random, sys
sys.path.insert(0, sys.argv[2])
from support.entry_caches import LENGTH, count_good, open_cache, value_of
seed, many = int(sys.argv[3]), int(sys.argv[4])
chosen, mine = random.Random(seed), open_cache(sys.argv[1])
while True:
    number = chosen.randrange(many)
    if not count_good(mine, [number]):
        mine.add(LENGTH, number, value_of(number))
    if chosen.random() < 0.02:
        mine.flush()
        print(number, flush=True)
    if chosen.random() < 0.002 and os.fork():
        os._exit(0)  # its child goes on in its place
"""
MERGER = """
import sys
from pathlib import Path
from feedrate.run.merging import merge
while True:
    merged = merge(Path(sys.argv[1]), limit_bytes=int(sys.argv[3]))
    assert not merged.problem, merged.problem
    print(merged.records, flush=True)
"""
# Dies at the n-th thing that it does to a file.
DYING_MERGER = """
import os, signal, sys
from pathlib import Path
from feedrate.run.merging import merge
moment, events = int(sys.argv[2]), 0
def count(name, arguments):
    global events
    if name in ("open", "os.rename", "os.remove", "fcntl.flock", "os.truncate", "os.utime", "os.chmod"):
        events += 1
        if events == moment:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
merge(Path(sys.argv[1]))
"""


@contextlib.contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a group of its own, all of which is killed at the end."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def read_lines(child: subprocess.Popen[str], count: int) -> None:
    assert child.stdout is not None
    for _ in range(count):
        assert child.stdout.readline() != "", "it ended by itself"


def test_processes_that_are_killed_while_they_add_and_merge_leave_right_values(tmp_path: Path) -> None:
    place, chosen, many = make_place(tmp_path), random.Random(0), 2000
    with running(MERGER, place, TESTS, 10**9) as merger, running(MERGER, place, TESTS, 10**9) as other:
        for round_number in range(8):
            with contextlib.ExitStack() as stack:
                workers = [
                    stack.enter_context(running(WORKER, place, TESTS, 10 * round_number + number, many))
                    for number in range(4)
                ]
                for worker in workers:
                    read_lines(worker, chosen.randrange(1, 12))
            read_lines(merger, 1)
            read_lines(other, 1)
            known = count_good(open_cache(str(place)), range(many))
    merged = merge(place)
    assert merged.problem == ""
    assert merged.records >= known > 0
    assert count_good(open_cache(str(place)), range(many)) == merged.records
    assert journals(place) == []


def test_a_limit_holds_while_many_add(tmp_path: Path) -> None:
    place, limit = make_place(tmp_path), 400_000
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(running(WORKER, place, TESTS, seed, 10**6)) for seed in range(3)]
        merger = stack.enter_context(running(MERGER, place, TESTS, limit))
        for _ in range(20):
            for one in (*workers, merger):
                read_lines(one, 3)
            assert not entries_file(place).exists() or entries_file(place).stat().st_size <= limit
    merged = merge(place, limit_bytes=limit)
    assert merged.problem == ""
    assert 0 < merged.size_bytes <= limit


def test_a_merge_that_is_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    fill(place, range(100))
    merge(place)
    for moment in range(1, 200):
        first = 100 + 10 * moment
        fill(place, range(first, first + 5))
        fill(place, range(first + 5, first + 10))
        done = subprocess.run([sys.executable, "-c", DYING_MERGER, str(place), str(moment)])
        assert merge(place).problem == ""
        reader = open_cache(str(place))
        assert count_good(reader, range(100)) == 100
        assert count_good(reader, range(first, first + 10)) == 10
        assert {path.name for path in place.iterdir()} == {"entries", "lock"}
        if done.returncode == 0:
            break
    assert done.returncode == 0
    assert moment > 10


def test_a_disk_that_is_full_at_any_byte_keeps_what_is_there(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    place = make_place(small_disk)
    fill(place, range(100))
    merge(place)
    ballast = small_disk / "ballast"
    for free in range(0, 120_000, 4096):
        ballast.write_bytes(b"")
        room = os.statvfs(small_disk)
        ballast.write_bytes(bytes(max(room.f_bavail * room.f_frsize - free, 0)))
        assert in_child(lambda: add_all(open_cache(str(place)), range(100, 250))) == 0
        merge(place)
        reader = open_cache(str(place))
        assert count_good(reader, range(100)) == 100
        count_good(reader, range(250))
        del reader
        assert journals(place) == []  # nor is the disk left full of what could not be merged
    ballast.unlink()
    fill(place, range(250))
    assert merge(place).records == 250


@pytest.mark.skipif(os.getuid() != 0, reason=NOT_ROOT)
def test_a_folder_that_is_read_only_is_read_and_that_nothing_is_added_is_said(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    place = make_place(small_disk)
    fill(place, range(10))
    merge(place)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    said: list[str] = []
    assert find_folder(small_disk, say=said.append) == place
    assert "Read-only file system; name another folder: --cache DIR" in said[0]
    mine = add_all(open_cache(str(place)), range(10, 20))
    assert count_good(mine, range(10)) == 10
    assert "Read-only file system" in mine.problem
    assert "Read-only file system" in merge(place).problem


def test_a_home_that_its_user_may_not_write_to_gives_no_folder(tmp_path: Path) -> None:
    def look() -> list[str]:
        said: list[str] = []
        assert find_folder(tmp_path / "home", say=said.append) is None
        return said

    (tmp_path / "home").mkdir(mode=0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    (said,) = as_stranger(look)
    assert "cannot be written to: Permission denied" in said
    assert not home_of(tmp_path / "home").exists()
