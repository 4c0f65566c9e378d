# SPDX-License-Identifier: Apache-2.0
"""Epochs, and going on where one stopped: also on another number of ranks, with another batch size."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedrate import Loader, RandomResizedCrop
from feedrate.errors import UsageError
from support.examples import examples
from support.packs import write_images, write_numbers

N = 97


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("packs") / "numbers", N, shards=3)


def open_loader(pack: Path, batch_size: int = 10, **options) -> Loader:
    return Loader(pack, batch_size, fields=("number",), output="numpy", threads=1, **options)


def numbers_of(batches) -> list[int]:
    return [int(n) for (numbers,) in batches for n in numbers]


def test_each_iteration_is_the_next_epoch(pack: Path):
    with open_loader(pack) as loader:
        epochs = []
        for expected in range(3):
            assert loader.epoch == expected
            epochs.append(numbers_of(loader))
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_set_epoch_gives_that_epoch_again(pack: Path):
    with open_loader(pack) as loader:
        first = numbers_of(loader)
        numbers_of(loader)
        loader.set_epoch(0)
        assert numbers_of(loader) == first


def test_an_epoch_left_early_is_not_given_again(pack: Path):
    # `for step, batch in enumerate(loader): if step == 100: break` must not train on the same 100 batches.
    with open_loader(pack) as loader:
        first = next(iter(loader))[0].tolist()
        assert next(iter(loader))[0].tolist() != first
        assert loader.epoch == 1


def test_an_iteration_that_gave_nothing_uses_up_no_epoch(pack: Path):
    with open_loader(pack) as loader:
        iter(loader)
        iter(loader)
        assert loader.epoch == 0


def test_set_epoch_in_mid_iteration_counts_for_the_next_one(pack: Path):
    with open_loader(pack) as loader:
        iterator = iter(loader)
        got = numbers_of([next(iterator)])
        loader.set_epoch(7)
        assert sorted(got + numbers_of(iterator)) == list(range(N))
        assert loader.epoch == 7


@pytest.mark.parametrize("epoch", [-1, 1.5, True])
def test_an_epoch_must_be_a_whole_number_from_zero_on(pack: Path, epoch):
    with open_loader(pack) as loader, pytest.raises(UsageError, match="epoch must be"):
        loader.set_epoch(epoch)


@given(
    batch=st.integers(1, 30), stop=st.integers(0, 12), then=st.integers(1, 30), world=st.integers(1, 5),
    order=st.sampled_from([None, "windowed"]),
)  # fmt: skip
@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_resuming_in_mid_epoch_gives_the_remaining_samples(pack: Path, batch, stop, then, world, order):
    with open_loader(pack, batch, order=order, seed=4) as loader:
        iterator = iter(loader)
        seen = numbers_of([next(iterator) for _ in range(min(stop, len(loader)))])
        state = json.loads(json.dumps(loader.state_dict()))
    rest = []
    for rank in range(world):
        with open_loader(pack, then, order=order, seed=4, rank=rank, world_size=world, pad=True) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            expected = len(iterator)
            batches = list(iterator)
            assert len(batches) == expected
            assert loader.epoch == 1
            rest.append(batches)
    together = [n for step in zip(*rest, strict=True) for rank in step for n in rank[0].tolist()]
    assert sorted(seen + together[: N - len(seen)]) == list(range(N))


def open_ranks(pack: Path, n: int, batch: int, world: int, state: dict | None = None) -> list[Loader]:
    ranks = [
        open_loader(pack, batch, order=list(range(n)), rank=rank, world_size=world) for rank in range(world)
    ]
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
    return ranks


def give_all(ranks: list[Loader]) -> list[list[list[int]]]:
    """Return the samples of each rank's batches, and close the loaders."""
    given_batches = []
    for loader in ranks:
        with loader:
            iterator = iter(loader)
            expected = len(iterator)
            given_batches.append([numbers.tolist() for (numbers,) in iterator])
            assert len(given_batches[-1]) == expected
    return given_batches


def samples_of(ranks: list[list[list[int]]]) -> list[int]:
    return sorted(n for batches in ranks for batch in batches for n in batch)


