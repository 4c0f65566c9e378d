# SPDX-License-Identifier: Apache-2.0
"""Orders are exact, computed and independent of ranks; ranks cover them exactly once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate.draws import mix_array
from feedrate.errors import UsageError
from feedrate.loader.order import Given, Sequential, Shuffled, Subset, Weighted, Windowed, permute
from feedrate.loader.ranks import Shares
from support.examples import examples
from support.shuffles import measure_shuffle

FROZEN = [75, 888, 871, 582, 127, 239]


def whole(order, epoch: int = 0) -> np.ndarray:
    at = order.at(epoch)
    return at.indices(np.arange(at.length, dtype=np.int64))


@given(n=st.integers(0, 3000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(80), deadline=None)
def test_permute_is_a_bijection(n: int, key: int):
    assert sorted(permute(np.arange(n, dtype=np.int64), n, key).tolist()) == list(range(n))


@given(n=st.integers(2, 2**40), key=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_permute_stays_inside_and_apart_up_to_two_to_the_forty(n: int, key: int, data: st.DataObject):
    some = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=1, max_size=50))
    images = permute(np.array(some, np.int64), n, key)
    assert images.min() >= 0
    assert images.max() < n
    assert len(set(images.tolist())) == len(some)


def test_permute_does_not_depend_on_which_indices_are_asked_together():
    n = 100_003
    together = permute(np.arange(n, dtype=np.int64), n, 9)
    assert permute(np.array([77_777], np.int64), n, 9)[0] == together[77_777]


@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_small_permutations_are_all_about_equally_likely(n: int):
    each, count = 100, math.factorial(n)
    keys = mix_array(np.arange(each * count, dtype=np.uint64))
    columns = [permute(np.full(len(keys), i, np.int64), n, keys) for i in range(n)]
    counts = np.bincount(sum(column * n**i for i, column in enumerate(columns)))
    counts = counts[counts > 0]
    chi2 = ((counts - each) ** 2 / each).sum() + (count - len(counts)) * each
    assert chi2 < count - 1 + 4 * (2 * (count - 1)) ** 0.5


@pytest.mark.parametrize("n", [100, 1024, 4096, 10**6])
def test_where_two_neighbours_go_is_independent(n: int):
    keys = mix_array(np.arange(200_000, dtype=np.uint64))
    at = n // 3
    one, two = (permute(np.full(len(keys), at + i, np.int64), n, keys) for i in range(2))
    bins = 10
    counts = np.histogram2d(one, two, bins=bins, range=[(0, n), (0, n)])[0]
    expected = np.full((bins, bins), (n / bins) ** 2)
    expected[np.diag_indices(bins)] -= n / bins  # they cannot both go to one place
    expected *= len(keys) / expected.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 160  # 99 degrees of freedom


def test_a_full_shuffle_measures_as_one():
    quality = measure_shuffle(whole(Shuffled(100_000, seed=1)))
    assert quality.displacement == pytest.approx(1, abs=0.02)
    assert quality.batch_spread == pytest.approx(1, abs=0.02)
    assert quality.neighbours < 0.001


def test_stored_order_measures_as_not_shuffled():
    quality = measure_shuffle(whole(Sequential(10_000)))
    assert quality.displacement == 0
    assert quality.neighbours == 1


def test_windowed_order_is_well_shuffled():
    quality = measure_shuffle(whole(Windowed(200_000, seed=1)))
    assert quality.displacement == pytest.approx(1, abs=0.05)
    assert quality.batch_spread > 0.9
    assert quality.neighbours < 0.01


def test_windowed_order_reads_few_blocks_at_a_time():
    order = Windowed(100_000, seed=0)
    window = np.sort(whole(order)[: order.window])
    assert (np.diff(window) > 1).sum() < order.window / order.block  # so many stretches, no more


@given(n=st.integers(1, 5000), block=st.integers(1, 64), blocks=st.integers(1, 8), epoch=st.integers(0, 9))
@settings(max_examples=examples(80), deadline=None)
def test_windowed_order_is_a_bijection(n: int, block: int, blocks: int, epoch: int):
    order = Windowed(n, seed=3, block=block, window_blocks=blocks)
    assert sorted(whole(order, epoch).tolist()) == list(range(n))


@pytest.mark.parametrize("make", [Shuffled, Windowed])
def test_epochs_and_seeds_give_other_orders(make: type):
    base = whole(make(5000, 0), 0)
    assert (base == whole(make(5000, 0), 0)).all()
    assert (base == whole(make(5000, 0), 1)).mean() < 0.01
    assert (base == whole(make(5000, 1), 0)).mean() < 0.01


@given(
    n=st.integers(1, 400), batch=st.integers(1, 40), world=st.integers(1, 9), start=st.integers(0, 400),
    drop_last=st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(200), deadline=None)
def test_ranks_cover_the_epoch_exactly_once(n: int, batch: int, world: int, start: int, drop_last: bool):
    start = min(start, n)
    ranks = [Shares(n, batch, rank, world, drop_last, start=start) for rank in range(world)]
    steps = {len(shares) for shares in ranks}
    assert len(steps) == 1
    used = []
    for step in range(steps.pop()):
        slices = [shares.slots(step) for shares in ranks]
        sizes = [len(s) for s in slices]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= max(batch, 2 if world > 1 else 1)
        assert min(sizes) >= 1
        used += np.concatenate(slices).tolist()
        assert start + len(used) == ranks[0].after(step)
    lost = n - start - len(used)
    assert used == list(range(start, n - lost))
    if drop_last:
        assert lost < batch * world
        assert ranks[0].left_out == 0
    else:
        assert lost == ranks[0].left_out == (n - start if n - start < world else 0)


@given(n=st.integers(1, 200), batch=st.integers(1, 20), world=st.integers(1, 9))
@settings(max_examples=examples(100), deadline=None)
def test_padding_gives_every_rank_as_many_and_loses_nothing(n: int, batch: int, world: int):
    ranks = [Shares(n, batch, rank, world, pad=True) for rank in range(world)]
    used = []
    for step in range(len(ranks[0])):
        slices = [shares.slots(step) for shares in ranks]
        assert len({len(s) for s in slices}) == 1
        used += np.concatenate(slices).tolist()
    assert set(used) == set(range(n))
    assert len(used) < n + world


@given(
    n=st.integers(1, 500), first=st.tuples(st.integers(1, 20), st.integers(1, 6)),
    second=st.tuples(st.integers(1, 20), st.integers(1, 6)), stop=st.integers(0, 30),
)  # fmt: skip
@settings(max_examples=examples(150), deadline=None)
def test_resuming_on_other_ranks_gives_exactly_the_rest(n, first, second, stop):
    before = [Shares(n, first[0], r, first[1]) for r in range(first[1])]
    stop = min(stop, len(before[0]))
    seen = [slot for step in range(stop) for s in before for slot in s.slots(step).tolist()]
    start = before[0].after(stop - 1) if stop else 0
    after = [Shares(n, second[0], r, second[1], pad=True, start=start) for r in range(second[1])]
    rest = [slot for step in range(len(after[0])) for s in after for slot in s.slots(step).tolist()]
    missing = n - len(seen)
    assert seen + rest[:missing] == list(range(n))


@given(
    n=st.integers(1, 300), kind=st.sampled_from([Shuffled, Windowed]), epoch=st.integers(0, 3),
    stopped=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(0, 20)), max_size=3),
    last=st.tuples(st.integers(1, 20), st.integers(1, 9)),
)  # fmt: skip
@settings(max_examples=examples(150), deadline=None)
def test_an_epoch_that_goes_on_and_on_with_other_ranks_has_every_sample_once(n, kind, epoch, stopped, last):
    order = kind(n, seed=5).at(epoch)
    seen, start = [], 0
    for batch_size, world, stop in [*stopped, (*last, n)]:
        ranks = [Shares(n, batch_size, rank, world, start=start) for rank in range(world)]
        (steps,) = {min(stop, len(shares)) for shares in ranks}
        for step in range(steps):
            assert all(len(shares.slots(step)) for shares in ranks)
            seen += [i for shares in ranks for i in order.indices(shares.slots(step)).tolist()]
        start = ranks[0].after(steps - 1)
    left_out = ranks[0].left_out
    assert left_out < world
    assert len(seen) == len(set(seen)) == n - left_out


def test_an_epoch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="drop_last needs 8 on each of 2 ranks, and 9 samples are there"):
        Shares(9, 8, world=2, drop_last=True).check_not_empty()
    with pytest.raises(UsageError, match="3 samples are there for 4 ranks"):
        Shares(3, 8, world=4).check_not_empty()


def test_weights_set_the_proportions():
    weights = np.array([0.0, 1.0, 3.0, 0.0] * 25_000)
    drawn = whole(Weighted(weights, seed=0)) % 4
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(shares, [0, 0.25, 0.75, 0], atol=0.006)


def test_weighted_draws_are_the_same_in_any_batch():
    order = Weighted(np.arange(1.0, 1001.0), seed=2)
    assert (order.at(4).indices(np.array([500, 7])) == whole(order, 4)[[500, 7]]).all()


@given(n=st.integers(0, 2000), middle=st.floats(0.01, 0.99))
@settings(max_examples=examples(60), deadline=None)
def test_splits_are_disjoint_and_complete(n: int, middle: float):
    one, two = Subset((n,), (0, middle)), Subset((n,), (middle, 1))
    members = [s.positions(np.arange(len(s), dtype=np.int64)).tolist() for s in (one, two)]
    assert len(members[0]) == round(n * middle)
    assert sorted(members[0] + members[1]) == list(range(n))


def test_a_split_is_spread_over_the_pack():
    part = Subset((10_000,), (0, 0.1))
    positions = part.positions(np.arange(len(part), dtype=np.int64))
    assert np.histogram(positions, bins=10, range=(0, 10_000))[0].min() > 60


def test_a_given_order_may_be_a_function_of_the_epoch():
    order = Given(lambda epoch: [epoch, epoch + 1], n=10)
    assert whole(order, 3).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0, 10], "position 10; this pack has positions 0 to 9"),
        ([-1], "position -1"),
        ([0.5], "float64"),
        ([[1]], "shape"),
    ],
)
def test_a_given_order_that_makes_no_sense_is_refused(given, words: str):
    with pytest.raises(UsageError, match=words):
        Given(given, n=10)


def test_orders_never_change_between_releases():
    assert permute(np.arange(6, dtype=np.int64), 1000, 12345).tolist() == FROZEN
