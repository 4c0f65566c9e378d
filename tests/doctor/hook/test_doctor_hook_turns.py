# SPDX-License-Identifier: Apache-2.0
"""How often the hook looks closely, and how it notices that a sample draws random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from feedrate.doctor.hook.feedrate_hook import clock
from feedrate.doctor.hook.feedrate_hook.record import fetching, parts, samples
from feedrate.doctor.hook.feedrate_hook.session import ProbeSchedule


def count_probed(monkeypatch: pytest.MonkeyPatch, step_ns: int) -> tuple[int, int]:
    """Return how many of the first 128 steps are probed, and how many of the next 128."""
    now = 10**9
    monkeypatch.setattr(clock, "wall_ns", lambda: now)
    turns, probed = ProbeSchedule(), []
    for number in range(256):
        probed.append(turns.is_probed(number))
        now += step_ns
    return sum(probed[:128]), sum(probed[128:])


def test_of_short_steps_few_are_probed_once_many_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_probed(monkeypatch, 2_000_000) == (96, 16)


@pytest.mark.parametrize("period", [2, 3, 4, 8])
def test_what_a_loop_does_every_few_steps_is_probed_as_often_as_the_rest(
    monkeypatch: pytest.MonkeyPatch, period: int
) -> None:
    now = 10**9
    monkeypatch.setattr(clock, "wall_ns", lambda: now)
    turns = ProbeSchedule()
    probed = [number for number in range(128 * 30) if turns.is_probed(number) and number >= 128]
    phases = np.bincount([number % period for number in probed], minlength=period)
    assert phases.max() - phases.min() <= 2


def test_long_steps_are_probed_as_often_later_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_probed(monkeypatch, 80_000_000) == (96, 96)


class Schedstat:
    """A run-queue clock that moves by a second each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> bytes:
        self.reads += 1
        return b"0 %d 0" % (self.reads * 10**9)


def test_the_run_queue_is_looked_at_only_after_the_thread_has_not_been_computing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = Schedstat()
    monkeypatch.setattr(clock._OfProcess, "thread", clock._OfThread())
    clock._OfProcess.thread.schedstat = file  # type: ignore[assignment]
    ms = 1_000_000
    assert clock.queue_ns(100 * ms, 0) == 10**9
    assert clock.queue_ns(200 * ms, 100 * ms) == 10**9  # it has computed all the time
    assert clock.queue_ns(300 * ms, 199 * ms) == 2 * 10**9
    assert file.reads == 2


def test_fewer_fetches_are_timed_once_many_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "wrap_methods", lambda _: None)
    monkeypatch.setattr(fetching, "wrap_methods", lambda _: None)
    early, late = fetching.Fetching(), fetching.Fetching()
    late._timed = 1000
    for one in (early, late):
        one._event_ns = 1000
        one._spare(number=500, events=140, recorded_ns=0, wall=10_000_000)  # 1.4 % of the fetch
    assert (early._probe_from, late._probe_from) == (503, 508)


@pytest.fixture
def numpy_state() -> Iterator[None]:
    """The global generator as a fresh process has it; afterwards as it was."""
    before = np.random.get_state()
    samples.Sample.draws_from_numpy = False
    yield
    np.random.set_state(before)
    samples.Sample.draws_from_numpy = False


def is_drawn(draw: Callable[[], object]) -> bool:
    """Watch one sample that calls `draw`."""
    samples.Sample.is_wanted = True
    samples.Sample.undrawn = 5
    samples.begin_sample()
    draw()
    samples.end_sample()
    return samples.Sample.undrawn == 0


@pytest.mark.usefixtures("numpy_state")
@pytest.mark.parametrize("draw", [np.random.rand, random.random, lambda: np.random.permutation(3)])
def test_a_draw_from_a_global_generator_is_noticed(draw: Callable[[], object]) -> None:
    assert not is_drawn(lambda: None)
    assert is_drawn(draw)
    assert not is_drawn(lambda: None)
    assert is_drawn(draw)


@pytest.mark.usefixtures("numpy_state")
def test_the_second_of_two_normal_numbers_is_noticed_too() -> None:
    # numpy makes them in pairs and keeps the second.
    np.random.seed(1)
    seen = [is_drawn(np.random.randn) for _ in range(6)]
    assert seen == [True] * 6


@pytest.mark.usefixtures("numpy_state")
def test_numpys_state_is_read_in_place_until_a_sample_draws() -> None:
    assert not is_drawn(lambda: None)
    assert not samples.Sample.draws_from_numpy
    is_drawn(np.random.rand)
    assert samples.Sample.draws_from_numpy


@pytest.mark.skipif(not hasattr(np.random, "set_bit_generator"), reason="numpy is older than 1.24")
@pytest.mark.usefixtures("numpy_state")
def test_another_generator_in_numpys_place_is_followed() -> None:
    before = np.random.get_bit_generator()
    try:
        assert not is_drawn(lambda: None)
        np.random.set_bit_generator(np.random.PCG64(1))
        assert is_drawn(np.random.rand)
        assert not is_drawn(lambda: None)
    finally:
        np.random.set_bit_generator(before)
