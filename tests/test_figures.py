# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.figures import ASSUMED, GIVEN, MEASURED, STORED, Figure, combine, weakest

sizes = st.floats(1e-6, 1e12)


@given(sizes, st.floats(1.0, 3.0))
def test_a_value_known_to_a_factor_lies_between_its_bounds(value: float, factor: float) -> None:
    figure = Figure.within(value, factor, ASSUMED)
    assert figure.low <= value <= figure.high


def test_the_mean_of_many_measurements_is_known_better_than_that_of_few() -> None:
    few, many = Figure.of_mean([1.0, 2.0, 3.0]), Figure.of_mean([1.0, 2.0, 3.0] * 40)
    assert few.value == many.value == pytest.approx(2.0)
    assert many.high - many.low < few.high - few.low


def test_one_measurement_alone_has_a_wide_interval() -> None:
    assert Figure.of_mean([2.0]).low == pytest.approx(0.2)


@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=6))
def test_a_mean_of_what_was_measured_can_be_divided_by(values: list[float]) -> None:
    figure = Figure.of_mean(values)
    assert 0 < figure.low <= figure.value <= figure.high


def test_a_sum_of_two_unsure_figures_errs_less_than_both_errors_together() -> None:
    one, other = Figure(10, 9, 11), Figure(10, 9, 11)
    total = combine(lambda one, other: one + other, {"one": one, "other": other})
    assert (total.value, total.low, total.high) == pytest.approx((20, 20 - 2**0.5, 20 + 2**0.5))


def test_an_interval_holds_whichever_way_a_figure_counts() -> None:
    rate = combine(lambda n, seconds: n / seconds, {"n": Figure.exactly(100), "seconds": Figure(10, 5, 20)})
    assert (rate.low, rate.value, rate.high) == pytest.approx((5, 10, 20))


def test_what_is_computed_is_as_sure_as_the_weakest_figure_in_it() -> None:
    figures = [Figure.exactly(1, origin) for origin in (MEASURED, STORED, GIVEN)]
    assert weakest(figures) == STORED
    assert weakest([*figures, Figure.exactly(1, ASSUMED)]) == ASSUMED


@given(sizes, st.floats(0.01, 100))
def test_scaling_keeps_the_order_of_the_bounds(value: float, factor: float) -> None:
    figure = Figure.within(value, 1.5, MEASURED).scaled(-factor)
    assert figure.low <= figure.value <= figure.high


def test_what_is_computed_has_the_notes_of_what_is_assumed_in_it_and_counts() -> None:
    figures = {
        "most": Figure.within(100.0, 1.2, ASSUMED, "a table"),
        "little": Figure.within(1e-4, 2, ASSUMED, "a guess"),
        "rest": Figure.within(10.0, 1.1, MEASURED, "just now"),
    }
    total = combine(lambda most, little, rest: most + little + rest, figures)
    assert (total.origin, total.note) == (ASSUMED, "a table")


def test_a_rate_that_was_seen_is_never_none_at_worst() -> None:
    assert Figure.of_mean([1.0, 1.0, 1.0, 10.0]).low > 0


def test_a_difference_may_be_below_nothing_and_its_bounds_say_so() -> None:
    figures = {"one": Figure(10, 8, 12), "other": Figure(9, 7, 11)}
    saved = combine(lambda one, other: one - other, figures)
    assert saved.low == pytest.approx(1 - 8**0.5)


def test_what_adds_up_is_not_below_nothing_because_of_several_errors() -> None:
    figures = {"one": Figure(1, 0, 2), "other": Figure(1, 0, 2), "third": Figure(1, 0, 2)}
    assert combine(lambda one, other, third: one * other * third, figures).low == 0


def test_narrower_bounds_keep_the_value_and_the_sides() -> None:
    assert Figure(10, 4, 20).narrowed(0.5) == Figure(10, 7, 15)
