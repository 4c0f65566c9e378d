# SPDX-License-Identifier: Apache-2.0
"""The counter-based generator: uniform, independent between neighbours, and a pure function of its key."""

from __future__ import annotations

import numpy as np
import pytest

from feedrate.draws import Purpose, draw_uniforms, make_key, mix, mix_array

FROZEN_KEY = 16721519486847500709
FROZEN_DRAWS = [0.8400904367930775, 0.402796966929445]
MANY = np.arange(200_000, dtype=np.int64)


def test_numbers_are_uniform():
    counts = np.histogram(draw_uniforms(make_key(0, 0, 1), MANY, 1), bins=100, range=(0, 1))[0]
    chi2 = ((counts - 2000) ** 2 / 2000).sum()
    assert 55 < chi2 < 160  # 99 degrees of freedom: mean 99, standard deviation 14


@pytest.mark.parametrize("lag", [1, 2, 256])
def test_neighbouring_samples_are_independent(lag: int):
    values = draw_uniforms(make_key(7, 3, 2), MANY, 1)[:, 0]
    assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 0.01


def test_the_numbers_of_one_sample_are_independent():
    values = draw_uniforms(make_key(0, 0, Purpose.CROP), MANY, 5)
    off_diagonal = np.corrcoef(values.T) - np.eye(5)
    assert np.abs(off_diagonal).max() < 0.01


@pytest.mark.parametrize("other", [(1, 0, 7), (0, 1, 7), (0, 0, 8)])
def test_seed_epoch_and_purpose_each_give_other_numbers(other: tuple[int, ...]):
    one = draw_uniforms(make_key(0, 0, 7), MANY, 1)[:, 0]
    two = draw_uniforms(make_key(*other), MANY, 1)[:, 0]
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.01


def test_pairs_of_neighbours_fill_the_square_evenly():
    values = draw_uniforms(make_key(1, 2, 3), MANY, 1)[:, 0]
    counts = np.histogram2d(values[:-1], values[1:], bins=10, range=[(0, 1), (0, 1)])[0]
    chi2 = ((counts - len(MANY) / 100) ** 2 / (len(MANY) / 100)).sum()
    assert 55 < chi2 < 160


def test_a_sample_draws_the_same_wherever_it_stands_in_a_batch():
    key = make_key(0, 0, 1)
    whole = draw_uniforms(key, MANY[:100], 3)
    np.testing.assert_array_equal(draw_uniforms(key, MANY[[99, 5]], 3), whole[[99, 5]])


def test_a_sample_that_comes_twice_draws_anew_when_slots_are_given():
    twice = np.array([4, 4], np.int64)
    first, second = draw_uniforms(1, twice, 2, slots=np.array([0, 1], np.int64))
    assert (first != second).all()


def test_few_numbers_may_be_asked_for_without_changing_them():
    np.testing.assert_array_equal(draw_uniforms(5, MANY[:9], 2), draw_uniforms(5, MANY[:9], 7)[:, :2])


def test_values_are_below_one_and_not_negative():
    values = draw_uniforms(3, MANY, 2)
    assert values.min() >= 0
    assert values.max() < 1


def test_scalar_and_array_hash_agree():
    values = [0, 1, 2**63, 2**64 - 1]
    assert mix_array(np.array(values, np.uint64)).tolist() == [mix(v) for v in values]


def test_numbers_never_change_between_releases():
    # Reproducibility is promised: a change here changes every user's batches.
    assert make_key(1, 2, 3) == FROZEN_KEY
    np.testing.assert_allclose(
        draw_uniforms(FROZEN_KEY, np.array([0, 10**12]), 1)[:, 0], FROZEN_DRAWS, rtol=0
    )
