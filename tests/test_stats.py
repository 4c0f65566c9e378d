# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from feedrate.stats import median_ratio, spread


def test_spread_is_the_middle_half_of_the_values() -> None:
    assert spread([1, 2, 3, 4, 5]) == (2, 4)


def test_spread_of_one_value_is_that_value() -> None:
    assert spread([7.0]) == (7.0, 7.0)


def test_the_ratio_of_paired_runs_ignores_a_noise_that_both_saw() -> None:
    assert median_ratio([20, 10, 200], [10, 5, 100]) == 2
