# SPDX-License-Identifier: Apache-2.0
"""The cost model: what a change of a loop's parts gives."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.model.pipeline import Pipeline, around, best_workers, predict_change, soft_max, without

LOOP = Pipeline(
    device_s=0.02,
    device_cpu_s=0.005,
    fetch_cpu_s=0.1,
    fetch_blocked_s=0.02,
    handover_s=0.001,
    workers=2,
    cores=8,
)

seconds = st.floats(1e-4, 1.0)
pipelines = st.builds(
    Pipeline, device_s=seconds, device_cpu_s=seconds, fetch_cpu_s=seconds, fetch_blocked_s=seconds,
    handover_s=st.floats(0, 0.01), workers=st.integers(0, 16), cores=st.floats(1, 64),
    between_s=st.floats(0, 1),
)  # fmt: skip


def test_without_workers_making_and_using_a_batch_follow_each_other() -> None:
    loop = LOOP.with_(workers=0)
    assert loop.step_s == pytest.approx(0.02 + 0.12)


def test_workers_that_are_slow_hold_the_step_at_their_pace() -> None:
    assert LOOP.step_s == pytest.approx(0.06, rel=0.02)
    assert LOOP.slowest == "workers"


def test_more_workers_than_cores_give_no_more_than_the_cores() -> None:
    loop = LOOP.with_(workers=64, cores=2)
    assert loop.slowest == "cores"
    assert loop.step_s == pytest.approx((0.1 + 0.005 + 0.001) / 2, rel=0.05)


def test_the_best_number_of_workers_is_where_the_device_becomes_the_limit() -> None:
    assert best_workers(LOOP, 8) in (6, 7, 8)
    assert best_workers(LOOP.with_(device_s=0.2), 8) == 1


@given(pipelines)
def test_no_change_is_predicted_to_give_exactly_nothing(loop: Pipeline) -> None:
    assert predict_change(loop, loop, loop.step_s * 1.3).speedup == 1.0


@given(pipelines, st.floats(0.0, 1.0))
def test_cheaper_samples_never_make_a_step_longer(loop: Pipeline, kept: float) -> None:
    assert loop.with_(fetch_cpu_s=loop.fetch_cpu_s * kept).step_s <= loop.step_s * (1 + 1e-9)


@given(pipelines, pipelines, st.floats(0.5, 2.0))
def test_an_interval_holds_its_prediction_and_is_never_wider_than_a_half(
    now: Pipeline, then: Pipeline, error: float
) -> None:
    prediction = predict_change(now, then, now.step_s * error)
    assert prediction.low <= prediction.speedup <= prediction.high
    assert prediction.high / prediction.low <= 1.5


@given(st.floats(1.0, 50.0))
def test_intervals_shrink_towards_one(speedup: float) -> None:
    near, far = around(1.0), around(speedup)
    assert near.high / near.low <= far.high / far.low + 1e-9


def test_a_loader_that_was_seen_to_be_slower_than_its_parts_holds_up_a_faster_device() -> None:
    loop = LOOP.with_(workers=16, device_s=0.2).with_(loader_s=0.05)
    assert loop.with_(device_s=0.001).step_s == pytest.approx(0.05, rel=0.02)
    assert loop.with_(device_s=0.001).slowest == "loader"


def test_a_loader_that_is_changed_is_no_longer_the_one_that_was_seen() -> None:
    loop = LOOP.with_(workers=16).with_(loader_s=0.5)
    assert loop.with_(fetch_cpu_s=0.01).loader_s == 0.0
    assert loop.with_(cores=64.0).loader_s == 0.0
    assert loop.with_(between_s=0.01).loader_s == 0.5


def test_a_changed_loader_is_compared_with_the_present_one_by_its_parts() -> None:
    loop = LOOP.with_(workers=16)
    seen = loop.with_(loader_s=0.5)
    assert seen.gain_of(seen.with_(fetch_cpu_s=0.01)) == loop.gain_of(loop.with_(fetch_cpu_s=0.01))
    assert seen.gain_of(seen.with_(device_s=0.001)) == pytest.approx(1.0, rel=0.01)


def test_a_loader_seen_and_its_parts_count_once() -> None:
    loop = LOOP.with_(device_s=0.0, device_cpu_s=0.0, handover_s=0.0, cores=1000.0)
    assert loop.with_(loader_s=loop.limits["workers"]).step_s == pytest.approx(loop.step_s)


def test_leaving_out_half_of_the_time_doubles_the_speed() -> None:
    assert without(0.5) == pytest.approx(2.0)
    assert without(0.5, kept=0.5) == pytest.approx(4 / 3)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_a_soft_maximum_is_at_least_the_largest(values: list[float]) -> None:
    result = soft_max(*values)
    assert result >= max(values) * (1 - 1e-12)
    assert result <= max(values) * len(values) ** (1 / 8) + 1e-12
    assert math.isfinite(result)