@given(world=st.integers(1, 6), batch=st.integers(1, 9), n=st.integers(1, N), stop=st.integers(0, 9))
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_sample_comes_once_on_equally_many_batches_whatever_the_ranks(pack, world, batch, n, stop):
    n = max(n, world)
    whole = give_all(open_ranks(pack, n, batch, world))
    assert len({len(batches) for batches in whole}) == 1
    assert samples_of(whole) == list(range(n))
    sizes = [len(one) for batches in whole for one in batches]
    assert min(sizes) >= 1
    assert max(sizes) <= (batch if batch > 1 else 2)
    for step in zip(*whole, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1
    # A state of any rank, taken anywhere, leads to the batches that were due.
    stop = min(stop, len(whole[0]))
    with open_ranks(pack, n, batch, world)[-1] as loader:
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = loader.state_dict()
    rest = give_all(open_ranks(pack, n, batch, world, state))
    assert rest == [batches[stop:] for batches in whole]


@given(
    n=st.integers(9, N), remaining=st.integers(0, 30), batch=st.integers(1, 9), world=st.integers(1, 9),
)  # fmt: skip
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_resume_on_other_ranks_gives_the_rest_or_says_that_it_is_left_out(pack, n, remaining, batch, world):
    remaining = min(n, remaining)
    with open_ranks(pack, n, 1, 1)[0] as loader:
        state = {**loader.state_dict(), "samples": n - remaining}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ranks = open_ranks(pack, n, batch, world, state)
        rest = samples_of(give_all(ranks))
    left_out = remaining if remaining < world else 0
    assert rest == ([] if left_out else list(range(n - remaining, n)))
    assert [loader.stats().left_out for loader in ranks] == [left_out] * world
    assert len(said) == (left_out > 0)


@given(
    first=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    then=st.tuples(st.integers(1, 9), st.integers(1, 5)),
    n=st.integers(5, N), stop=st.integers(0, 12), saving=st.integers(0, 4),
)  # fmt: skip
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ranks_that_stop_anywhere_are_followed_by_any_others_from_the_state_of_one(
    pack, first, then, n, stop, saving
):
    seen, states = [], []
    for loader in open_ranks(pack, n, *first):
        with loader:
            iterator = iter(loader)
            seen += numbers_of([next(iterator) for _ in range(min(stop, len(iterator)))])
            states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rest = give_all(open_ranks(pack, n, *then, json.loads(states[saving % len(states)])))
    assert len({len(batches) for batches in rest}) == 1
    left = n - len(seen)
    together = seen + samples_of(rest)
    assert len(together) == len(set(together)) == n - (left if left < then[1] else 0)


def test_images_of_a_last_batch_of_two_are_whole_with_a_batch_size_of_one(tmp_path: Path):
    pack = write_images(tmp_path / "images", count=5)
    with Loader(pack, 5, shuffle=False, output="numpy") as loader:
        expected = next(iter(loader))[0]
    with Loader(pack, 1, shuffle=False, output="numpy", rank=1, world_size=3) as loader:
        (images, labels), *others = loader
    assert not others
    assert labels.tolist() == [2, 0]
    np.testing.assert_array_equal(images, expected[2:4])


def test_a_state_saved_before_the_tail_was_spread_is_loadable(pack: Path):
    # 97 samples on 4 ranks of 8: three global batches were given, and one sample was left.
    with open_loader(pack, 8, rank=0, world_size=4) as loader:
        state = {**loader.state_dict(), "samples": 96}
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match=r"1 sample of epoch 0: fewer than there are ranks \(4\)"):
            assert list(loader) == []
        assert loader.epoch == 1
        assert len(numbers_of(loader)) in (24, 25)


def test_fewer_samples_than_ranks_in_a_later_epoch_is_an_error(pack: Path):
    with open_loader(pack, 2, order=lambda epoch: range(8 - 5 * epoch), rank=0, world_size=4) as loader:
        assert len(numbers_of(loader)) == 2
        with pytest.raises(UsageError, match="3 samples are there for 4 ranks"):
            iter(loader)


def test_the_epoch_after_a_resumed_one_is_whole(pack: Path):
    with open_loader(pack) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = numbers_of(iterator)
        following = numbers_of(loader)
    with open_loader(pack) as loader:
        loader.load_state_dict(state)
        assert numbers_of(loader) == rest
        assert len(loader) == 10
        assert numbers_of(loader) == following


