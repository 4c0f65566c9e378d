# SPDX-License-Identifier: Apache-2.0
"""A batch that is kept stays valid; a buffer is used again only when nobody can see it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import Loader
from feedrate.loader.batch import Ring
from support.examples import examples
from support.packs import write_images

torch = pytest.importorskip("torch", reason="torch is not installed")

KEEPERS = {
    "slice": lambda array: array[1:3, :2],
    "reversed view": lambda array: array[::-1].T,
    "dtype view": lambda array: array.view(np.int8),
    "torch": torch.from_numpy,
    "torch slice": lambda array: torch.from_numpy(array)[1].permute(1, 0),
    "dlpack": lambda array: torch.from_dlpack(array)[2:],
    "memoryview": memoryview,
    "numpy of torch": lambda array: torch.from_numpy(array)[1:].numpy(),
    "chain": lambda array: array[1:][1:].reshape(-1)[5:],
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS.keys())
def test_any_kept_view_keeps_the_buffer(keep):
    ring = Ring((4, 3, 3), spare=2)
    array = ring.lend(4)
    array[:] = 7
    kept = keep(array)
    del array
    other = ring.lend(4)
    other[:] = 9
    assert ring.made == 2
    assert np.asarray(kept).min() == np.asarray(kept).max() == 7
    del kept
    ring.lend(4)
    assert ring.made == 2


def test_a_dropped_buffer_is_used_again():
    ring = Ring((4, 3), spare=2)
    for count in (4, 2, 1, 4):
        assert ring.lend(count).shape == (count, 3)
    assert ring.made == 1


def test_the_ring_grows_for_kept_buffers_and_shrinks_afterwards():
    ring = Ring((4, 3), spare=2)
    kept = [ring.lend(4) for _ in range(10)]
    assert ring.made == 10
    kept.clear()
    assert len(ring._free) == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_no_two_live_batches_ever_share_memory(steps: list[tuple[bool, int]]):
    ring, live = Ring((3, 5), spare=2), []
    for number, (lend, which) in enumerate(steps):
        if lend:
            array = ring.lend(3)
            array[:] = number
            live.append((number, array[which % 3 :] if which % 2 else torch.from_numpy(array)))
        elif live:
            live.pop(which % len(live))
        assert all((np.asarray(view) == written).all() for written, view in live)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_kept_batches_stay_as_they_were(tmp_path: Path, output):
    pack = write_images(tmp_path / "pack", count=60)
    with Loader(pack, 4, shuffle=False, prefetch=2, output=output) as loader:
        kept, copies = [], []
        for images, _ in loader:
            copies.append(np.from_dlpack(images).copy())
            if random.random() < 0.6:
                kept.append((len(copies) - 1, images[1:]))
    assert all((np.from_dlpack(images) == copies[i][1:]).all() for i, images in kept)


def test_a_consumer_that_keeps_nothing_costs_a_few_buffers(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=60)
    with Loader(pack, 2, prefetch=3) as loader:
        for _ in range(3):
            for images, _ in loader:
                del images
        assert loader._resources.rings["image"].made <= 3 + 2
