# SPDX-License-Identifier: Apache-2.0
"""An epoch's end is no pause: the first batches of the next one are made before it is begun."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Cache, Loader, RandomResizedCrop, View
from feedrate.errors import BadSample
from feedrate.loader.batch import Assembler, Batch
from feedrate.loader.device.transfer import Placement
from support.contracts import spoil_sample
from support.packs import write_images
from support.range_server import RangeServer
from support.waiting import await_makers

COUNT = 26  # seven batches of four, the last of two


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", count=COUNT)


def make_loader(pack: Path, **options: Any) -> Loader:
    given = {"image": RandomResizedCrop(8), "flip": True, "seed": 5, "prefetch": 2, "output": "numpy"}
    return Loader(pack, 4, fields=("image", "label", "number"), **{**given, **options})


def load_epoch(pack: Path, epoch: int, **options: Any) -> list[Any]:
    """Return an epoch's batches, of a loader that makes no other epoch's."""
    with make_loader(pack, **options) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def assert_equal(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(value, wanted)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the epochs of all batches that are made, one by one."""
    epochs: list[int] = []
    make = Assembler.make

    def note(self: Assembler, epoch: int, *rest: Any) -> Batch:
        epochs.append(epoch)
        return make(self, epoch, *rest)

    monkeypatch.setattr(Assembler, "make", note)
    return epochs


@pytest.mark.parametrize("prefetch", [1, 2, 5, 40])
def test_as_many_batches_as_are_prefetched_are_made_ahead(pack: Path, made: list[int], prefetch: int) -> None:
    with make_loader(pack, prefetch=prefetch) as loader:
        list(loader)
        await_makers(loader)
        assert made.count(0) == 7
        assert made.count(1) == min(prefetch, 7)
        list(loader)
        assert made.count(1) == 7


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"order": "windowed"},
        {"order": [3, 1, 4, 1, 5, 9, 2, 6]},
        {"weights": [1.0] * 10 + [3.0] * 16},
        {"drop_last": True},
        {"split": (0, 0.5)},
        {"rank": 1, "world_size": 3, "pad": True},
        {"threads": 1, "prefetch": 9},
    ],
    ids=str,
)
def test_batches_that_were_made_ahead_are_those_of_their_epoch(pack: Path, options: dict[str, Any]) -> None:
    with make_loader(pack, **options) as loader:
        for epoch in range(4):
            assert loader.epoch == epoch
            batches = list(loader)
            if epoch % 2:
                await_makers(loader)
            assert_equal(batches, load_epoch(pack, epoch, **options))


def test_short_epochs_follow_each_other_too(pack: Path) -> None:
    with make_loader(pack, order=[7, 8], prefetch=4) as loader:
        assert [number.tolist() for _ in range(5) for _, _, number in loader] == [[7, 8]] * 5


def test_another_epoch_that_is_set_comes_in_the_place_of_the_next(pack: Path) -> None:
    with make_loader(pack) as loader:
        list(loader)
        await_makers(loader)
        loader.set_epoch(7)
        assert_equal(list(loader), load_epoch(pack, 7))
        assert_equal(list(loader), load_epoch(pack, 8))


def test_an_epoch_that_is_set_after_the_iteration_began_comes_too(pack: Path) -> None:
    with make_loader(pack) as loader:
        list(loader)
        batches = iter(loader)
        loader.set_epoch(4)
        assert_equal(list(batches), load_epoch(pack, 4))