def test_set_epoch_of_the_epoch_that_was_resumed_keeps_the_position(pack: Path):
    with open_loader(pack) as loader:
        loader.set_epoch(2)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = numbers_of(iterator)
        following = numbers_of(loader)
    with open_loader(pack) as loader:
        loader.load_state_dict(state)
        epochs = []
        for epoch in range(2, 4):  # the loop everybody has
            loader.set_epoch(epoch)
            epochs.append(numbers_of(loader))
        assert epochs == [rest, following]
        loader.set_epoch(2)  # the position was used: the epoch begins anew
        assert len(numbers_of(loader)) == N


def test_a_resumed_position_is_kept_until_a_batch_was_given(pack: Path):
    with open_loader(pack) as loader:
        state = {**loader.state_dict(), "epoch": 1, "samples": 90}
        loader.load_state_dict(state)
        loader.set_epoch(1)
        iter(loader)
        loader.set_epoch(1)  # a framework and its user may both call it
        assert len(next(iter(loader))[0]) == 7
        loader.set_epoch(1)
        assert len(loader) == 10


def test_set_epoch_of_another_epoch_drops_the_resumed_position(pack: Path):
    with open_loader(pack) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 90})
        loader.set_epoch(1)
        assert len(loader) == 10
        loader.set_epoch(0)
        assert len(loader) == 10


def test_state_counts_what_was_given_and_not_what_was_prefetched(pack: Path):
    with open_loader(pack, prefetch=5) as loader:
        iterator = iter(loader)
        for given_batches in range(1, 4):
            next(iterator)
            assert loader.state_dict()["samples"] == 10 * given_batches


def test_state_after_leaving_the_loop_is_where_it_was_left(pack: Path):
    with open_loader(pack) as loader:
        for _ in loader:
            break
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (0, 10)


def test_resumed_images_are_those_that_were_due(tmp_path: Path):
    pack = write_images(tmp_path / "images", count=30, side=None)
    options = {"image": RandomResizedCrop(8), "flip": True, "output": "numpy"}
    with Loader(pack, 10, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        due = np.concatenate([images for images, _ in iterator])
    with Loader(pack, 5, **options) as loader:
        loader.load_state_dict(state)
        np.testing.assert_array_equal(np.concatenate([images for images, _ in loader]), due)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, "the state has another seed: 0 there, 1 here"),
        ({"order": "windowed"}, "another kind of order: 'shuffled' there, 'windowed' here"),
        ({"shuffle": False}, "another kind of order"),
        ({"split": (0, 0.5)}, r"is of another split: None there, \[0.0, 0.5\] here"),
    ],
)
def test_a_state_of_other_settings_is_refused(pack: Path, options: dict, words: str):
    with open_loader(pack) as loader:
        state = loader.state_dict()
    with open_loader(pack, **options) as loader, pytest.raises(UsageError, match=words):
        loader.load_state_dict(state)


def test_a_state_of_other_weights_or_positions_is_refused(pack: Path):
    for name, values in (("weights", (np.ones(N), np.arange(N))), ("order", ([1, 2], [2, 1]))):
        with open_loader(pack, **{name: values[0]}) as loader:
            state = loader.state_dict()
        with (
            open_loader(pack, **{name: values[1]}) as loader,
            pytest.raises(UsageError, match="other weights, positions or window sizes"),
        ):
            loader.load_state_dict(state)


def test_a_state_of_another_pack_is_refused(pack: Path, tmp_path: Path):
    with open_loader(write_numbers(tmp_path / "other", 96)) as loader:
        state = loader.state_dict()
    with open_loader(pack) as loader, pytest.raises(UsageError, match="was taken from another pack: '96-"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2; this feedrate reads version 1"),
        ({"samples": -3}, "damaged: epoch 0, samples -3"),
        ({"samples": 98}, "has given 98 samples of an epoch that holds 97"),
    ],
)
def test_a_damaged_state_is_refused(pack: Path, change: dict, words: str):
    with open_loader(pack) as loader, pytest.raises(UsageError, match=words):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_what_is_no_state_is_refused(pack: Path):
    with (
        open_loader(pack) as loader,
        pytest.raises(UsageError, match="not the state of a feedrate Loader: it lacks"),
    ):
        loader.load_state_dict({"epoch": 1})
