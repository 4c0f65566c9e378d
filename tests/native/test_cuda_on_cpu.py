# SPDX-License-Identifier: Apache-2.0
"""The GPU decoder's kernels, run on the CPU: pixels are those of the CPU path, byte for byte."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import SAMPLINGS, make_jpeg, random_box
from PIL import Image

from cuda_on_cpu import FILLED, Case, Emulator, aligned, decode, give, look, run
from cuda_on_cpu.forged import draw_points, tie
from cuda_on_cpu.forged import forge as forge_points
from feedrate import kernel
from feedrate.filters import FILTERS
from feedrate.kernel.cuda import batch

BILINEAR = FILTERS["bilinear"]
REFUSED, BAD_END = 1, 8  # as in layout.h


@pytest.fixture(scope="module")
def launch(library: Path) -> Emulator:
    return Emulator(library)


def whole(data: bytes, *, bytes_per_entry: int = 100, filter_: int = BILINEAR) -> Case:
    scan = kernel.scan(data, bytes_per_entry)
    return Case(data, scan.entries, (0, 0, scan.width, scan.height), False, filter_)


def by_cpu(case: Case, size: tuple[int, int], channels: int = 3) -> Any:
    return kernel.decode_one(
        case.data, box=case.box, size=size, flip=case.flip, mode="RGB" if channels == 3 else "L",
        entries=case.entries, filter_=case.filter,
    )  # fmt: skip


def assert_same(launch: Emulator, cases: list[Case], size: tuple[int, int], channels: int = 3) -> None:
    out, statuses, taken = decode(launch, cases, size, channels)
    assert taken.all()
    assert not statuses.any()
    for case, pixels in zip(cases, out, strict=True):
        assert np.array_equal(pixels, by_cpu(case, size, channels)), (case.box, case.filter, case.flip)


def draw_cases(sampling: str, seed: int, count: int) -> Iterator[Case]:
    """Random images of one sampling: odd sizes, crops, filters, qualities and densities of entry points."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        width, height = (int(n) for n in rng.integers(1, 90, 2))
        options: dict[str, Any] = {
            "quality": int(rng.choice([20, 75, 95])),
            "optimize": bool(rng.integers(2)),
        }
        if rng.random() < 0.3:
            options["restart_marker_blocks"] = int(rng.integers(1, 9))
        data = make_jpeg(width, height, sampling, seed=int(rng.integers(99)), **options)
        entries = kernel.scan(data, int(rng.choice([1, 60, 300, 10**6]))).entries
        flip, filter_ = bool(rng.integers(2)), int(rng.integers(6))
        yield Case(data, entries, random_box(rng, width, height), flip, filter_)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pixels_are_those_of_the_cpu_path(launch: Emulator, sampling: str) -> None:
    for seed, size in enumerate([(7, 33), (40, 24), (1, 1), (64, 90)]):
        assert_same(launch, list(draw_cases(sampling, seed, 25)), size)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gray_pixels_are_those_of_the_cpu_path(launch: Emulator, sampling: str) -> None:
    assert_same(launch, list(draw_cases(sampling, 9, 12)), (17, 20), channels=1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 3), (3, 2), (4, 5), (17, 16), (16, 17)])
def test_every_pixel_of_a_small_image_is_the_same(
    launch: Emulator, sampling: str, width: int, height: int
) -> None:
    data = make_jpeg(width, height, sampling, quality=95)
    assert_same(launch, [whole(data)], (height, width))


@pytest.mark.parametrize("name", list(FILTERS))
def test_every_filter_is_the_same_up_and_down(launch: Emulator, name: str) -> None:
    data = make_jpeg(150, 120, "4:2:0")
    cases = [
        whole(data, filter_=FILTERS[name])._replace(box=box)
        for box in [(0, 0, 150, 120), (3, 5, 20, 117), (10, 50, 149, 60), (31, 31, 63, 63), (0, 0, 64, 120)]
    ]
    assert_same(launch, cases, (32, 64))


