# SPDX-License-Identifier: Apache-2.0
"""How much memory a cache may take: what the nearest limit leaves, less a margin; and when to give back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.cache.limits import MemoryWatch, margin_of
from feedrate.machine.memory import MemoryGauge, MemoryRoom

MEMINFO = "MemTotal: 1000 kB\nMemAvailable: 500 kB\nDirty: 8 kB\nWriteback: 2 kB\nHugePages_Total: 0\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_group(folder: Path, limit: str, used: int, stat: str, version: int) -> None:
    names = (
        ("memory.max", "memory.current")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    write(folder / names[0], f"{limit}\n")
    write(folder / names[1], f"{used}\n")
    write(folder / "memory.stat", stat)


def measure(tmp_path: Path) -> MemoryRoom:
    meminfo = write(tmp_path / "meminfo", MEMINFO)
    return MemoryGauge(tmp_path / "cgroup", tmp_path / "root", meminfo).measure()


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert measure(tmp_path) == MemoryRoom(500 * 1024, 10 * 1024, 1000 * 1024)


def test_the_limit_of_a_job_counts_although_its_leaf_has_none(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/job/step/task\n")
    stat = "anon 1\nfile 90\nshmem 40\ninactive_file 30\nactive_file 20\nfile_dirty 6\nfile_writeback 1\n"
    write_group(tmp_path / "root/job", "1000", 700, stat, 2)
    write_group(tmp_path / "root/job/step", "max", 700, stat, 2)
    write_group(tmp_path / "root/job/step/task", "max", 700, stat, 2)
    # Memory of /dev/shm, which "file" counts too, cannot be dropped.
    assert measure(tmp_path) == MemoryRoom(1000 - 700 + 50, 7, 1000)


def test_a_group_above_that_is_nearer_to_its_limit_counts(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/user/job\n")
    write_group(tmp_path / "root/user", "5000", 4900, "", 2)
    write_group(tmp_path / "root/user/job", "1000", 100, "", 2)
    assert measure(tmp_path) == MemoryRoom(100, 0, 5000)


def test_where_a_group_is_slowed_down_is_a_limit_too(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/job\n")
    write_group(tmp_path / "root/job", "1000", 100, "", 2)
    write(tmp_path / "root/job/memory.high", "600\n")
    assert measure(tmp_path) == MemoryRoom(500, 0, 600)


def test_version_1_counts_its_whole_hierarchy(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "9:memory:/job\n0::/\n")
    stat = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\ntotal_dirty 5\ntotal_writeback 2\n"
    write_group(tmp_path / "root/memory/job", "1000", 700, stat, 1)
    write_group(tmp_path / "root/memory", str(2**63 - 4096), 9000, stat, 1)
    assert measure(tmp_path) == MemoryRoom(350, 7, 1000)


def test_the_margin_is_a_tenth_within_bounds() -> None:
    assert margin_of(200 * 10**6) == 64 << 20
    assert margin_of(10 * 10**9) == 10**9
    assert margin_of(10**12) == 4 << 30


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.integers(1, 2**28))
def test_what_may_be_taken_never_has_to_be_given_back(free: int, unwritten: int, size: int) -> None:
    room = MemoryRoom(free, min(free, unwritten), 2**31)
    if MemoryWatch(lambda: room).may_take(size):
        after = MemoryRoom(free - size, room.unwritten_bytes, 2**31)
        assert MemoryWatch(lambda: after).must_return() == 0


@given(st.integers(-(2**28), 2**31))
def test_what_is_given_back_is_enough_to_go_on(free: int) -> None:
    wanted = MemoryWatch(lambda: MemoryRoom(free, 0, 2**31)).must_return()
    assert MemoryWatch(lambda: MemoryRoom(free + wanted, 0, 2**31)).must_return() == 0


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 1), (0.1, 5)])
def test_memory_is_not_looked_at_more_often_than_needed(seconds: float, looks: int) -> None:
    looked: list[int] = []
    now = [0.0]

    def look() -> MemoryRoom:
        looked.append(1)
        return MemoryRoom(10**9, 0, 10**9)

    watch = MemoryWatch(look, lambda: now[0])
    for _ in range(5):
        assert watch.may_take(1000)
        watch.take(1000)
        now[0] += seconds
    assert len(looked) == looks


def test_what_was_taken_since_the_last_look_counts() -> None:
    watch = MemoryWatch(lambda: MemoryRoom(151 * 10**6, 0, 10**9), lambda: 0.0)
    assert watch.may_take(900_000)
    watch.take(900_000)
    assert not watch.may_take(200_000)
