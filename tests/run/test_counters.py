# SPDX-License-Identifier: Apache-2.0
"""Numbers of a loader in a process, as the launcher reads them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from feedrate.run.inside import counters
from feedrate.run.inside.counters import Left, open_counters, read_counters


def test_what_a_process_counted_is_read_from_its_file(tmp_path: Path) -> None:
    mine = open_counters(str(tmp_path), 3)
    mine.add("taken")
    mine.add("taken", 2)
    mine.add_left(Left.DAMAGED)
    ((_, found),) = read_counters(tmp_path)
    assert (found["loader"], found["is_main"], found["pid"]) == (3, 1, os.getpid())
    assert (found["taken"], found["left_damaged"], found["left_no-bytes"]) == (3, 1, 0)


def test_a_process_that_is_killed_leaves_its_numbers(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        open_counters(str(tmp_path), 0, 1).add("scanned", 7)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [found["scanned"] for _, found in read_counters(tmp_path)] == [7]


def test_numbers_that_find_no_folder_are_kept_in_memory(tmp_path: Path) -> None:
    mine = open_counters(str(tmp_path / "gone"), 0)
    mine.add("taken")
    assert mine.get("taken") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_counters_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "counters-torn-1-1").write_bytes(b"x" * 100)
    (tmp_path / "counters-other-1-1").write_bytes(bytes(4096))
    assert read_counters(tmp_path) == []


def test_every_reason_to_leave_an_image_has_its_words() -> None:
    assert len({reason.words for reason in Left}) == len(Left)


def test_what_is_counted_between_fetches_is_nobodys() -> None:
    before = counters.here.current.get("taken")
    counters.take()
    assert counters.here.current.get("taken") == before + 1
