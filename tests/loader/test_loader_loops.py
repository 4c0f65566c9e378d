# SPDX-License-Identifier: Apache-2.0
"""What the training loops of frameworks ask of a loader, each in the order in which the framework asks it.

The frameworks themselves are tried in tests/slow/test_frameworks_loops.py.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from feedrate import Loader
from support.packs import write_numbers

N = 97


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("packs") / "numbers", N)


def open_loader(pack: Path, **options) -> Loader:
    return Loader(pack, 10, fields=("number",), output="numpy", threads=1, **options)


def numbers_of(batches) -> list[int]:
    return [int(n) for (numbers,) in batches for n in numbers]


def epoch_of(pack: Path, epoch: int) -> list[int]:
    with open_loader(pack) as loader:
        loader.set_epoch(epoch)
        return numbers_of(loader)


def state_after(pack: Path, batches: int) -> dict:
    with open_loader(pack) as loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        return loader.state_dict()


def test_the_length_of_a_resumed_epoch_counts_the_batches_of_before(pack: Path):
    # Lightning ends an epoch when it has counted so many, and the Trainer reckons steps and epochs with it.
    with open_loader(pack) as loader:
        loader.load_state_dict(state_after(pack, 4))
        assert len(loader) == 10
        assert len(iter(loader)) == 6
        assert len(loader) == 10


def test_the_length_on_several_ranks_is_that_of_each_rank(pack: Path):
    with open_loader(pack, rank=1, world_size=2) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 40})
        assert len(loader) == 5
        assert len(iter(loader)) == 3


def test_a_loader_says_its_batch_size(pack: Path):
    # Accelerate asks for it to set up DeepSpeed.
    with open_loader(pack) as loader:
        assert loader.batch_size == 10


def test_the_epoch_may_be_told_to_the_sampler_of_the_batch_sampler(pack: Path):
    # Lightning does, whatever the loader.
    with open_loader(pack) as loader:
        loader.batch_sampler.sampler.set_epoch(3)
        assert numbers_of(loader) == epoch_of(pack, 3)


def test_the_batch_sampler_says_the_batch_size(pack: Path):
    # The DeepSpeed strategy of Lightning asks it for its logs.
    with open_loader(pack) as loader:
        assert loader.batch_sampler.batch_size == 10


def test_a_loader_has_no_sampler(pack: Path):
    # Lightning takes one that has for a DataLoader whose shuffling it may turn off (overfit_batches).
    with open_loader(pack) as loader:
        assert not hasattr(loader, "sampler")


def test_an_iteration_that_has_given_nothing_goes_to_the_epoch_that_is_set(pack: Path):
    # Lightning begins an iteration, and only then sets the epoch that a checkpoint says.
    with open_loader(pack) as loader:
        iterator = iter(loader)
        loader.set_epoch(2)
        assert numbers_of(iterator) == epoch_of(pack, 2)
        assert loader.epoch == 3


def test_an_iteration_that_has_given_nothing_goes_where_a_loaded_state_says(pack: Path):
    with open_loader(pack) as loader:
        iterator = iter(loader)
        loader.load_state_dict(state_after(pack, 4))
        assert numbers_of(iterator) == epoch_of(pack, 0)[40:]


def test_an_iteration_moved_to_another_epoch_leaves_no_thread_behind(pack: Path):
    before = set(threading.enumerate())
    with open_loader(pack) as loader:
        iterator = iter(loader)
        loader.set_epoch(2)
        next(iterator)
    assert set(threading.enumerate()) <= before


def test_setting_the_epoch_that_is_begun_keeps_the_state_in_step(pack: Path):
    with open_loader(pack) as loader:
        iterator = iter(loader)
        loader.set_epoch(0)
        next(iterator)
        assert loader.state_dict()["samples"] == 10


def test_setting_the_epoch_after_a_resumed_iteration_has_begun_keeps_its_place(pack: Path):
    with open_loader(pack) as loader:
        loader.load_state_dict(state_after(pack, 4))
        iterator = iter(loader)
        loader.set_epoch(0)
        assert numbers_of(iterator) == epoch_of(pack, 0)[40:]


def test_a_checkpoint_of_the_last_batch_leads_to_the_epoch_that_is_set(pack: Path):
    # Lightning counts such an epoch as done, and takes batches of the next from the iteration it has begun.
    with open_loader(pack) as loader:
        loader.load_state_dict(state_after(pack, 10))
        iterator = iter(loader)
        loader.set_epoch(1)
        assert numbers_of(iterator) == epoch_of(pack, 1)


def test_an_iteration_over_nothing_stays_at_its_end(pack: Path):
    # The Trainer asks again and again, up to the number of steps of a whole epoch.
    with open_loader(pack) as loader:
        loader.load_state_dict(state_after(pack, 10))
        iterator = iter(loader)
        assert [next(iterator, None) for _ in range(3)] == [None] * 3
        assert loader.epoch == 1


def test_who_asks_for_the_dataset_to_skip_batches_once_more_is_told_what_to_do_instead(pack: Path):
    # skip_first_batches of Accelerate does, also when the Trainer calls it.
    with open_loader(pack) as loader:
        with pytest.raises(AttributeError, match="ignore_data_skip=True; Accelerate: no skip_first_batches"):
            _ = loader.dataset
        assert not hasattr(loader, "dataset")