@pytest.mark.parametrize("name", ["bicubic", "lanczos"])
def test_the_order_of_passes_before_pillow_13_is_the_same(
    launch: Emulator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = whole(make_jpeg(40, 150), filter_=FILTERS[name])
    monkeypatch.setattr("feedrate.kernel.pillow.resizes_as_kernel", lambda: False)
    out, _, _ = decode(launch, [case], (32, 32), before_13=True)
    assert np.array_equal(out[0], by_cpu(case, (32, 32)))
    assert not np.array_equal(out[0], decode(launch, [case], (32, 32), before_13=False)[0][0])


def test_a_crop_may_end_a_few_bits_before_the_next_entry_point(launch: Emulator) -> None:
    picture = Image.new("L", (200, 16), 90)  # a block takes fewer bits than a byte has
    picture.paste(Image.effect_noise((40, 16), 60), (0, 0))
    file = io.BytesIO()
    picture.save(file, "jpeg")
    data = file.getvalue()
    for bytes_per_entry in (1, 5, 20):
        one = whole(data, bytes_per_entry=bytes_per_entry)
        assert_same(launch, [one._replace(box=(0, 0, right, 16)) for right in range(8, 201, 4)], (4, 9))


def test_the_threads_of_a_block_work_together(library: Path) -> None:
    cases = list(draw_cases("4:2:0", 5, 3))
    assert_same(Emulator(library, threads=3), cases, (9, 8))


def test_the_source_becomes_machine_code_without_any_header(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("feedrate.kernel.cuda.nvrtc")
    code = request.getfixturevalue("nvrtc").compile(batch.source(), "sm_90", batch.COMPILE_OPTIONS)
    kernels = [
        b"prepare",
        b"read_coefficients",
        b"transform_blocks",
        b"convert_pixels",
        b"resize_first",
        b"resize_last",
    ]
    assert [name for name in kernels if name not in code] == []


def test_a_row_of_several_scans_apart_is_the_same_from_any_density(launch: Emulator) -> None:
    data = make_jpeg(200, 64, "4:2:0", quality=98)
    cases = [
        whole(data, bytes_per_entry=n)._replace(box=(101, 9, 150, 40)) for n in (1, 50, 200, 1000, 10**6)
    ]
    assert len({case.entries for case in cases}) > 2
    assert_same(launch, cases, (20, 20))


def test_a_dense_index_of_a_large_image_is_more_than_one_group(launch: Emulator) -> None:
    assert_same(launch, [whole(make_jpeg(300, 200, "4:4:4"), bytes_per_entry=1)], (30, 40))


def share(case: Case, boxes: list[tuple[int, int, int, int]], filters: list[int]) -> list[Case]:
    return [
        case._replace(box=box, filter=filter_, flip=i % 2 == 1)
        for i, (box, filter_) in enumerate(zip(boxes, filters, strict=True))
    ]


def look_at_shared(
    plan: batch.BatchPlan, files: list[Case], crops: list[Case], file_of: list[int], **options: Any
) -> Any:
    return plan.look(
        give(files), file_of=np.array(file_of, np.int32),
        boxes=np.array([case.box for case in crops], np.int32), flips=np.array([c.flip for c in crops]),
        filters=np.array([case.filter for case in crops], np.uint8), **options,
    )  # fmt: skip


def decode_shared(
    launch: Emulator, files: list[Case], crops: list[Case], file_of: list[int], size: tuple[int, int]
) -> tuple[Any, Any, Any]:
    plan = batch.BatchPlan()
    taken = look_at_shared(plan, files, crops, file_of, size=size)
    return run(launch, plan, len(crops), size, taken)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_crops_that_share_a_file_are_those_of_files_of_their_own(launch: Emulator, sampling: str) -> None:
    rng = np.random.default_rng(4)
    for seed, size in enumerate([(9, 12), (33, 20), (1, 7)]):
        files = list(draw_cases(sampling, 20 + seed, 8))
        file_of = [int(n) for n in rng.integers(0, len(files), 30)]
        crops = []
        for number in file_of:
            width, height = Image.open(io.BytesIO(files[number].data)).size
            box = random_box(rng, width, height)
            crops.append(
                files[number]._replace(box=box, flip=bool(rng.integers(2)), filter=int(rng.integers(6)))
            )
        out, statuses, taken = decode_shared(launch, files, crops, file_of, size)
        assert taken.all()
        assert not statuses.any()
        for crop, pixels in zip(crops, out, strict=True):
            assert np.array_equal(pixels, by_cpu(crop, size)), (crop.box, crop.filter, crop.flip)


def lay_out(folder: Path, cases: list[Case]) -> tuple[kernel.Files, kernel.Ranges, kernel.Ranges]:
    """Write files and entry points as a pack holds them; return where they lie."""
    starts, entry_starts = (
        np.cumsum([0, *(len(one) for one in parts)])
        for parts in ([case.data for case in cases], [case.entries for case in cases])
    )
    (folder / "shard").write_bytes(b"".join(case.data for case in cases))
    (folder / "index").write_bytes(b"".join(case.entries for case in cases))
    crcs = np.array([kernel.crc32c(case.data) for case in cases], np.uint32)
    zeros = np.zeros(len(cases), np.int32)
    return (
        kernel.Files([folder / "shard", folder / "index"]),
        kernel.Ranges(zeros, starts[:-1], np.diff(starts), crcs),
        kernel.Ranges(zeros + 1, entry_starts[:-1], np.diff(entry_starts)),
    )


def read(plan: batch.BatchPlan, folder: Path, cases: list[Case], size: tuple[int, int]) -> Any:
    return plan.read(
        *lay_out(folder, cases), size=size, boxes=np.array([case.box for case in cases], np.int32),
        flips=np.array([c.flip for c in cases]), filters=np.array([c.filter for c in cases], np.uint8),
    )  # fmt: skip


def test_files_that_the_plan_reads_give_the_pixels_of_those_in_memory(
    launch: Emulator, tmp_path: Path
) -> None:
    plan = batch.BatchPlan()
    for seed in range(3):  # a plan is used again, for files of other sizes
        cases = list(draw_cases("4:2:0", 40 + seed, 8))
        taken = read(plan, tmp_path, cases, (17, 20))
        out, statuses, _ = run(launch, plan, len(cases), (17, 20), taken)
        assert taken.all()
        assert not statuses.any()
        for case, pixels in zip(cases, out, strict=True):
            assert np.array_equal(pixels, by_cpu(case, (17, 20)))


def test_what_cannot_be_read_or_differs_from_its_checksum_is_not_taken(tmp_path: Path) -> None:
    cases = [whole(make_jpeg(96, 64, "4:2:0")) for _ in range(4)]
    cases[1] = cases[1]._replace(entries=b"")
    files, images, entries = lay_out(tmp_path, cases)
    images.crc32c[2] ^= 1
    images.length[3] += 1  # past the end of the file
    plan = batch.BatchPlan()
    boxes = np.array([case.box for case in cases], np.int32)
    taken = plan.read(files, images, entries, boxes=boxes, flips=np.zeros(4, np.bool_), size=(8, 8))
    assert taken.tolist() == [True, False, False, False]


def test_a_file_that_crops_share_is_decoded_once() -> None:
    one, two = whole(make_jpeg(96, 64, "4:2:0")), whole(make_jpeg(64, 64, "4:4:4"))
    boxes = [(0, 0, 20, 20), (70, 40, 96, 64), (30, 10, 50, 50)]
    alone, shared = batch.BatchPlan(), batch.BatchPlan()
    look(alone, [one, two], (8, 8))
    crops = [*share(one, boxes, [BILINEAR] * 3), two]
    look_at_shared(shared, [one, two], crops, [0, 0, 0, 1], size=(8, 8))
    # The window of the three is the whole image.
    assert shared.sizes.images == 4
    for of in ("blocks", "samples", "groups"):
        assert getattr(shared.sizes, of) == getattr(alone.sizes, of), of


def test_a_crop_outside_leaves_the_others_of_its_file_alone(launch: Emulator) -> None:
    one = whole(make_jpeg(96, 64, "4:2:0"))
    boxes = [(0, 0, 97, 64), (8, 8, 40, 40), (5, 5, 5, 9), (0, 30, 96, 64)]
    crops = share(one, boxes, [BILINEAR] * 4)
    out, statuses, taken = decode_shared(launch, [one], crops, [0] * 4, (16, 16))
    assert taken.tolist() == [False, True, False, True]
    assert statuses.tolist() == [-1, 0, -1, 0]
    for i in (1, 3):
        assert np.array_equal(out[i], by_cpu(crops[i], (16, 16)))


def test_damage_in_a_shared_window_is_the_status_of_all_its_crops(launch: Emulator) -> None:
    sound = whole(make_jpeg(160, 160, "4:2:0", quality=90))
    bad = spoil(sound, lambda data, at: data.__setitem__(slice(at + 300, at + 302), b"\xff\xd0"))
    boxes = [(0, 0, 16, 16), (0, 140, 160, 160), (10, 10, 50, 50)]
    crops = [*share(bad, boxes, [BILINEAR] * 3), sound]
    out, statuses, taken = decode_shared(launch, [bad, sound], crops, [0, 0, 0, 1], (16, 16))
    assert taken.all()
    assert (statuses[:3] != 0).all()
    assert not out[:3].any()
    assert statuses[3] == 0


def test_crops_of_a_file_that_has_no_room_are_left_alone() -> None:
    one, two = whole(make_jpeg(300, 300, "4:2:0")), whole(make_jpeg(64, 64, "4:2:0"))
    crops = [one, two, *share(one, [(0, 0, 9, 9)], [BILINEAR]), *share(two, [(0, 0, 9, 9)], [BILINEAR])]
    plan = batch.BatchPlan()
    look_at_shared(plan, [one, two], crops[1::2], [1, 1], size=(8, 8))
    # Words are written before it is known which crops have room.
    room = sum(plan.buffer_bytes().values()) + len(one.data)
    taken = look_at_shared(plan, [one, two], crops, [0, 1, 0, 1], size=(8, 8), most_memory=room)
    assert taken.tolist() == [False, True, False, True]


def test_a_number_that_no_file_has_is_refused() -> None:
    one = whole(make_jpeg(8, 8))
    for number in (-1, 1):
        with pytest.raises(ValueError, match="file_of needs the number of a file per sample"):
            look_at_shared(batch.BatchPlan(), [one], [one], [number], size=(8, 8))


def test_what_the_kernel_does_not_take_is_left_alone(launch: Emulator) -> None:
    good = whole(make_jpeg(20, 20))
    progressive = make_jpeg(20, 20, progressive=True)
    left = [
        good._replace(entries=b""),
        good._replace(data=progressive),
        good._replace(data=b""),
        good._replace(box=(0, 0, 21, 20)),
        good._replace(box=(5, 5, 5, 9)),
        good._replace(entries=whole(make_jpeg(20, 20, seed=1)).entries),
        good._replace(entries=good.entries[:-1]),
    ]
    out, statuses, taken = decode(launch, [*left, good], (8, 8))
    assert taken.tolist() == [False] * len(left) + [True]
    assert statuses.tolist() == [-1] * len(left) + [0]
    assert (out[:-1] == 77).all()


def test_samples_beyond_the_memory_are_not_taken() -> None:
    case, plan = whole(make_jpeg(200, 200)), batch.BatchPlan()
    look(plan, [case] * 2, (8, 8))
    room = sum(plan.buffer_bytes().values())
    assert look(plan, [case] * 4, (8, 8), most_memory=room).tolist() == [True, True, False, False]


def test_a_batch_of_which_nothing_is_taken_launches_nothing() -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("a kernel was launched")

    _, statuses, _ = decode(refuse, [Case(b"", b"", (0, 0, 1, 1), False, BILINEAR)], (8, 8))
    assert statuses.tolist() == [-1]


def spoil(case: Case, change: Any) -> Case:
    """Change bytes behind the headers, and tie the entry points to the new file, as a forger would."""
    data = bytearray(case.data)
    begin = data.index(b"\xff\xda")
    begin += 2 + struct.unpack_from(">H", data, begin + 2)[0]
    change(data, begin)
    return forge(case._replace(data=bytes(data)))


def forge(case: Case) -> Case:
    return case._replace(entries=tie(case.data, case.entries))


def test_a_marker_in_the_data_is_refused(launch: Emulator) -> None:
    case = spoil(
        whole(make_jpeg(64, 64)), lambda data, at: data.__setitem__(slice(at + 300, at + 302), b"\xff\xd0")
    )
    out, statuses, taken = decode(launch, [case], (8, 8))
    assert taken.all()
    assert statuses[0] == REFUSED
    assert not out.any()


def fill_guarded(case: Case) -> tuple[int, int]:
    """Plan a case; return how many bytes stand behind its room for words, and how many were written."""
    behind = aligned(0)

    def lend(size: int) -> Any:
        nonlocal behind
        room = size - size % 256  # so that bytes behind it are aligned, too
        memory = aligned(room + len(case.data))
        behind = memory[room:]
        return memory[:room]

    plan = batch.BatchPlan(lend)
    assert look(plan, [case], (8, 8)).all()
    plan.fill(aligned(plan.sizes.staged))
    return len(behind), int((behind != FILLED).sum())


def scan_of(data: bytes) -> bytes:
    begin = data.index(b"\xff\xda")
    return data[begin + 2 + struct.unpack_from(">H", data, begin + 2)[0] :]


def test_an_entry_point_on_a_stuffed_zero_writes_nothing_behind_what_is_staged(launch: Emulator) -> None:
    data = make_jpeg(640, 16, quality=100)  # one row of MCUs, and thousands of bytes
    stuffed = scan_of(data).index(b"\xff\x00") + 1
    entries = forge_points(data, [0, 8 * stuffed], step=20, components=3)
    forged = whole(data)._replace(entries=entries, box=(0, 0, 16, 16))
    behind, written = fill_guarded(forged)
    assert behind > 10_000
    assert written == 0
    assert decode(launch, [forged], (8, 8))[1][0] != 0


def test_a_restart_marker_that_is_missing_writes_nothing_behind_what_is_staged(launch: Emulator) -> None:
    data = make_jpeg(640, 64, quality=100)  # four rows of MCUs; the crop is of the first
    begin = data.index(b"\xff\xda")
    data = data[:begin] + b"\xff\xdd\x00\x04\x00\x02" + data[begin:]  # one is due every second MCU
    forged = whole(make_jpeg(8, 8))._replace(
        data=data, entries=forge_points(data, [0, 9, 10, 11], step=40, components=3), box=(0, 0, 640, 8)
    )
    behind, written = fill_guarded(forged)
    assert behind > 10_000
    assert written == 0
    assert decode(launch, [forged], (8, 8))[1][0] == REFUSED


def test_entry_points_at_traps_leave_the_next_sample_of_the_batch_as_it_is(launch: Emulator) -> None:
    sound = whole(make_jpeg(96, 64, "4:2:0"))
    rng = np.random.default_rng(8)
    for restarts in (0, 2):
        data = make_jpeg(200, 64, quality=98, restart_marker_blocks=restarts)
        for _ in range(40):
            entries = forge_points(data, draw_points(rng, scan_of(data), 4), step=13, components=3)
            forged = whole(data)._replace(entries=entries, box=random_box(rng, 200, 64))
            out, statuses, taken = decode(launch, [forged, sound], (8, 8))
            if (
                taken[0] and not statuses[0]
            ):  # the crop needs no more than the first entry point, which is right
                assert np.array_equal(out[0], by_cpu(forged, (8, 8)))
            assert statuses[1] == 0
            assert np.array_equal(out[1], by_cpu(sound, (8, 8)))


def test_an_entry_point_at_another_bit_is_found(launch: Emulator) -> None:
    case = whole(make_jpeg(64, 64, "4:4:4"))
    entries = bytearray(case.entries)
    entries[-3] ^= 8
    _, statuses, taken = decode(launch, [forge(case._replace(entries=bytes(entries)))], (8, 8))
    assert not taken[0] or statuses[0]


def test_a_restart_marker_of_the_wrong_number_is_refused(launch: Emulator) -> None:
    case = whole(make_jpeg(64, 64, restart_marker_blocks=2))

    def change(data: bytearray, at: int) -> None:
        data[data.index(b"\xff\xd1", at) + 1] = 0xD2

    assert decode(launch, [spoil(case, change)], (8, 8))[1][0] == REFUSED


def test_data_that_ends_early_is_found(launch: Emulator) -> None:
    case = whole(make_jpeg(64, 64))
    _, statuses, _ = decode(launch, [forge(case._replace(data=case.data[:-40]))], (8, 8))
    assert statuses[0] & BAD_END


def test_a_plan_is_used_again_for_the_next_batch() -> None:
    large, small, plan = whole(make_jpeg(64, 64)), whole(make_jpeg(9, 9)), batch.BatchPlan()
    seen = []
    for cases in ([large, large], [small], [large, small]):
        look(plan, cases, (8, 8))
        seen.append((plan.sizes.images, plan.sizes.pixels))
    assert seen == [(2, 2 * 64 * 64), (1, 81), (2, 64 * 64 + 81)]


def test_crops_without_room_wait_and_those_that_are_not_taken_do_not() -> None:
    case, plan = whole(make_jpeg(64, 64)), batch.BatchPlan()
    look(plan, [case], (8, 8))
    room = sum(plan.buffer_bytes().values())
    taken = look(plan, [case._replace(entries=b""), case, case], (8, 8), most_memory=room)
    assert taken.tolist() == [False, True, False]
    assert plan.waiting.tolist() == [2]


def test_crops_go_where_their_numbers_say(launch: Emulator) -> None:
    one, two = whole(make_jpeg(96, 64, "4:2:0")), whole(make_jpeg(64, 64, "4:4:4"))
    crops, numbers = [*share(one, [(0, 0, 20, 20), (30, 10, 50, 50)], [BILINEAR] * 2), two], [4, 1, 2]
    plan = batch.BatchPlan()
    samples = np.array(numbers, np.int32)
    assert look_at_shared(plan, [one, two], crops, [0, 0, 1], size=(8, 8), samples=samples).all()
    assert plan.components(5).tolist() == [0, 3, 3, 0, 3]
    out, statuses, _ = run(launch, plan, 5, (8, 8), None)
    assert statuses.tolist() == [-1, 0, 0, -1, 0]
    for crop, number in zip(crops, numbers, strict=True):
        assert np.array_equal(out[number], by_cpu(crop, (8, 8)))


def test_entry_points_are_found_where_that_is_asked_for() -> None:
    data, plan = make_jpeg(64, 64), batch.BatchPlan()
    inputs = kernel.Inputs([data])
    options: dict[str, Any] = {
        "boxes": np.array([(0, 0, 64, 64)], np.int32), "flips": np.zeros(1, np.bool_), "size": (8, 8),
    }  # fmt: skip
    assert not plan.look(kernel.Inputs([data]), **options).any()
    assert plan.look(inputs, bytes_per_entry=60, **options).all()
    assert inputs[0][1].tobytes() == kernel.find_entry_points(data, 60)


def test_boxes_of_whole_images_are_written_up_to_a_limit() -> None:
    cases, boxes = [whole(make_jpeg(64, 48)), whole(make_jpeg(64, 49))], np.zeros((2, 4), np.int32)
    taken = batch.BatchPlan().look(
        give(cases), most_pixels=64 * 48, boxes=boxes, flips=np.zeros(2, np.bool_), size=(8, 8)
    )
    assert taken.tolist() == [True, False]
    assert boxes.tolist() == [[0, 0, 64, 48], [0, 0, 0, 0]]


def test_a_plan_that_was_broken_off_is_not_filled() -> None:
    case, plan, pool = whole(make_jpeg(8, 8)), batch.BatchPlan(), kernel.Pool(1)
    look(plan, [case], (8, 8), pool=pool)
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        look(plan, [case], (8, 8), pool=pool)
    staged = aligned(1 << 16)
    plan.fill(staged)
    assert (staged == FILLED).all()


@pytest.mark.parametrize("size", [(0, 8), (8, 16385)])
def test_an_output_that_is_too_small_or_too_large_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="shape must be height and width, from 1 to 16384"):
        look(batch.BatchPlan(), [whole(make_jpeg(8, 8))], size)


def test_more_images_than_a_grid_holds_are_refused() -> None:
    n = batch.MAX_IMAGES + 1
    with pytest.raises(ValueError, match="at most 65535 crops, got 65536"):
        batch.BatchPlan().look(
            kernel.Inputs([b""] * n),
            boxes=np.zeros((n, 4), np.int32),
            flips=np.zeros(n, np.bool_),
            size=(8, 8),
        )


def test_quantisers_that_overflow_give_a_status_or_the_same_pixels(launch: Emulator) -> None:
    # Values beyond the range of samples, and beyond that of the IDCT.
    data = bytearray(make_jpeg(48, 48, "4:2:0", quality=90))
    at = data.index(b"\xff\xdb") + 5
    for value in (1, 60, 255):
        data[at] = data[at + 2] = value
        case = whole(bytes(data))
        out, statuses, _ = decode(launch, [case], (20, 20))
        assert statuses[0] or np.array_equal(out[0], by_cpu(case, (20, 20)))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_damaged_data_gives_a_status_or_the_pixels_of_the_cpu_path(launch: Emulator, sampling: str) -> None:
    rng = np.random.default_rng(3)
    cases = []
    for case in draw_cases(sampling, 7, 40):

        def change(data: bytearray, begin: int) -> None:
            for at in rng.integers(begin, len(data), int(rng.integers(1, 4))):
                data[at] = int(rng.integers(256))

        cases.append(spoil(case, change))
    out, statuses, taken = decode(launch, cases, (16, 16))
    good = 0
    for i, case in enumerate(cases):
        if taken[i] and statuses[i] == 0:
            assert np.array_equal(out[i], by_cpu(case, (16, 16)))
            good += 1
        elif taken[i]:
            assert not out[i].any()
    assert 0 < good < len(cases)
