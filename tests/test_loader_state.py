# SPDX-License-Identifier: Apache-2.0
"""Epochs, and going on where one stopped: also on another number of ranks, with another batch size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedrate import Loader, RandomResizedCrop
from feedrate.errors import UsageError
from packs import write_images, write_numbers

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
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_resuming_in_mid_epoch_gives_the_remaining_samples(pack: Path, batch, stop, then, world, order):
    with open_loader(pack, batch, order=order, seed=4) as loader:
        iterator = iter(loader)
        seen = numbers_of([next(iterator) for _ in range(min(stop, len(loader)))])
        state = json.loads(json.dumps(loader.state_dict()))
    rest = []
    for rank in range(world):
        with open_loader(pack, then, order=order, seed=4, rank=rank, world_size=world, pad=True) as loader:
            loader.load_state_dict(state)
            expected = len(loader)
            batches = list(loader)
            assert len(batches) == expected
            assert loader.epoch == 1
            rest.append(batches)
    together = [n for step in zip(*rest, strict=True) for rank in step for n in rank[0].tolist()]
    assert sorted(seen + together[: N - len(seen)]) == list(range(N))


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


def test_ranks_come_from_torch_distributed_once_it_is_there(pack: Path, monkeypatch: pytest.MonkeyPatch):
    import torch.distributed

    with open_loader(pack, batch_size=5) as loader:
        assert len(loader) == 20
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
        assert len(loader) == 5
        assert len(numbers_of(loader)) in (24, 25)
