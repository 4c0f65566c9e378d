# SPDX-License-Identifier: Apache-2.0
"""The ring that records go to: what is written is read, and nothing that goes wrong reaches the writer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.hook.feedrate_hook.ring import ParentPhase, Ring
from support.doctor_runs import fill
from support.torch_forks import HOOK


def test_a_record_comes_back_with_all_its_fields(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    ring.phase = layout.TRIAL
    ring.write(layout.COPY, ring.name("train.py:7"), 11, 12, 13, 14, 15, 16, -17)
    (process,) = read_run(tmp_path).processes
    (record,) = process.records
    assert record.tolist() == (layout.COPY, layout.TRIAL, 1, 11, 12, 13, 14, 15, 16, -17)
    assert process.name(1) == "train.py:7"


def test_a_name_is_written_once(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    assert ring.names(["a", "b", "a"]) == [1, 2, 1]
    assert (ring.name("b"), ring.name("")) == (2, 0)
    (process,) = read_run(tmp_path).processes
    assert len(process.facts) == 2


def test_the_oldest_records_make_room_when_the_ring_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "CAPACITY", 8)
    ring = Ring(str(tmp_path))
    for number in range(20):
        ring.write(layout.SYNC, 0, number, 0)
    (process,) = read_run(tmp_path).processes
    assert list(process.records["start"]) == list(range(12, 20))


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    gate = threading.Barrier(4)

    def write(first: int) -> None:
        gate.wait()
        for number in range(first, first + 500):
            ring.write(layout.SYNC, ring.name(str(number)), number, 0)

    threads = [threading.Thread(target=write, args=(n * 500,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ring.write(layout.SYNC, ring.name("2000"), 2000, 0)  # stores the last count
    (process,) = read_run(tmp_path).processes
    assert list(process.records["start"]) == list(range(2001))
    assert all(process.name(r["name"]) == str(r["start"]) for r in process.records)


def test_space_is_taken_as_records_come(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    ring.write(layout.SYNC, 0, 0, 0)
    (path,) = tmp_path.glob("*.ring")
    assert path.stat().st_size > 4_000_000
    assert path.stat().st_blocks * 512 < 200_000


def test_a_folder_that_vanishes_ends_the_recording_quietly(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ring = Ring(str(folder))
    ring.write(layout.SYNC, 0, 0, 0)
    shutil.rmtree(folder)
    for number in range(3000):
        ring.write(layout.SYNC, ring.name(f"name {number % 10}"), number, 0)
    assert not folder.exists()


def test_a_value_that_does_not_fit_costs_one_record(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    ring.write(layout.SYNC, 0, 2**70, 0)
    ring.write(layout.SYNC, 0, 5, 0)
    (process,) = read_run(tmp_path).processes
    assert list(process.of(layout.SYNC)["start"]) == [5]


def test_a_worker_reads_the_phase_from_its_parents_ring(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path))
    ring.set_phase(layout.DRAIN)
    (path,) = tmp_path.glob("*.ring")
    phase = ParentPhase(str(tmp_path), int(path.name.split("-")[0]))
    assert phase.read() == layout.DRAIN
    ring.set_phase(layout.AGAIN)
    assert phase.read() == layout.AGAIN
    assert ParentPhase(str(tmp_path), 1).read() == layout.REAL


@pytest.mark.parametrize("room", [0, 8192], ids=["none", "a little"])
def test_a_worker_survives_that_its_parent_found_no_room_for_a_ring(small_disk: Path, room: int) -> None:
    fill(small_disk, but=room)
    ring = Ring(str(small_disk))
    ring.write(layout.SYNC, 0, 0, 0)
    code = (
        "import sys; from feedrate_hook.ring import ParentPhase; "
        "print(ParentPhase(sys.argv[1], int(sys.argv[2])).read())"
    )
    command = [sys.executable, "-c", code, str(small_disk), str(os.getpid())]
    done = subprocess.run(command, env={"PYTHONPATH": str(HOOK)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{layout.REAL}\n", "")
