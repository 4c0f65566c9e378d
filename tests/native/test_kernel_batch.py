# SPDX-License-Identifier: Apache-2.0
"""Batches: what is read, what is checked, what goes through Pillow, and that threads change nothing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from kernel_images import SAMPLINGS, Store, by_pillow, encode, make_jpeg, make_pixels, random_box
from PIL import Image

from feedrate import kernel
from feedrate.kernel import Files, Pool, Ranges, Status


@pytest.fixture
def mixed(tmp_path: Path) -> Store:
    parts = [make_jpeg(80 + i, 60 + i, SAMPLINGS[i % 5], seed=i) for i in range(10)]
    return Store(tmp_path, parts, entries=[kernel.scan(part).entries for part in parts])


BOXES = [(i, 2 * i, 70 + i, 55) for i in range(10)]


def read_part(store: Store, i: int) -> bytes:
    start, length = int(store.images.offset[i]), int(store.images.length[i])
    return store.path.read_bytes()[start : start + length]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_what_single_decodes_give(mixed: Store, channels: int) -> None:
    flips = [i % 2 == 0 for i in range(10)]
    out, report = mixed.decode(BOXES, channels=channels, flips=flips)
    assert report.reasons == {}
    assert report.by_pillow == 0
    for i in range(10):
        mode = "RGB" if channels == 3 else "L"
        one = kernel.decode_one(read_part(mixed, i), box=BOXES[i], size=(32, 32), flip=flips[i], mode=mode)
        np.testing.assert_array_equal(out[i], one)


def test_neither_entries_nor_threads_change_a_pixel(mixed: Store) -> None:
    expected, _ = mixed.decode(BOXES, entries=None)
    pool = Pool(3)
    for entries in (None, mixed.entries):
        for threads in (None, pool):
            out, report = mixed.decode(BOXES, entries=entries, pool=threads)
            assert report.reasons == {}
            np.testing.assert_array_equal(out, expected)
    pool.close()


def test_entries_of_length_zero_mean_none(mixed: Store) -> None:
    assert mixed.entries is not None
    none = Ranges(mixed.entries.file, mixed.entries.offset, np.zeros(10, np.int64))
    out, report = mixed.decode(BOXES, entries=none)
    assert report.reasons == {}
    np.testing.assert_array_equal(out, mixed.decode(BOXES, entries=None)[0])


def test_a_wrong_crc_is_told_with_both_values(mixed: Store) -> None:
    assert mixed.images.crc32c is not None
    found = int(mixed.images.crc32c[4])
    mixed.images.crc32c[4] = 0x99887766
    out, report = mixed.decode(BOXES)
    assert report.statuses.tolist() == [0, 0, 0, 0, Status.CRC_MISMATCH, 0, 0, 0, 0, 0]
    assert report.reasons == {4: f"crc32c is {found:08x}, the index says 99887766"}
    assert not out[4].any()
    assert out[3].any()


def test_a_file_cut_short_is_told_with_both_lengths(mixed: Store) -> None:
    size = mixed.path.stat().st_size
    mixed.images.length[9] = size
    start = int(mixed.images.offset[9])
    _, report = mixed.decode(BOXES)
    assert report.statuses[9] == Status.CUT_SHORT
    assert report.reasons[9] == f"the file ends at byte {size}, the range needs bytes up to {start + size}"


def test_an_absurd_length_takes_no_memory(mixed: Store) -> None:
    mixed.images.length[0] = 1 << 60
    _, report = mixed.decode(BOXES)
    assert report.statuses[0] == Status.CUT_SHORT


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (10, -1), (1 << 62, 1 << 62)])
def test_a_range_that_is_none_is_unreadable(mixed: Store, offset: int, length: int) -> None:
    mixed.images.offset[2], mixed.images.length[2] = offset, length
    _, report = mixed.decode(BOXES)
    assert report.statuses[2] == Status.UNREADABLE
    assert "is not a byte range" in report.reasons[2]


@pytest.mark.parametrize("number", [-1, 1, 2**31 - 1])
def test_a_file_number_that_does_not_exist_is_unreadable(mixed: Store, number: int) -> None:
    mixed.images.file[2] = number
    _, report = mixed.decode(BOXES)
    assert report.statuses[2] == Status.UNREADABLE
    assert "is not one of the 1 files" in report.reasons[2]


def test_a_vanished_file_is_named(mixed: Store) -> None:
    mixed.path.unlink()
    _, report = mixed.decode(BOXES)
    assert set(report.statuses.tolist()) == {Status.UNREADABLE}
    assert report.reasons[0] == f"{mixed.path} cannot be opened: No such file or directory"


def test_a_folder_instead_of_a_file_is_unreadable(mixed: Store, tmp_path: Path) -> None:
    mixed.files = Files([tmp_path])
    _, report = mixed.decode(BOXES)
    assert set(report.statuses.tolist()) == {Status.UNREADABLE}


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (5, 9, 9, 5), (-1, 0, 5, 5), (0, 0, 81, 5), (0, 0, 5, 61)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_box_outside_the_image_is_a_bad_box(tmp_path: Path, box: tuple[int, ...], kind: str) -> None:
    data = encode(make_pixels(80, 60), kind)
    out, report = Store(tmp_path, [data]).decode([box])
    assert report.statuses.tolist() == [Status.BAD_BOX]
    assert "the crop box" in report.reasons[0]
    assert not out.any()


@pytest.mark.parametrize("threads", [None, 2])
def test_what_the_kernel_leaves_to_pillow_is_counted(tmp_path: Path, threads: int | None) -> None:
    pool = Pool(threads) if threads else None
    pixels = make_pixels(40, 30)
    parts = [
        encode(pixels, "PNG"),
        make_jpeg(40, 30),
        encode(pixels, "PNG"),
        make_jpeg(40, 30, progressive=True),
    ]
    out, report = Store(tmp_path, parts).decode([(3, 2, 33, 28)] * 4, pool=pool, flips=[True] * 4)
    assert report.by_pillow == 3
    assert report.pillow_reasons == {"not a JPEG (PNG)": 2, "progressive": 1}
    for i, part in enumerate(parts):
        expected = by_pillow(part, (3, 2, 33, 28), (32, 32), flip=True)
        assert np.abs(out[i].astype(int) - expected).max() <= 1
    if pool:
        pool.close()


def test_a_bad_file_among_good_ones_leaves_the_others_alone(tmp_path: Path) -> None:
    parts = [
        make_jpeg(40, 30),
        b"junk",
        make_jpeg(40, 30)[:300],
        encode(make_pixels(40, 30), "PNG")[:200],
        make_jpeg(40, 30),
    ]
    out, report = Store(tmp_path, parts).decode([(0, 0, 40, 30)] * 5)
    assert report.statuses.tolist() == [0, Status.CORRUPT, Status.CORRUPT, Status.CORRUPT, 0]
    assert set(report.reasons) == {1, 2, 3}
    assert not out[1:4].any()
    np.testing.assert_array_equal(out[0], out[4])


def test_an_image_that_pillow_refuses_for_its_size_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    _, report = Store(tmp_path, [encode(make_pixels(40, 30), "PNG")]).decode([(0, 0, 40, 30)])
    assert report.statuses.tolist() == [Status.CORRUPT]
    assert "decompression bomb" in report.reasons[0]


def test_masks_keep_palette_indices(tmp_path: Path) -> None:
    indices = np.arange(64, dtype=np.uint8).reshape(8, 8) % 21
    image = Image.fromarray(indices, "L").convert("P")
    image.putdata(indices.reshape(-1).tolist())
    image.save(tmp_path / "mask.png")
    store = Store(tmp_path, [(tmp_path / "mask.png").read_bytes()])
    out, report = store.decode([(2, 0, 8, 8)], size=(8, 6), channels=1, nearest=True, flips=[True])
    assert report.reasons == {}
    assert report.pillow_reasons == {"mask": 1}
    np.testing.assert_array_equal(out[0, :, :, 0], indices[:, 2:][:, ::-1])


def test_masks_of_one_bit_become_zero_and_one(tmp_path: Path) -> None:
    mask = make_pixels(16, 16, gray=True) > 128
    store = Store(tmp_path, [encode(mask, "PNG")])
    out, _ = store.decode([(0, 0, 16, 16)], size=(16, 16), channels=1, nearest=True)
    np.testing.assert_array_equal(out[0, :, :, 0], mask)


@pytest.mark.parametrize(("top", "status"), [(255, Status.OK), (256, Status.CORRUPT)])
def test_masks_of_16_bits_must_fit_8(tmp_path: Path, top: int, status: Status) -> None:
    mask = np.arange(64, dtype=np.uint16).reshape(8, 8)
    mask[3, 3] = top
    _, report = Store(tmp_path, [encode(mask, "PNG")]).decode(
        [(0, 0, 8, 8)], size=(8, 8), channels=1, nearest=True
    )
    assert report.statuses.tolist() == [status]
    assert report.reasons == ({} if status == Status.OK else {0: "mask has 16-bit values"})


def test_64_threads_share_a_pool(mixed: Store) -> None:
    expected, _ = mixed.decode(BOXES)
    pool = Pool(3)
    with ThreadPoolExecutor(64) as callers:
        results = list(callers.map(lambda _: mixed.decode(BOXES, pool=pool), range(128)))
    pool.close()
    for out, report in results:
        assert report.reasons == {}
        np.testing.assert_array_equal(out, expected)


def test_64_threads_without_a_pool_give_the_same(mixed: Store) -> None:
    expected, _ = mixed.decode(BOXES)
    with ThreadPoolExecutor(64) as callers:
        for out, report in callers.map(lambda _: mixed.decode(BOXES), range(64)):
            assert report.reasons == {}
            np.testing.assert_array_equal(out, expected)


def test_a_pool_closes_twice_and_then_refuses_work(mixed: Store) -> None:
    pool = Pool(2)
    mixed.decode(BOXES, pool=pool)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        mixed.decode(BOXES, pool=pool)


def test_a_pool_that_is_cancelled_gives_whole_batches_or_none(mixed: Store) -> None:
    expected, _ = mixed.decode(BOXES)
    pool = Pool(2)
    with ThreadPoolExecutor(8) as callers:
        calls = [callers.submit(mixed.decode, BOXES, pool=pool) for _ in range(64)]
        calls[0].result()
        pool.cancel()
    for call in calls:
        if call.exception() is None:
            np.testing.assert_array_equal(call.result()[0], expected)
        else:
            assert str(call.exception()) == "the pool is closed"
    nothing = Ranges(np.zeros(1, np.int32), np.zeros(1, np.int64), np.ones(1, np.int64))
    with pytest.raises(ValueError, match="the pool is closed"):
        kernel.read_ranges(mixed.files, nothing, pool)
    pool.close()


def test_what_goes_through_pillow_is_cancelled_too() -> None:
    pool, begun, release, calls = Pool(1), threading.Event(), threading.Event(), []

    def work(i: int) -> None:
        calls.append(i)
        begun.set()
        release.wait()

    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(pool.map, work, range(10))
        begun.wait()
        pool.cancel()
        release.set()
    assert str(call.exception()) == "the pool is closed"
    assert calls == [0]
    pool.close()


def test_a_pool_that_never_worked_closes() -> None:
    Pool(2).close()


def test_an_empty_batch_is_ok(mixed: Store) -> None:
    none = Ranges(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
    report = kernel.decode_batch(
        mixed.files,
        none,
        np.empty((0, 8, 8, 3), np.uint8),
        boxes=np.empty((0, 4), np.int32),
        flips=np.empty(0, np.bool_),
    )
    assert len(report.statuses) == 0


def _decode_in_child(store: Store, pool: Pool, connection) -> None:  # type: ignore[no-untyped-def]
    out, report = store.decode(BOXES, pool=pool)
    connection.send((out, report.reasons))
    pool.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_the_pool_and_the_files_of_its_parent(mixed: Store) -> None:
    pool = Pool(2)
    expected, _ = mixed.decode(BOXES, pool=pool)
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_decode_in_child, args=(mixed, pool, sender))
    child.start()
    assert receiver.poll(120), "the child hangs"
    out, reasons = receiver.recv()
    child.join(120)
    assert child.exitcode == 0
    assert reasons == {}
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(mixed.decode(BOXES, pool=pool)[0], expected)
    pool.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_while_other_threads_decode_do_not_hang(mixed: Store) -> None:
    pool = Pool(2)
    expected, _ = mixed.decode(BOXES, pool=pool)
    fork = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(2) as callers:
        busy = [callers.submit(mixed.decode, BOXES, pool=pool) for _ in range(60)]
        for _ in range(4):
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=_decode_in_child, args=(mixed, pool, sender))
            child.start()
            assert receiver.poll(120), "the child hangs"
            np.testing.assert_array_equal(receiver.recv()[0], expected)
            child.join(120)
        for future in busy:
            assert future.result()[1].reasons == {}
    pool.close()


def test_more_files_than_may_be_open_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(200)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * 10)
    files = Files(paths)
    ranges = Ranges(np.arange(200, dtype=np.int32), np.zeros(200, np.int64), np.full(200, 10, np.int64))
    for _ in range(2):
        buffer, starts, statuses = kernel.read_ranges(files, ranges, Pool(4))
        assert not statuses.any()
        np.testing.assert_array_equal(buffer.reshape(200, 10)[:, 0], np.arange(200))
        assert starts[-1] == 2000
    descriptors = Path("/proc/self/fd")
    if descriptors.exists():
        assert sum(str(tmp_path) in os.readlink(fd) for fd in descriptors.iterdir() if fd.is_symlink()) <= 128
    files.close()


def test_closed_files_open_again(mixed: Store) -> None:
    mixed.decode(BOXES)
    mixed.files.close()
    assert mixed.decode(BOXES)[1].reasons == {}


def test_files_are_pickled_by_their_paths(mixed: Store) -> None:
    mixed.files = pickle.loads(pickle.dumps(mixed.files))
    assert mixed.files.paths == [str(mixed.path)]
    assert mixed.decode(BOXES)[1].reasons == {}


def test_a_name_that_is_not_utf8_is_opened(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.jpg")
    with open(path, "wb") as file:
        file.write(b"abc")
    files = Files([os.fsdecode(path)])
    three_bytes = Ranges(np.zeros(1, np.int32), np.zeros(1, np.int64), np.full(1, 3, np.int64))
    buffer, _, statuses = kernel.read_ranges(files, three_bytes)
    assert statuses.tolist() == [0]
    assert buffer.tobytes() == b"abc"


def test_random_crops_of_a_batch_match_pillow_within_one_level(mixed: Store) -> None:
    rng = np.random.default_rng(5)
    boxes = [random_box(rng, 80, 60) for _ in range(10)]
    out, _ = mixed.decode(boxes, size=(24, 40))
    for i, box in enumerate(boxes):
        assert np.abs(out[i].astype(int) - by_pillow(read_part(mixed, i), box, (24, 40))).max() <= 1


def test_profile_decode_gives_the_seconds_of_every_stage() -> None:
    data = make_jpeg(300, 200, "4:2:0")
    entries = kernel.scan(data).entries
    stages = kernel.profile_decode(data, entries, box=(10, 20, 290, 190), size=(64, 64), repeats=2)
    assert tuple(stages) == kernel.STAGES
    assert all(seconds >= 0 for seconds in stages.values())
    assert sum(stages.values()) > 0


def test_profile_decode_refuses_what_the_kernel_does_not_decode() -> None:
    data = make_jpeg(30, 20, progressive=True)
    with pytest.raises(ValueError, match="progressive"):
        kernel.profile_decode(data, b"", box=(0, 0, 30, 20), size=(8, 8))
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        kernel.profile_decode(data, b"", box=(0, 0, 30, 20), size=(8, 8), repeats=0)
