# SPDX-License-Identifier: Apache-2.0
"""How a store answers: fits on made times, and measurements of files that lie on this disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from feedrate.errors import StorageError
from feedrate.figures import ASSUMED, MEASURED, Figure
from feedrate.lab import store
from feedrate.lab.store import NOT_SEEN, call_patiently, measure_store
from feedrate.lab.trial_files import measure_writes
from feedrate.machine.disk import describe_storage
from feedrate.machine.memory import measure_file_residency

MB = 1_000_000


def reading(size_bytes: int, file_s: float, bytes_per_s: float, noise: float = 0.0) -> store._Reading:
    """What a store would take that opens a file in half of `file_s` and reads at a rate."""
    made = store._Reading(0.0, file_s / 2)
    left, wait = size_bytes, file_s / 2 + noise
    while left > 0:
        block = min(left, 1 << 20)
        made.blocks.append((block, wait + block / bytes_per_s))
        left, wait = left - block, 0.0
    return made


def make_files(folder: Path, count: int, size_bytes: int) -> list[tuple[str, int]]:
    made = []
    for number in range(count):
        path = folder / f"class {number % 5}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size_bytes))
        made.append((str(path), size_bytes))
    return made


def make_cold(files: list[tuple[str, int]]) -> None:
    for path, _ in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def figures_of(speed: object) -> dict[str, Figure]:
    found = {field.name: getattr(speed, field.name) for field in fields(speed)}  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if isinstance(value, Figure)}


def test_files_of_many_sizes_tell_latency_and_rate() -> None:
    noise = [0.0002, -0.0001, 0.0001, -0.0002]
    readings = [reading(10_000 + 3000 * n, 0.006, 50 * MB, noise[n % 4]) for n in range(100)]
    file_s, rate = store._fit(readings)
    assert file_s.value == pytest.approx(0.006, rel=0.05)
    assert rate is not None
    assert rate.value == pytest.approx(50 * MB, rel=0.1)
    assert rate.low < 50 * MB < rate.high


def test_large_files_tell_the_rate_by_their_later_blocks() -> None:
    file_s, rate = store._fit([reading(20 * MB, 0.006, 100 * MB) for _ in range(3)])
    assert (file_s.value, rate and rate.value) == pytest.approx((0.006, 100 * MB))


def test_tiny_files_tell_no_rate_and_what_is_assumed_keeps_their_time() -> None:
    readings = [reading(2000, 0.006, 100 * MB) for _ in range(50)]
    assert store._fit(readings)[1] is None
    file_s, rate = store._bound(readings, None)
    assert rate.origin == ASSUMED
    assert rate.low < rate.value < rate.high
    assert file_s.value + 2000 / rate.value == pytest.approx(readings[0].open_s + readings[0].read_s)


def test_a_rate_that_drowns_in_noise_is_not_told() -> None:
    noise = [0.003, -0.0029, 0.002, -0.002]
    readings = [reading(2000 + 10 * n, 0.006, 100 * MB, noise[n % 4]) for n in range(40)]
    assert store._fit(readings)[1] is None


def test_a_rate_of_reads_that_came_in_bursts_is_never_nothing() -> None:
    events = [(1.9, 1)] * 39 + [(2.0, 1)]
    rate = store.find_rate(1.0, events, streams=4)
    assert rate is not None
    assert 0 < rate.low < rate.value


def test_readers_together_give_the_rate_after_they_all_began() -> None:
    events = [(1.0 + n / 1000, 1) for n in range(200, 1001)]  # nothing in the first fifth
    rate = store.find_rate(1.0, events, streams=4)
    assert rate is not None
    assert rate.value == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize(("count", "size_bytes"), [(200, 30_000), (200, 700), (2, 6 * MB), (1, 5)])
def test_figures_are_bounded_and_above_zero(tmp_path: Path, count: int, size_bytes: int) -> None:
    speed = measure_store(str(tmp_path), make_files(tmp_path, count, size_bytes), seconds=0.3, streams=4)
    found = figures_of(speed)
    assert {"file_s", "read_s", "stream_bytes_per_s", "total_bytes_per_s", "files_per_s"} <= set(found)
    for name, figure in found.items():
        assert 0 <= figure.low <= figure.value <= figure.high, name
        assert figure.value > 0, name
    assert (speed.path, speed.streams) == (str(tmp_path), 4)
    assert speed.kind != ""


def test_the_pages_it_brought_are_dropped_and_those_of_others_stay(tmp_path: Path) -> None:
    files = make_files(tmp_path, 40, 100_000)
    make_cold(files)
    if measure_file_residency(files[0][0]) != (100_000, 0.0):
        pytest.skip("this file system keeps its pages, or does not tell")
    for path, _ in files[:10]:
        Path(path).read_bytes()
    speed = measure_store(str(tmp_path), files, seconds=0.5)
    after = [found[1] for path, _ in files if (found := measure_file_residency(path))]
    assert after[:10] == [1.0] * 10
    assert max(after[10:]) == 0.0
    assert speed.cold_share == pytest.approx(0.75)
    assert speed.file_s.note.startswith("30 files")


def test_where_all_files_are_in_memory_the_figures_say_so(tmp_path: Path) -> None:
    files = make_files(tmp_path, 20, 50_000)
    speed = measure_store(str(tmp_path), files, seconds=0.2, streams=2)
    assert speed.cold_share == 0.0
    assert speed.keeps_pages
    for name in ("file_s", "stream_bytes_per_s", "total_bytes_per_s", "files_per_s", "read_s"):
        figure = getattr(speed, name)
        assert (figure.origin, figure.note) == (ASSUMED, NOT_SEEN)
        assert figure.high > 4 * figure.low


def test_files_of_a_file_system_in_memory_are_measured_there() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if not describe_storage(folder).is_memory:
            pytest.skip("/dev/shm is no memory")
        speed = measure_store(folder, make_files(Path(folder), 20, 50_000), seconds=0.2, streams=2)
    assert speed.file_s.origin == MEASURED


def test_files_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    files = [(str(tmp_path / "gone"), 5), *make_files(tmp_path, 3, 1000)]
    make_cold(files[1:])
    speed = measure_store(str(tmp_path), files, seconds=0.1, streams=2)
    assert speed.file_s.note.startswith("3 files") or speed.file_s.note == NOT_SEEN


def test_no_file_that_can_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*gone: No such file"):
        measure_store(str(tmp_path), [(str(tmp_path / "gone"), 5)], seconds=0.1)
    with pytest.raises(StorageError, match=r"there is no file in .* to measure"):
        measure_store(str(tmp_path), [(str(tmp_path / "empty"), 0)], seconds=0.1)


def test_a_store_that_hangs_is_a_sentence() -> None:
    with pytest.raises(StorageError, match="/data did not answer for 0 s: the server"):
        call_patiently("/data", threading.Event().wait, 0.01)


def test_what_fails_in_time_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        call_patiently("/data", lambda: 1 // 0)


def test_a_store_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = """
import threading
from feedrate.lab.store import call_patiently
call_patiently("/data", threading.Event().wait, 0.01)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "did not answer" in done.stderr


def test_writes_are_measured_and_nothing_stays(tmp_path: Path) -> None:
    rate, create_s = measure_writes(str(tmp_path), seconds=0.1)
    assert rate.value > 0
    assert create_s.value > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot measure .*nowhere: No such file"):
        measure_writes(str(tmp_path / "nowhere"), seconds=0.1)
