# SPDX-License-Identifier: Apache-2.0
"""Images that are kept on a GPU, with kernels that run on the CPU: crops are those of the CPU path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import SAMPLINGS, make_jpeg, random_box

from cuda_on_cpu import Case, Emulator, aligned, look
from feedrate import kernel
from feedrate.filters import FILTERS
from feedrate.kernel.cuda import batch

NOT_MADE = 77


@pytest.fixture(scope="module")
def launch(library: Path) -> Emulator:
    return Emulator(library)


def store(pixels: list[Any]) -> Any:
    """Return where images lie that the "device" keeps: H x W, or H x W x 3; and hold them there."""
    rows = [(one.ctypes.data, one.shape[1], one.shape[0], 1 if one.ndim == 2 else 3) for one in pixels]
    return np.array(rows, batch.IMAGE)


def crop(launch: Emulator, images: Any, size: tuple[int, int], channels: int, **how: Any) -> tuple[Any, Any]:
    plan = batch.plan_crops(images, size=size, samples=np.arange(len(images)), **how)
    buffers = {name: aligned(count) for name, count in plan.buffer_bytes().items()}
    buffers["staged"][: len(plan.staged)] = plan.staged
    out, statuses = (
        np.full((len(images), *size, channels), NOT_MADE, np.uint8),
        np.full(len(images), -1, np.int32),
    )
    batch.run_crops(plan, launch, buffers, out, statuses, channels)
    return out, statuses


@pytest.mark.parametrize("size", [(7, 33), (40, 24), (1, 1), (64, 90), (52, 52)])
@pytest.mark.parametrize("channels", [3, 1])
def test_random_crops_with_every_filter_are_those_of_the_cpu_path(
    launch: Emulator, size: tuple[int, int], channels: int
) -> None:
    rng = np.random.default_rng(size[0] + channels)
    mode = "RGB" if channels == 3 else "L"
    pixels, wanted, boxes, flips, filters = [], [], [], [], []
    for i in range(60):
        width, height = (int(n) for n in rng.integers(1, 140, 2))
        data = make_jpeg(width, height, str(rng.choice(SAMPLINGS)), seed=i)
        box, flip, filter_ = random_box(rng, width, height), bool(rng.integers(2)), i % 6
        if (
            i % 5 == 0 and width >= size[1] and height >= size[0]
        ):  # pixels as they are, in one direction or both
            box = (width - size[1], height - size[0], width, height)
        whole = kernel.decode_one(data, mode=mode)
        is_gray = channels == 1 or not (whole != whole[..., :1]).any()
        pixels.append(np.ascontiguousarray(whole[..., 0]) if is_gray else whole)
        wanted.append(kernel.decode_one(data, box=box, size=size, flip=flip, mode=mode, filter_=filter_))
        boxes.append(box), flips.append(flip), filters.append(filter_)
    how = {
        "boxes": np.array(boxes, np.int32),
        "flips": np.array(flips),
        "filters": np.array(filters, np.uint8),
    }
    out, statuses = crop(launch, store(pixels), size, channels, **how)
    assert set(statuses.tolist()) <= {0, 16}
    assert all(filter_ in batch.BY_SINE for filter_, status in zip(filters, statuses, strict=True) if status)
    assert (statuses == 0).sum() > 50
    for i in np.flatnonzero(statuses == 0):
        assert np.array_equal(out[i], wanted[i]), (boxes[i], filters[i], flips[i])
    assert not out[statuses != 0].any()


def test_crops_do_not_depend_on_the_number_of_threads(library: Path) -> None:
    rng = np.random.default_rng(2)
    pixels = [rng.integers(0, 256, (30 + 9 * i, 70 - 5 * i, 3), np.uint8) for i in range(6)]
    how = {
        "boxes": np.array([random_box(rng, one.shape[1], one.shape[0]) for one in pixels], np.int32),
        "flips": np.arange(6) % 2 == 0,
        "filters": np.arange(6, dtype=np.uint8),
    }
    alone, several = (crop(Emulator(library, n), store(pixels), (12, 17), 3, **how) for n in (1, 5))
    assert np.array_equal(alone[0], several[0])
    assert np.array_equal(alone[1], several[1])


@pytest.mark.parametrize("before_13", [False, True])
def test_the_order_of_passes_is_that_of_the_planner_for_decoding(launch: Emulator, before_13: bool) -> None:
    rng = np.random.default_rng(5)
    for size in ((24, 60), (60, 24), (30, 30)):
        for filter_ in FILTERS.values():
            width, height = (int(n) for n in rng.integers(20, 160, 2))
            data = make_jpeg(width, height, SAMPLINGS[0], seed=filter_)
            entries = kernel.scan(data, 100).entries
            case = Case(data, entries, random_box(rng, width, height), False, filter_)
            plan = batch.BatchPlan()
            taken = look(plan, [case], size, before_13=before_13)
            assert taken.all()
            buffers = {name: aligned(count) for name, count in plan.buffer_bytes().items()}
            plan.fill(buffers["staged"])
            buffers["words"] = plan.words
            decoded, statuses = np.zeros((1, *size, 3), np.uint8), np.zeros(1, np.int32)
            batch.run(plan, launch, buffers, decoded, statuses)
            whole = kernel.decode_one(data)
            out, again = crop(
                launch, store([whole]), size, 3, boxes=np.array([case.box], np.int32),
                flips=np.zeros(1, bool), filters=np.array([filter_], np.uint8), before_13=before_13,
            )  # fmt: skip
            assert again.tolist() == statuses.tolist()
            assert np.array_equal(out, decoded)


@pytest.mark.parametrize("channels", [3, 1])
def test_images_that_are_decoded_whole_are_stored_with_a_byte_per_channel(
    launch: Emulator, channels: int
) -> None:
    rng = np.random.default_rng(channels)
    cases = []
    for i, sampling in enumerate([*SAMPLINGS, *SAMPLINGS]):
        width, height = (int(n) for n in rng.integers(1, 150, 2))
        data = make_jpeg(width, height, sampling, seed=i)
        cases.append(
            Case(data, kernel.scan(data, 60).entries, (0, 0, width, height), False, FILTERS["nearest"])
        )
    plan = batch.BatchPlan()
    taken = look(plan, cases, (1, 1))
    assert taken.all()
    buffers = {name: aligned(count) for name, count in plan.buffer_bytes().items()}
    plan.fill(buffers["staged"])
    buffers["words"] = plan.words
    wanted, rooms = [], []
    for case, components in zip(cases, plan.components(len(cases)).tolist(), strict=True):
        pixels = kernel.decode_one(case.data, mode="RGB" if channels == 3 else "L")
        wanted.append(pixels[..., :1] if components == 1 else pixels)
        rooms.append(np.full(wanted[-1].size + 1, NOT_MADE, np.uint8))
    assert {1, 3} == set(plan.components(len(cases)).tolist())
    addresses = np.array([room.ctypes.data for room in rooms], np.int64)
    addresses[3] = 0
    statuses = np.full(len(cases), -1, np.int32)
    batch.run_whole(plan, launch, buffers, addresses, statuses, channels)
    assert not statuses.any()
    for i, (room, pixels) in enumerate(zip(rooms, wanted, strict=True)):
        assert room[-1] == NOT_MADE
        assert np.array_equal(room[:-1], np.full_like(room[:-1], NOT_MADE) if i == 3 else pixels.reshape(-1))


@pytest.mark.parametrize("box", [(0, 0, 11, 5), (0, 0, 5, 9), (-1, 0, 5, 5), (3, 3, 3, 5), (0, 4, 5, 2)])
def test_a_box_that_is_not_inside_of_its_image_is_no_plan(box: tuple[int, int, int, int]) -> None:
    images = np.array([(256, 10, 8, 3)], batch.IMAGE)
    with pytest.raises(ValueError, match="inside of their images"):
        batch.plan_crops(
            images, boxes=np.array([box], np.int32), flips=np.zeros(1, bool), filters=np.full(1, 2, np.uint8),
            size=(4, 4), samples=np.zeros(1, np.int64),
        )  # fmt: skip


def test_a_batch_is_split_where_its_buffers_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = np.array([(0, 0, side, side) for side in (10, 300, 10, 10, 500, 10)], np.int32)
    parts = list(batch.split_crops(boxes, (16, 16), 500_000))
    assert [(part.start, part.stop) for part in parts] == [(0, 4), (4, 5), (5, 6)]
    images = np.array([(256, 500, 500, 3)] * 6, batch.IMAGE)
    for part in (parts[0], parts[2]):
        plan = batch.plan_crops(
            images[part], boxes=boxes[part], flips=np.zeros(6, bool)[part],
            filters=np.full(6, 1, np.uint8)[part], size=(16, 16), samples=np.arange(6)[part],
        )  # fmt: skip
        assert sum(plan.buffer_bytes().values()) <= 500_000
    monkeypatch.setattr(batch, "MAX_IMAGES", 4)
    parts = list(batch.split_crops(boxes, (16, 16), 1 << 30))
    assert [(part.start, part.stop) for part in parts] == [(0, 4), (4, 6)]
