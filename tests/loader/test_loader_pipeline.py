# SPDX-License-Identifier: Apache-2.0
"""The feed alone: order, bounds, errors and stopping, with plain functions in the place of batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate.loader.pipeline import Feed, FeedStopped, Meter, when_taken
from feedrate.loader.values import make_collate
from support.examples import examples


def start(make, steps: int, prefetch: int = 3, makers: int = 2, **options) -> Feed:
    feed = open_feed(make, prefetch, makers, **options)
    feed.begin(steps)
    return feed


def open_feed(make, prefetch: int = 3, makers: int = 2, **options) -> Feed:
    hooks = {"on_rest": lambda: None, "interrupt": lambda: None, **options}
    return Feed(make, prefetch=prefetch, makers=makers, meter=Meter(), **hooks)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=examples(40), deadline=None)
def test_results_come_in_order_and_end(steps: int, prefetch: int, makers: int):
    feed = start(lambda step: step, steps, prefetch, makers)
    assert [feed.take() for _ in range(steps)] == list(range(steps))
    with pytest.raises(FeedStopped):
        feed.take()
    feed.stop()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8), st.integers(1, 4))
@settings(max_examples=examples(40), deadline=None)
def test_one_request_follows_another_and_only_so_many_results_are_made_ahead(
    requests: list[tuple[int, int]], prefetch: int
):
    began: list[int] = []

    def make(step: int) -> int:
        began.append(step)
        return step

    feed, taken = open_feed(make, prefetch), 0
    # What was made ahead is asked for by the next request, or by none.
    for steps, ahead in requests:
        steps, ahead = steps + 6, min(ahead, prefetch)
        feed.begin(steps, ahead)
        for _ in range(steps):
            assert feed.take() == taken
            taken += 1
        with pytest.raises(FeedStopped):
            feed.take()
        for maker in feed._makers:
            maker.join()
        assert sorted(began) == list(range(taken + ahead))
    assert feed.can_go_on
    feed.stop()


def test_what_a_step_counts_is_counted_when_it_is_taken_and_never_if_it_is_not():
    counted: list[int] = []

    def make(step: int) -> int:
        when_taken(lambda: counted.append(step))
        return step

    feed = open_feed(make)
    feed.begin(4, ahead=3)
    for step in range(4):
        feed.take()
        assert counted == list(range(step + 1))
    feed.stop()
    assert counted == [0, 1, 2, 3]
    when_taken(lambda: counted.append(-1))
    assert counted[-1] == -1, "outside of a step, at once"


def test_a_feed_rests_when_nothing_is_left_to_make_and_wakes_when_more_is_asked_for():
    rests = []
    feed = open_feed(lambda step: step, on_rest=lambda: rests.append(1))
    for count in (1, 2, 3):
        feed.begin(5)
        assert [feed.take() % 5 for _ in range(5)] == [0, 1, 2, 3, 4]
        for maker in feed._makers:
            maker.join()
        assert len(rests) >= count
    before = len(rests)
    feed.stop()
    assert len(rests) == before


def test_leaving_all_that_was_asked_for_stops_nothing_and_leaving_less_stops_all():
    feed = open_feed(lambda step: step)
    feed.begin(2, ahead=2)
    feed.take()
    feed.take()
    feed.leave(2)
    assert feed.can_go_on
    feed.begin(2)
    feed.take()
    feed.leave(4)
    assert not feed.can_go_on
    with pytest.raises(FeedStopped):
        feed.take()


def test_order_holds_when_a_later_step_is_ready_first():
    second_is_done = threading.Event()

    def make(step: int) -> int:
        if step == 0:
            second_is_done.wait()
        if step == 1:
            second_is_done.set()
        return step

    feed = start(make, 3)
    assert [feed.take() for _ in range(3)] == [0, 1, 2]
    feed.stop()


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_no_more_than_prefetch_steps_are_ahead(prefetch: int):
    began: list[int] = []
    lock = threading.Lock()

    def make(step: int) -> int:
        with lock:
            began.append(step)
        return step

    feed = start(make, 50, prefetch, makers=4)
    for taken in range(50):
        feed.take()
        with lock:
            assert max(began) <= taken + prefetch
    feed.stop()


def test_an_error_comes_after_the_results_before_it_and_nothing_begins_behind_it():
    began = []

    def make(step: int) -> int:
        began.append(step)
        if step == 2:
            raise KeyError("two")
        return step

    feed = start(make, 100, prefetch=3, makers=1)
    assert [feed.take(), feed.take()] == [0, 1]
    with pytest.raises(KeyError, match="two"):
        feed.take()
    with pytest.raises(FeedStopped):
        feed.take()
    assert began == [0, 1, 2]


def test_even_an_exit_inside_a_maker_reaches_the_consumer():
    def make(step: int) -> int:
        raise SystemExit(step)

    feed = start(make, 3)
    with pytest.raises(SystemExit):
        feed.take()


def test_stop_waits_for_makers_then_closes_what_they_used():
    inside, may_go = threading.Event(), threading.Event()
    events = []

    def make(step: int) -> int:
        inside.set()
        may_go.wait()
        events.append("made")
        return step

    feed = start(make, 1, on_rest=lambda: events.append("closed"))
    inside.wait()
    stopper = threading.Thread(target=feed.stop)
    stopper.start()
    may_go.set()
    stopper.join()
    feed.stop()
    assert events == ["made", "closed"]


def test_a_maker_may_stop_its_own_feed_whatever_it_holds():
    # What a garbage collection inside a maker does when it ends an abandoned iterator.
    feeds: list[Feed] = []
    both = threading.Barrier(2)

    def make(step: int) -> int:
        both.wait()
        with feeds[0]._changed:
            feeds[0].stop()
        return step

    feeds.append(open_feed(make, prefetch=2))
    feeds[0].begin(9)
    for maker in feeds[0]._makers:
        maker.join()
    with pytest.raises(FeedStopped):
        feeds[0].take()


def test_default_collate_stacks_what_stacks():
    samples = [{"x": np.full(2, i), "y": (i, f"s{i}"), "z": [1.5, np.zeros(i)], "n": None} for i in range(3)]
    batch = make_collate("numpy")(samples)
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["y"][0].tolist() == [0, 1, 2]
    assert batch["y"][1] == ["s0", "s1", "s2"]
    assert batch["z"][0].tolist() == [1.5] * 3
    assert [len(z) for z in batch["z"][1]] == [0, 1, 2]
    assert batch["n"] == [None] * 3


def test_default_collate_makes_tensors_for_torch():
    import torch

    batch = make_collate("torch")([(torch.ones(2), np.zeros(3), 1, True, "a")] * 2)
    tensors, arrays, numbers, flags, words = batch
    assert tensors.shape == (2, 2)
    assert arrays.shape == (2, 3)
    assert numbers.dtype == torch.int64
    assert flags.dtype == torch.bool
    assert words == ["a", "a"]


def test_default_collate_leaves_mixed_samples_a_list():
    assert make_collate("numpy")([1, "a"]) == [1, "a"]
    assert make_collate("numpy")([{"a": 1}, {"b": 1}]) == [{"a": 1}, {"b": 1}]
