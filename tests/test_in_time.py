# SPDX-License-Identifier: Apache-2.0
"""Calls of which some may hang: those that answer are heard, the others given up."""

from __future__ import annotations

import threading

import pytest

from feedrate.in_time import map_in_time


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
