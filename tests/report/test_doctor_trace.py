# SPDX-License-Identifier: Apache-2.0
"""The doctor's trace: what Perfetto needs to open it, and spans that lie inside each other."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from feedrate.doctor.results import Diagnosis, StepRow
from feedrate.report.doctor_trace import draw_trace
from support.diagnoses import DIAGNOSES, make_decode_bound, make_eight_ranks


def read_events(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    events = json.loads(draw_trace(diagnosis))["traceEvents"]
    assert isinstance(events, list)
    return events


@pytest.mark.parametrize("name", DIAGNOSES)
def test_every_event_has_the_keys_of_its_kind(name: str) -> None:
    for event in read_events(DIAGNOSES[name]()):
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["ts"], float)
        elif event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            assert event["args"]["name"]


@pytest.mark.parametrize("name", DIAGNOSES)
def test_spans_of_a_thread_lie_inside_each_other_or_apart(name: str) -> None:
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in read_events(DIAGNOSES[name]()):
        if event["ph"] == "X":
            start = round(1000 * event["ts"])
            span = (start, start + round(1000 * event["dur"]))
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        stack: list[tuple[int, int]] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1][1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1][1]
            stack.append((start, end))


def test_a_step_holds_its_wait_and_its_parts_in_order() -> None:
    parts = {"optimizer": 0.1, "forward": 0.2, "something": 0.05, "backward": 0.3}
    row = StepRow(10.0, 1.0, 0.25, 0.125, parts, "real", rank=3)
    spans = [e for e in read_events(replace(make_decode_bound(), timeline=(row,))) if e.get("tid") == 1]
    spans = [e for e in spans if e["ph"] == "X"]
    assert [e["name"] for e in spans] == [
        "step 0", "wait", "device idle", "forward", "backward", "optimizer", "something",
    ]  # fmt: skip
    assert {e["pid"] for e in spans} == {3}
    assert [e["ts"] for e in spans[:3]] == [10e6, 10e6, 10.125e6]
    assert [e["dur"] for e in spans[:4]] == [1e6, 0.25e6, 0.125e6, 0.2e6]


def test_parts_that_are_longer_than_their_step_are_cut_at_its_end() -> None:
    row = StepRow(0.0, 1.0, 5.0, 9.0, {"forward": 3.0}, "real")
    spans = [e for e in read_events(replace(make_decode_bound(), timeline=(row,))) if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == 1e6


def test_each_rank_is_a_process_and_phases_do_not_overlap() -> None:
    events = read_events(make_eight_ranks())
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == [*(f"rank {n}" for n in range(8)), "machine"]
    phases = [e for e in events if e.get("cat") == "phase" and e["pid"] == 0]
    assert [e["name"] for e in phases][:2] == ["real", "drain"]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.001 for a, b in pairwise(phases))


def test_curves_are_counters_and_what_was_not_read_is_left_out() -> None:
    events = [e for e in read_events(make_decode_bound()) if e["ph"] == "C"]
    copied = [e for e in events if e["name"] == "NFS, round trip (s)"]
    assert len(copied) == 120 - 11
    assert copied[1]["ts"] == 0.5e6
    assert copied[1]["args"] == {"s": 0.0005}