def test_a_state_counts_nothing_that_was_made_ahead(pack: Path) -> None:
    with make_loader(pack) as loader:
        list(loader)
        await_makers(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"], state["skipped"]) == (1, 0, 0)


def test_a_state_that_is_loaded_comes_in_the_place_of_the_next_epoch(pack: Path) -> None:
    with make_loader(pack) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
        await_makers(loader)
        loader.load_state_dict(state)
        assert_equal(list(loader), rest)
        assert_equal(list(loader), load_epoch(pack, 1))


def test_an_epoch_that_was_left_early_is_followed_by_the_next_from_its_beginning(
    pack: Path, made: list[int]
) -> None:
    with make_loader(pack) as loader:
        for _ in range(2):
            for _ in loader:
                break
        assert set(made) == {0, 1}
        assert_equal(list(loader), load_epoch(pack, 2))


def test_a_loop_that_counts_its_batches_finds_the_next_epoch_made(pack: Path, made: list[int]) -> None:
    with make_loader(pack) as loader:
        for _, _ in zip(range(len(loader)), loader, strict=False):
            pass
        await_makers(loader)
        assert made.count(1) == 2
        assert_equal(list(loader), load_epoch(pack, 1))
        assert made.count(1) == 2 * 7 - 2 + 2, "here, and by the loader that is compared with"


def test_an_iterator_that_gave_all_it_had_does_not_end_the_one_after_it(pack: Path) -> None:
    with make_loader(pack) as loader:
        old = iter(loader)
        for _ in range(len(loader)):
            next(old)
        new = iter(loader)
        del old
        gc.collect()
        assert_equal(list(new), load_epoch(pack, 1))


def test_statistics_are_of_batches_that_were_taken(pack: Path) -> None:
    with make_loader(pack) as loader:
        list(loader)
        await_makers(loader)
        stats = loader.stats()
        assert (stats.batches, stats.samples) == (7, COUNT)
        assert {stage.batches for stage in stats.stages if stage.batches} == {7}
        one = stats.bytes_read
        list(loader)
        await_makers(loader)
        stats = loader.stats()
        assert (stats.batches, stats.samples, stats.bytes_read) == (14, 2 * COUNT, 2 * one)


def test_bad_samples_are_told_when_their_batch_is_taken(pack: Path) -> None:
    spoil_sample(pack, 3)
    told: list[BadSample] = []
    with make_loader(pack, on_bad_sample=told.append) as loader:
        for epoch in range(3):
            list(loader)
            await_makers(loader)
            assert len(told) == loader.stats().bad_samples == epoch + 1


def fail_once(monkeypatch: pytest.MonkeyPatch, epoch: int) -> Callable[[], bool]:
    """Let the first batch of an epoch fail, the first time it is made; return whether it did."""
    make, failed = Assembler.make, threading.Event()

    def fail(self: Assembler, number: int, *rest: Any) -> Batch:
        if number == epoch and not failed.is_set():
            failed.set()
            raise OSError("gone for a moment")
        return make(self, number, *rest)

    monkeypatch.setattr(Assembler, "make", fail)
    return failed.is_set


def test_what_fails_ahead_is_tried_again_when_its_epoch_is_begun(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_epoch(pack, 1)
    has_failed = fail_once(monkeypatch, 1)
    with make_loader(pack) as loader:
        assert len(list(loader)) == 7
        await_makers(loader)
        assert has_failed()
        assert_equal(list(loader), expected)


def test_an_error_ahead_is_raised_in_its_own_epoch_alone(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Assembler.make

    def fail(self: Assembler, number: int, *rest: Any) -> Batch:
        if number == 1:
            raise OSError("gone for good")
        return make(self, number, *rest)

    monkeypatch.setattr(Assembler, "make", fail)
    with make_loader(pack) as loader:
        assert len(list(loader)) == 7
        with pytest.raises(OSError, match="for good"):
            list(loader)
        loader.set_epoch(2)
        assert len(list(loader)) == 7


def test_a_function_of_the_users_gets_no_sample_ahead_of_its_epoch(pack: Path) -> None:
    got: list[int] = []

    def note(sample: dict[str, Any]) -> int:
        got.append(int(sample["number"]))
        return 0

    with make_loader(pack, transform=note) as loader:
        list(loader)
        await_makers(loader)
        assert sorted(got) == list(range(COUNT))


def test_a_function_on_the_batch_sees_no_batch_ahead_of_its_epoch(pack: Path) -> None:
    pytest.importorskip("torch")
    seen: list[int] = []

    def note(images: Any) -> Any:
        seen.append(len(images))
        return images

    with make_loader(pack, on_device=[note], output="torch") as loader:
        list(loader)
        await_makers(loader)
        assert sum(seen) == COUNT


def test_an_order_that_is_a_function_is_asked_when_its_epoch_begins(pack: Path) -> None:
    hard = [0, 1, 2]
    with make_loader(pack, order=lambda _: hard) as loader:
        list(loader)
        await_makers(loader)
        hard = [4, 5]
        assert [number.tolist() for _, _, number in loader] == [[4, 5]]


def test_a_cache_is_full_before_batches_are_made_of_it(pack: Path) -> None:
    with make_loader(pack, cache=Cache("64MB")) as loader:
        list(loader)
        assert loader.stats().cache.hits == 0
        for _ in range(3):
            list(loader)
            await_makers(loader)
            cache = loader.stats().cache
            assert (cache.hits, cache.misses) == (COUNT, 0)


def test_other_cores_begin_the_epoch_anew(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_loader(pack) as loader:
        list(loader)
        before = loader._resources.run
        monkeypatch.setattr("feedrate.loader.iteration.count_rank_cores", lambda _: 3)
        assert_equal(list(loader), load_epoch(pack, 1))
        assert loader._resources.run is not before


def test_another_place_for_batches_begins_the_epoch_anew(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As when another GPU is the current one now, or when CUDA has begun, so that batches are to be pinned.
    class There(Placement):
        pass

    with make_loader(pack) as loader:
        list(loader)
        before = loader._resources.run
        monkeypatch.setattr("feedrate.loader.iteration.choose_placement", lambda *_, **__: There())
        assert_equal(list(loader), load_epoch(pack, 1))
        assert loader._resources.run is not before


def test_batches_of_a_remote_pack_follow_over_the_epochs_end(
    served_pack: Path, pack_server: RangeServer
) -> None:
    with Loader(f"{pack_server.url}/pack", 7, output="numpy", seed=2) as loader:
        for epoch in range(4):
            with Loader(served_pack, 7, output="numpy", seed=2) as local:
                local.set_epoch(epoch)
                assert_equal(list(loader), list(local))


def test_views_and_kept_batches_stay_valid_over_the_epochs_end(pack: Path) -> None:
    fields = ("image", View("image", size=5, name="small"))
    with Loader(pack, 4, fields=fields, image=RandomResizedCrop(8), output="numpy") as loader:
        kept = [batch for _ in range(3) for batch in loader]
        copies = [[value.copy() for value in batch] for batch in kept]
        list(loader)
        assert_equal(kept, copies)


def test_no_memory_remains_of_what_was_made_ahead(pack: Path) -> None:
    loader = make_loader(pack)
    deque(loader, maxlen=0)
    await_makers(loader)
    ring = loader._resources.rings["image"]
    assert ring.made - len(ring._free) == 2, "the batches that wait"
    loader.close()
    assert len(ring._free) == ring.made


def test_a_run_that_is_over_is_gone_with_all_it_had(pack: Path) -> None:
    with make_loader(pack) as loader:
        list(loader)
        await_makers(loader)
        gone = weakref.ref(loader._resources.run)
        loader.set_epoch(5)
        next(iter(loader))
        assert gone() is None


def test_a_loader_that_is_dropped_after_an_epoch_takes_its_batches_along(pack: Path) -> None:
    loader = make_loader(pack)
    list(loader)
    makers = loader._resources.run._feed._makers  # type: ignore[union-attr]
    gone = weakref.ref(loader._resources.run)
    del loader
    gc.collect()  # a batch that was interrupted ended in an error, which has its frames
    assert gone() is None
    assert not [maker for maker in makers if maker.is_alive()]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_the_epoch_for_itself(pack: Path) -> None:
    expected = load_epoch(pack, 1)
    with make_loader(pack) as loader:
        list(loader)
        await_makers(loader)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert_equal(list(loader), expected)
                loader.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_equal(list(loader), expected)
