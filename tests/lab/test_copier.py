# SPDX-License-Identifier: Apache-2.0
"""What a copy is said to take is what the copier of `feedrate stage` took; and neighbours are noticed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from feedrate.figures import ASSUMED, MEASURED, Figure
from feedrate.lab import copier, store
from feedrate.lab.copier import try_copier
from feedrate.lab.store import Neighbours
from feedrate.machine.process import CoreTimes
from feedrate.model import ways
from feedrate.model.ways import copy_s
from feedrate.plan.ways import complete_store, make_plan, value_store
from feedrate.plan.what_if import parse_what_if
from feedrate.remote import transfer
from support.plans import make_node, make_store, make_survey


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Forty files of which nothing is in memory, as far as one can tell."""
    monkeypatch.setattr(copier, "measure_file_residency", lambda _: None)
    (tmp_path / "class").mkdir()
    for number in range(40):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(os.urandom(20_000))
    return [str(path) for path in (tmp_path / "class").iterdir()]


def test_the_copier_of_stage_brings_some_files_and_leaves_nothing(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    rate = try_copier(files, tmp_path / "into", seconds=0.5)
    assert rate is not None
    assert 0 < rate.low <= rate.value <= rate.high
    assert (rate.origin, rate.note) == (MEASURED, "24 files")  # after a first round of sixteen
    assert list((tmp_path / "into").iterdir()) == []


def test_files_in_memory_are_not_copied_to_time_a_store(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "measure_file_residency", lambda _: (20_000, 1.0))
    assert try_copier(files, tmp_path, seconds=0.5) is None


def test_files_that_vanish_meanwhile_tell_nothing(files: list[str], tmp_path: Path) -> None:
    assert try_copier([*files[:2], str(tmp_path / "gone")], tmp_path, seconds=0.5) is None


def test_names_that_are_asked_for_one_by_one_count_and_no_file_is_asked_again(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times, is_asked = copier._try_walk(files, 0.5)
    assert 0 < times.value < 0.1
    monkeypatch.setattr(copier, "_try_walk", lambda *_: (Figure.exactly(0.5), True))
    rate = try_copier(files, Path(files[0]).parent, seconds=0.5)
    assert rate is not None
    assert rate.value < 20_000 / 0.5
    assert is_asked in (True, False)  # as this file system has it


def test_a_copy_takes_what_the_copier_took_and_other_files_what_single_calls_do() -> None:
    tried = replace(make_store(), copy_bytes_per_s=Figure.exactly(1e6))
    source = value_store(complete_store(tried))
    target = replace(source, write_bytes_per_s=1e12, create_s=1e-9)
    assert copy_s(10, 30e6, source, target) == pytest.approx(30, rel=0.05)
    assert copy_s(10, 30e6, replace(source, copy_bytes_per_s=None), target) < 5
    groups = 64 * 9  # of 9 groups, one is brought while seven streams have nothing to do
    assert copy_s(groups, groups * 1000, source, target) == pytest.approx(
        0.4 + 0.576 * 16 / 9 + 0.144, rel=0.05
    )
    known = ways.COPY_STREAMS, ways.COPY_SMALL_BYTES, ways.COPY_GROUP_FILES, ways.COPY_GROUP_BYTES
    assert known == (transfer.STREAMS, transfer.SMALL_BYTES, transfer._GROUP_FILES, transfer._GROUP_BYTES)
    survey = make_survey(source=tried)
    assert parse_what_if(["latency=1ms"]).apply(survey, make_node())[0].source.copy_bytes_per_s is None


def let_others_take(cores: float, monkeypatch: pytest.MonkeyPatch) -> str:
    now = [0.0]
    monkeypatch.setattr(store.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(store, "read_cpuset", lambda _: {0, 1})
    monkeypatch.setattr(store, "measure_usable_cores", lambda: 2.0)
    monkeypatch.setattr(store, "measure_servers", lambda: 0.0)
    monkeypatch.setattr(store.os, "times", lambda: (now[0], 0.0, 0.0, 0.0, 0.0))
    each = CoreTimes(0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(
        store,
        "read_core_times",
        lambda: dict.fromkeys((0, 1), each._replace(busy_s=now[0] * (1 + cores) / 2)),
    )
    neighbours = Neighbours()
    now[0] = 4.0
    return neighbours.describe()


def test_neighbours_that_take_a_quarter_of_the_cores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert let_others_take(1.0, monkeypatch) == "other processes took 1.0 of 2 cores meanwhile"


def test_neighbours_that_take_little_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert let_others_take(0.2, monkeypatch) == ""


def test_a_plan_made_beside_others_is_less_sure_and_says_why() -> None:
    busy = "other processes took 1.0 of 2 cores meanwhile"
    quiet, crowded = (make_plan(make_survey(busy=text), make_node()).ways[0] for text in ("", busy))
    assert crowded.total_s.value == quiet.total_s.value
    assert crowded.total_s.low < 0.6 * quiet.total_s.low
    assert crowded.total_s.origin == ASSUMED
    assert busy in crowded.total_s.note
