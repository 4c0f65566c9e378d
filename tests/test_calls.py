# SPDX-License-Identifier: Apache-2.0
"""Calls that are made one ahead of their use, and calls of which some may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from feedrate.calls import map_in_time, one_ahead


class Calls:
    """Calls that are named by numbers, and note that they were made."""

    def __init__(self, count: int, failing: int | None = None) -> None:
        self.made: list[int] = []
        self.threads: set[int] = set()
        self.reached = [threading.Event() for _ in range(count)]
        self._failing = failing

    def __iter__(self) -> Iterator[Callable[[], int]]:
        for number in range(len(self.reached)):
            yield lambda number=number: self._make(number)  # type: ignore[misc]

    def _make(self, number: int) -> int:
        self.made.append(number)
        self.threads.add(threading.get_ident())
        self.reached[number].set()
        if number == self._failing:
            raise ValueError(f"call {number}")
        return number


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_results_come_in_the_order_of_the_calls(count: int) -> None:
    calls = Calls(count)
    assert list(one_ahead(calls)) == list(range(count))
    assert threading.get_ident() not in calls.threads


def test_the_next_call_is_made_while_a_result_is_used_and_no_further_one() -> None:
    calls = Calls(4)
    results = one_ahead(calls)
    assert next(results) == 0
    assert calls.reached[1].wait(60)
    assert not calls.reached[2].is_set()
    assert list(results) == [1, 2, 3]


def test_an_error_comes_through_in_its_place_and_ends_it_after_what_was_asked_for() -> None:
    calls = Calls(4, failing=1)
    results = one_ahead(calls)
    assert next(results) == 0
    with pytest.raises(ValueError, match="call 1"):
        next(results)
    assert calls.made == [0, 1, 2]


def test_who_stops_early_leaves_no_thread_behind() -> None:
    before, calls = threading.active_count(), Calls(4)
    results = one_ahead(calls)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert calls.made == [0, 1]


def test_calls_that_cannot_be_named_end_it() -> None:
    def broken() -> Iterator[Callable[[], int]]:
        yield lambda: 0
        raise ValueError("no more")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no more"):
        list(one_ahead(broken()))
    assert threading.active_count() == before


def test_what_calls_return_comes_as_they_end() -> None:
    assert sorted(map_in_time(lambda n: n * n, range(20), threads=4, seconds=60)) == [
        n * n for n in range(20)
    ]


def test_a_call_that_hangs_is_given_up_and_the_others_are_heard() -> None:
    forever = threading.Event()
    try:
        found = map_in_time(
            lambda n: forever.wait() if n == 3 else n, range(6), threads=6, seconds=0.0001, hang_s=0.3
        )
        assert 3 not in list(found)
    finally:
        forever.set()


def test_no_call_begins_when_the_time_is_over() -> None:
    assert list(map_in_time(lambda n: n, range(5), threads=2, seconds=0.0)) == []


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_in_time(lambda n: 1 // n, [0], threads=1, seconds=60))


def test_who_stops_early_leaves_the_rest_undone() -> None:
    done: list[int] = []
    items = iter(range(1_000_000))
    found = map_in_time(done.append, items, threads=1, seconds=60)
    next(found)
    found.close()
    assert next(items) < 1_000_000 - 1
