# SPDX-License-Identifier: Apache-2.0
"""Rounds and sums, with a runner that starts no process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from feedrate.bench.loader import Contestant, compare, run_rounds, sum_up
from feedrate.lab.child import RunFailed


class FakeRunner:
    """Answers with 100 images in the seconds that the contestant's arguments name, in turn."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.times: dict[str, int] = {}

    def __call__(self, function: str, arguments: Mapping[str, object]) -> tuple[dict[str, Any], int]:
        self.called.append(function)
        turn = self.times.setdefault(function, 0)
        self.times[function] += 1
        seconds = arguments["seconds"][turn]  # type: ignore[index]
        readings = {
            "images": [100, 100],
            "seconds": [seconds, seconds],
            "wait_s": seconds,
            "cpu_s": 4 * seconds,
            "first_batch_s": 0.5,
            "accuracy": 0.8,
        }
        return readings, 1000 + turn


def slow_and_fast() -> list[Contestant]:
    return [
        Contestant("slow", "m:slow", {"seconds": [10.0, 20.0, 40.0]}),
        Contestant("fast", "m:fast", {"seconds": [5.0, 4.0, 20.0]}),
    ]


def test_contestants_take_turns() -> None:
    runner = FakeRunner()
    runs = run_rounds(slow_and_fast(), 3, say=lambda _: None, runner=runner)
    assert runner.called == ["m:slow", "m:fast"] * 3
    turns = [(run.contestant, run.round) for run in runs]
    assert turns == [(name, number) for number in range(3) for name in ("slow", "fast")]


def test_every_run_is_said_before_it_starts() -> None:
    said: list[str] = []
    run_rounds(slow_and_fast(), 2, say=said.append, runner=FakeRunner())
    assert said == ["slow, round 1 of 2", "fast, round 1 of 2", "slow, round 2 of 2", "fast, round 2 of 2"]


def test_the_ratio_is_the_median_of_paired_runs() -> None:
    runs = run_rounds(slow_and_fast(), 3, say=lambda _: None, runner=FakeRunner())
    # Pairs: 10/5, 20/4, 40/20. The ratio of the medians would be 20/5 = 4.
    assert compare("fast", "slow", runs) == 2.0


def test_a_standing_holds_medians_over_runs() -> None:
    runs = run_rounds(slow_and_fast(), 3, say=lambda _: None, runner=FakeRunner())
    slow = sum_up("slow", runs)
    assert slow.images_per_s == 5.0
    assert slow.cpu_s_per_image == 80.0 / 200
    assert slow.wait_share == 0.5
    assert slow.peak_memory_bytes == 1001
    assert slow.accuracy == 0.8
    assert (slow.slow_images_per_s, slow.fast_images_per_s) == (3.125, 8.75)


def test_a_contestant_that_fails_is_named() -> None:
    def fail(function: str, _: Mapping[str, object]) -> tuple[dict[str, Any], int]:
        raise RunFailed(f"the process of {function} ended with exit code 1")

    with pytest.raises(RunFailed, match="slow: the process of m:slow ended with exit code 1"):
        run_rounds(slow_and_fast(), 1, say=lambda _: None, runner=fail)
