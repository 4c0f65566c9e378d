# SPDX-License-Identifier: Apache-2.0
"""`cached(disk=..., key=...)`: what lies on the disk is there for the next job, if it is right."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate import StorageError
from feedrate.cache.persistent import NAMES, drop_oldest, home_of, measure_others
from feedrate.cache.table import ROW


class Numbers:
    """Samples of 10 KB; counts how many were made, but for the three at the opening."""

    def __init__(self, count: int = 12) -> None:
        self.count, self.made = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        return np.full(2500, index, np.float32), index


def fill(
    scratch: Path, *, key: str = "k", ram: int | str = 0, size: str = "10MB", count: int = 12
) -> Numbers:
    """Do what a job does: two epochs, then its end."""
    numbers = Numbers(count)
    dataset = feedrate.cached(numbers, ram=ram, disk=f"{scratch}:{size}", key=key)
    for _ in range(2):
        for index in range(count):
            array, number = dataset[index]
            assert number == index
            assert (array == index).all()
    dataset.close()
    return numbers


def place(scratch: Path) -> Path:
    (found,) = home_of(str(scratch)).iterdir()
    return found


@pytest.mark.parametrize("ram", [0, "1MB", 50_000])
def test_the_next_job_makes_nothing_anew(tmp_path: Path, ram: int | str) -> None:
    assert fill(tmp_path, ram=ram).made == 9
    assert fill(tmp_path, ram=ram).made == 0


def test_what_another_job_left_is_found_whatever_memory_this_one_has(tmp_path: Path) -> None:
    fill(tmp_path, ram="1MB")
    assert fill(tmp_path, ram=0).made == 0


def test_another_process_finds_it(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import test_cached_kept
        print(test_cached_kept.fill(Path({str(tmp_path)!r})).made)
        """
    )
    shown = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert shown == ["9\n", "0\n"]


def test_another_key_or_another_length_begins_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    assert fill(tmp_path, key="l").made == 9
    assert fill(tmp_path, count=5).made == 2


def test_without_a_key_nothing_stays(tmp_path: Path) -> None:
    numbers = Numbers()
    dataset = feedrate.cached(numbers, ram=0, disk=f"{tmp_path}:10MB")
    _ = [dataset[n] for n in range(12)]
    dataset.close()
    assert list(tmp_path.iterdir()) == []


def test_only_the_user_can_look_at_what_is_kept(tmp_path: Path) -> None:
    fill(tmp_path)
    modes = [path.stat().st_mode & 0o777 for path in (place(tmp_path).parent, place(tmp_path))]
    assert modes == [0o700, 0o700]
    assert {path.name for path in place(tmp_path).iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", ["data", "rows"])
def test_a_flipped_bit_anywhere_costs_one_sample_and_never_gives_a_wrong_one(
    tmp_path: Path, name: str
) -> None:
    fill(tmp_path)
    path = place(tmp_path) / name
    whole = path.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(whole), 20).tolist():
        spoilt = bytearray(whole)
        spoilt[position] ^= 1 << position % 8
        path.write_bytes(spoilt)
        assert fill(tmp_path).made <= 2  # the numbers themselves are checked there
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["data", "rows"])
def test_files_that_were_cut_short_or_lost_cost_samples_and_nothing_else(tmp_path: Path, name: str) -> None:
    fill(tmp_path)
    path = place(tmp_path) / name
    os.truncate(path, path.stat().st_size // 2 + 3)
    assert 0 < fill(tmp_path).made <= 8
    assert fill(tmp_path).made == 0
    path.unlink()
    assert fill(tmp_path).made == 9


def test_a_row_that_was_written_in_part_does_not_shift_the_others(tmp_path: Path) -> None:
    fill(tmp_path)
    with (place(tmp_path) / "rows").open("ab") as file:
        file.write(b"x" * (ROW.itemsize // 2))
    assert fill(tmp_path).made == 0
    with (place(tmp_path) / "rows").open("r+b") as file:
        file.write(bytes(ROW.itemsize))
    assert fill(tmp_path).made == 1
    assert fill(tmp_path).made == 0


def test_a_second_job_at_the_same_time_reads_and_adds_nothing(tmp_path: Path) -> None:
    fill(tmp_path, count=12)
    numbers = Numbers()
    first = feedrate.cached(numbers, ram=0, disk=f"{tmp_path}:10MB", key="k")
    os.environ["SLURM_JOB_ID"] = "another"
    size = (place(tmp_path) / "data").stat().st_size
    assert fill(tmp_path).made == 0
    assert (place(tmp_path) / "data").stat().st_size == size
    first.close()


def test_old_caches_that_nobody_uses_give_way_and_the_used_one_stays(tmp_path: Path) -> None:
    for number, key in enumerate(("a", "b", "c")):
        fill(tmp_path, key=key)
        lock = next(path for path in home_of(str(tmp_path)).iterdir() if f"-{key}-" in path.name) / "lock"
        os.utime(lock, (1000 + number, 1000 + number))
    used = feedrate.cached(Numbers(), ram=0, disk=f"{tmp_path}:450KB", key="a")
    assert measure_others(str(tmp_path), "") > 350_000
    # 120 KB each: the fourth does not fit, so b has to go, which is the oldest but for a, which is in use.
    fill(tmp_path, key="d", size="450KB")
    keys = sorted(path.name.split("-")[1] for path in home_of(str(tmp_path)).iterdir())
    assert keys == ["a", "c", "d"]
    used.close()


def test_nothing_but_our_own_files_is_deleted(tmp_path: Path) -> None:
    fill(tmp_path)
    mine = place(tmp_path)
    (mine / "thesis.tex").write_text("x")
    (mine.parent / "stranger").mkdir()
    (mine.parent / "stranger" / "data").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock").write_text("x")
    (mine.parent / "link").symlink_to(tmp_path / "elsewhere")
    assert not drop_oldest(str(tmp_path), "other")
    assert (mine / "thesis.tex").exists()
    assert (mine.parent / "stranger" / "data").exists()
    assert (tmp_path / "elsewhere" / "lock").exists()


def test_a_folder_that_others_can_write_to_is_not_believed(tmp_path: Path) -> None:
    fill(tmp_path)
    place(tmp_path).chmod(0o777)
    with pytest.raises(StorageError, match="is not a folder that only you can write to"):
        fill(tmp_path)


def test_a_disk_that_cannot_be_written_to_is_a_sentence(tmp_path: Path) -> None:
    home_of(str(tmp_path)).write_text("a file in the way")
    with pytest.raises(StorageError, match="is not a folder that only you can write to"):
        fill(tmp_path)


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np, feedrate
from test_cached_kept import Numbers

class Slow(Numbers):
    def __getitem__(self, index):
        if self.made == {number}:
            os.kill(os.getpid(), 9)
        return super().__getitem__(index)
Slow.__qualname__ = Slow.__name__ = "Numbers"

dataset = feedrate.cached(Slow(), ram=0, disk={disk!r}, key="killed")
for index in range(12):
    dataset[index]
"""


@pytest.mark.parametrize("number", [5])
def test_what_a_killed_job_had_kept_is_there_and_right(tmp_path: Path, number: int) -> None:
    program = KILLED.format(tests=str(Path(__file__).parent), number=number, disk=f"{tmp_path}:10MB")
    for _ in range(2):
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert shown.returncode in (-9, 0), shown.stderr
    (found,) = home_of(str(tmp_path)).iterdir()
    assert (found / "rows").stat().st_size // ROW.itemsize >= number - 1
