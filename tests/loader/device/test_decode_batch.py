# SPDX-License-Identifier: Apache-2.0
"""`feedrate.decode_batch` on the CPU, and on a GPU whose kernels run on the CPU (fake_gpu)."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedrate
from feedrate import decode_batch, kernel
from feedrate.errors import FeedrateError, GpuError, NotFound, StorageError, UsageError
from feedrate.filters import FILTERS
from feedrate.kernel import pillow
from feedrate.loader import decode_batch as module
from feedrate.loader.device import gpu_decode
from support.fake_gpu import FakeGpu
from support.packs import encode_image, encode_mixed, make_noise

torch = pytest.importorskip("torch")
JPEG = encode_image(make_noise(1, 96, 70), quality=90)
PROGRESSIVE = encode_image(make_noise(2, 80, 64), progressive=True)
MIXED = [encode_mixed(i) for i in range(12)]  # 8 of them for the GPU


@pytest.fixture
def by_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many crops the CPU made, call by call."""
    made: list[int] = []

    def decode_crops(images: Any, entries: Any, crops: Any, *rest: Any) -> Any:
        made.append(len(crops.image))
        return kernel.decoding.decode_crops(images, entries, crops, *rest)

    monkeypatch.setattr(kernel, "decode_crops", decode_crops)
    return made


def draw_boxes(rng: np.random.Generator, images: list[bytes], index: list[int]) -> list[tuple[int, ...]]:
    boxes = []
    for number in index:
        width, height = Image.open(io.BytesIO(images[number])).size
        left, top = int(rng.integers(width)), int(rng.integers(height))
        boxes.append((left, top, int(rng.integers(left, width)) + 1, int(rng.integers(top, height)) + 1))
    return boxes


def one_by_one(
    images: list[bytes],
    boxes: list[Any],
    size: Any,
    *,
    flips: Any = None,
    interpolation: str = "bilinear",
    image_index: Any = None,
) -> Any:
    """Return what `feedrate.decode` makes of each."""
    index = range(len(images)) if image_index is None else image_index
    flips = [False] * len(boxes) if flips is None else flips
    pixels = [
        feedrate.decode(images[n], crop=box, size=size, flip=flip, interpolation=interpolation)
        for n, box, flip in zip(index, boxes, flips, strict=True)
    ]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def test_a_batch_is_what_decode_makes_of_each_image() -> None:
    boxes = draw_boxes(np.random.default_rng(0), MIXED, list(range(12)))
    flips = [i % 3 == 0 for i in range(12)]
    got = decode_batch(MIXED, boxes, (20, 31), flips=flips, device="cpu")
    assert (got.shape, got.dtype) == ((12, 3, 20, 31), torch.uint8)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got, one_by_one(MIXED, boxes, (20, 31), flips=flips))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", torch.device("cuda", 0), torch.device("cpu")])
@pytest.mark.usefixtures("gpu")
def test_whole_images_are_the_default(device: Any) -> None:
    assert torch.equal(decode_batch(MIXED, size=24, device=device), one_by_one(MIXED, [None] * 12, 24))
    assert decode_batch([JPEG], device=device).shape == (1, 3, 224, 224)


def test_paths_and_buffers_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG)
    sources = [path, str(path), JPEG, bytearray(JPEG), memoryview(JPEG)]
    got = decode_batch(sources, size=9, device="cpu")
    assert torch.equal(got, one_by_one([JPEG] * 5, [None] * 5, 9))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("with_entries", [False, True], ids=["", "entries"])
@pytest.mark.usefixtures("gpu")
def test_crops_that_share_images_are_those_of_images_of_their_own(
    seed: int, device: str, with_entries: bool
) -> None:
    rng = np.random.default_rng(seed)
    index = [int(n) for n in rng.integers(0, len(MIXED), 40)]
    boxes, size = draw_boxes(rng, MIXED, index), (int(rng.integers(1, 40)), int(rng.integers(1, 40)))
    options = {
        "flips": rng.integers(0, 2, 40).astype(bool).tolist(),
        "interpolation": str(rng.choice(list(FILTERS))),
        "image_index": index,
    }
    entries = (
        [kernel.scan(one, int(rng.choice([60, 1000]))).entries for one in MIXED] if with_entries else None
    )
    got = decode_batch(MIXED, boxes, size, entries=entries, device=device, **options)
    assert torch.equal(got, one_by_one(MIXED, boxes, size, **options))


@pytest.mark.parametrize("interpolation", list(FILTERS))
@pytest.mark.parametrize("size", [(7, 90), (96, 70), (33, 64), 1])
@pytest.mark.usefixtures("gpu")
def test_every_filter_gives_the_same_bytes_on_the_gpu_and_the_cpu(interpolation: str, size: Any) -> None:
    boxes = [(0, 0, 96, 70), (3, 9, 90, 20), (50, 0, 60, 70), (95, 69, 96, 70)]
    options: dict[str, Any] = {"image_index": [0] * 4, "interpolation": interpolation}
    there = decode_batch([JPEG], boxes, size, device="cuda", **options)
    assert torch.equal(there, decode_batch([JPEG], boxes, size, device="cpu", **options))


def test_the_gpu_decodes_what_it_takes_and_the_cpu_the_rest(gpu: FakeGpu, by_cpu: list[int]) -> None:
    decode_batch(MIXED, size=16, device="cuda")
    assert gpu.launches.count("read_coefficients") == 1
    assert by_cpu == [4]


def test_a_batch_of_which_the_gpu_takes_nothing_is_on_the_device_all_the_same(
    gpu: FakeGpu, by_cpu: list[int]
) -> None:
    got = decode_batch([PROGRESSIVE] * 2, size=16, device="cuda")
    assert torch.equal(got, one_by_one([PROGRESSIVE] * 2, [None] * 2, 16))
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert (gpu.launches, by_cpu) == ([], [2])


def test_what_the_gpu_finds_fault_with_is_made_by_the_cpu(gpu: FakeGpu, by_cpu: list[int]) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "read_coefficients":
            args[6][0] = 8  # of the crop that the second is cut from the blocks of

    gpu.spoil = spoil
    boxes = [(0, 0, 50, 50), (20, 20, 96, 70), (0, 0, 20, 20)]
    got = decode_batch([JPEG, JPEG], boxes, 16, image_index=[0, 0, 1], device="cuda")
    assert torch.equal(got, one_by_one([JPEG, JPEG], boxes, 16, image_index=[0, 0, 1]))
    assert by_cpu == [2]


def test_a_resize_that_the_gpu_is_unsure_of_is_no_fault_of_crops_beside_it(
    gpu: FakeGpu, by_cpu: list[int]
) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "prepare":
            args[4][0] = 16  # its weights are close to a rounding border

    gpu.spoil = spoil
    boxes = [(0, 0, 50, 50), (20, 20, 96, 70)]
    got = decode_batch([JPEG], boxes, 16, image_index=[0, 0], device="cuda")
    assert torch.equal(got, one_by_one([JPEG], boxes, 16, image_index=[0, 0]))
    assert by_cpu == [1]


@pytest.mark.parametrize(
    ("limit", "value"),
    [("_SLICE", 8), ("kernels.MAX_IMAGES", 7), ("kernels.MOST_MEMORY", 200_000)],
)
def test_more_than_the_gpu_decodes_at_once_is_decoded_there_in_turns(
    limit: str, value: int, gpu: FakeGpu, by_cpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    index = [int(n) for n in rng.integers(0, 12, 60)]
    boxes = draw_boxes(rng, MIXED, index)
    want = one_by_one(MIXED, boxes, 16, image_index=index)
    decode_batch(MIXED, boxes, 16, image_index=index, device="cuda")
    turns, on_cpu = gpu.launches.count("read_coefficients"), sum(by_cpu)
    monkeypatch.setattr(module, "_opened", {})
    monkeypatch.setattr(f"feedrate.loader.decode_batch.{limit}", value)
    got = decode_batch(MIXED, boxes, 16, image_index=index, device="cuda")
    assert torch.equal(got, want)
    assert sum(by_cpu) == 2 * on_cpu
    assert gpu.launches.count("read_coefficients") > 2 * turns


def test_crops_of_an_image_are_planned_together_whatever_the_parts(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE", 4)
    index = [1, 0, 0, 1, *[0] * 20]
    boxes = draw_boxes(np.random.default_rng(2), [JPEG, MIXED[0]], index)
    got = decode_batch([JPEG, MIXED[0]], boxes, 16, image_index=index, device="cuda")
    assert torch.equal(got, one_by_one([JPEG, MIXED[0]], boxes, 16, image_index=index))
    assert gpu.launches.count("read_coefficients") == 1  # cuts fall on the first image alone


def test_an_image_too_large_for_the_gpus_buffers_is_made_by_the_cpu_after_the_turns(
    gpu: FakeGpu, by_cpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_decode.kernels, "MOST_MEMORY", 200_000)
    large = encode_image(make_noise(3, 400, 300))
    got = decode_batch([large, *[JPEG] * 9], size=16, device="cuda")
    assert torch.equal(got, one_by_one([large, *[JPEG] * 9], [None] * 10, 16))
    assert by_cpu == [1]
    assert gpu.launches.count("read_coefficients") > 1


def test_what_the_gpu_finds_fault_with_in_a_later_turn_is_made_by_the_cpu(
    gpu: FakeGpu, by_cpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(name: str, args: Any) -> None:
        if name == "read_coefficients" and gpu.launches.count(name) == 2:
            args[6][:] = 8  # of all images, most of which are not of this turn

    monkeypatch.setattr(gpu_decode.kernels, "MOST_MEMORY", 200_000)
    gpu.spoil = spoil
    images = [encode_image(make_noise(i, 96, 70)) for i in range(6)]
    got = decode_batch(images, size=16, device="cuda")
    assert torch.equal(got, one_by_one(images, [None] * 6, 16))
    assert len(by_cpu) == 1
    assert by_cpu[0] < 6


@pytest.mark.usefixtures("gpu")
def test_memory_that_was_made_in_inference_mode_serves_outside_of_it() -> None:
    with torch.inference_mode():
        decode_batch([JPEG], size=16, device="cuda")
    decode_batch([JPEG], size=16, device="cuda")


@pytest.mark.usefixtures("gpu")
def test_batches_one_after_the_other_use_the_same_memory() -> None:
    for images in (MIXED, MIXED[:3], [JPEG], MIXED[::-1]):
        got = decode_batch(images, size=16, device="cuda")
        assert torch.equal(got, one_by_one(images, [None] * len(images), 16))


@pytest.mark.parametrize("data", [JPEG, PROGRESSIVE], ids=["baseline", "progressive"])
def test_the_cpu_decodes_a_shared_image_once(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    alone, whole = kernel.decoding._decode_alone, pillow.decode_whole
    monkeypatch.setattr(kernel.decoding, "_decode_alone", lambda *a: decoded.append("alone") or alone(*a))
    monkeypatch.setattr(pillow, "decode_whole", lambda *a: decoded.append("whole") or whole(*a))
    boxes = [(0, 0, 60, 60), (10, 4, 64, 64), (1, 1, 80, 50)]
    got = decode_batch([data], boxes, 16, image_index=[0, 0, 0], device="cpu")
    assert decoded == ([] if data is JPEG else ["whole"])
    assert torch.equal(got, one_by_one([data], boxes, 16, image_index=[0, 0, 0]))


def test_small_crops_far_apart_are_decoded_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    alone = kernel.decoding._decode_alone
    monkeypatch.setattr(kernel.decoding, "_decode_alone", lambda *a: decoded.append("alone") or alone(*a))
    options: dict[str, Any] = {"image_index": [0, 0], "device": "cpu"}
    boxes = [(0, 0, 9, 9), (80, 60, 96, 70)]
    got = decode_batch([JPEG], boxes, 8, entries=[kernel.scan(JPEG).entries], **options)
    assert decoded == ["alone"] * 2
    assert torch.equal(got, decode_batch([JPEG], boxes, 8, **options))


def test_entry_points_that_are_given_are_not_looked_for(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, by_cpu: list[int]
) -> None:
    made: list[kernel.Inputs] = []
    take = kernel.Inputs
    monkeypatch.setattr(kernel, "Inputs", lambda *a: made.append(take(*a)) or made[-1])
    other, given = encode_image(make_noise(5, 40, 40)), kernel.scan(JPEG, 1000).entries
    decode_batch([JPEG, other], size=8, entries=[given, None], device="cuda")
    assert [made[0][i][1].tobytes() for i in range(2)] == [given, kernel.find_entry_points(other, 150)]
    assert gpu.launches
    assert by_cpu == []


@pytest.mark.usefixtures("gpu")
def test_entry_points_of_another_file_are_found_out_everywhere() -> None:
    wrong = [kernel.scan(MIXED[0]).entries]
    for device in ("cpu", "cuda"):
        pixels, (status,) = decode_batch([JPEG], size=8, entries=wrong, device=device, on_error="status")
        assert status.status == "bad_entries"
        assert "belong to another file" in status.reason
        assert not pixels.any()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("gpu")
def test_statuses_say_what_is_wrong_with_each_and_bad_pixels_are_zero(tmp_path: Path, device: str) -> None:
    (tmp_path / "notes.jpg").write_text("no pixels")
    images = [JPEG, tmp_path / "notes.jpg", tmp_path / "gone.jpg", tmp_path, JPEG[:700], PROGRESSIVE[:900]]
    index = [0, 0, 1, 2, 3, 4, 5, 0]
    boxes = [(0, 0, 40, 40), (0, 0, 97, 70), *[(0, 0, 40, 40)] * 6]
    pixels, statuses = decode_batch(images, boxes, 16, image_index=index, device=device, on_error="status")
    kinds = [one.status for one in statuses]
    assert kinds == ["ok", "bad_box", "corrupt", "unreadable", "unreadable", "corrupt", "corrupt", "ok"]
    words = [
        "",
        "not inside the image of 96 x 70",
        "not an image",
        "no file at",
        "cannot read",
        "JPEG",
        "",
        "",
    ]
    assert all(word in one.reason for word, one in zip(words, statuses, strict=True))
    assert all((one.reason == "") == (one.status == "ok") for one in statuses)
    assert [bool(one.any()) for one in pixels] == [one.status == "ok" for one in statuses]
    assert torch.equal(pixels[[0, 7]], one_by_one([JPEG] * 2, boxes[:1] * 2, 16))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("gpu")
def test_whole_images_that_cannot_be_measured_have_a_status(device: str) -> None:
    pixels, statuses = decode_batch([b"", b"nothing", JPEG], size=8, device=device, on_error="status")
    assert [one.status for one in statuses] == ["corrupt", "corrupt", "ok"]
    assert not pixels[:2].any()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("gpu")
def test_an_error_names_the_image_and_the_reason(tmp_path: Path, device: str) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("no pixels")
    with pytest.raises(UsageError, match=r"^image 1 \(.*notes.jpg\) cannot be decoded: not an image"):
        decode_batch([JPEG, path], size=8, device=device)
    with pytest.raises(UsageError, match=r"^image 1 \(700 bytes\) cannot be decoded: JPEG ends early"):
        decode_batch([JPEG, JPEG[:700]], [(0, 0, 96, 70)] * 2, 8, device=device)
    with pytest.raises(
        UsageError, match=r"^crop 1, \(0, 0, 97, 70\), of image 0 .*not inside the image of 96 x 70 pixels$"
    ):
        decode_batch([JPEG], [(0, 0, 96, 70), (0, 0, 97, 70)], 8, image_index=[0, 0], device=device)
    with pytest.raises(NotFound, match=r"^image 1: no file at .*gone.jpg"):
        decode_batch([JPEG, tmp_path / "gone.jpg"], size=8, device=device)
    with pytest.raises(StorageError, match=r"^image 1: cannot read "):
        decode_batch([JPEG, tmp_path], size=8, device=device)


def test_an_error_shows_the_box_of_a_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, none = np.array([(97, 70)], np.int32), np.zeros(1, np.int32)
    monkeypatch.setattr(kernel.Inputs, "measure", lambda *_: (sizes, none))
    with pytest.raises(UsageError, match=r"^crop 0, \(0, 0, 97, 70\), of image 0 "):
        decode_batch([JPEG], device="cpu")


@pytest.mark.parametrize("name", ["a\0b.jpg", "\udfff.jpg", "a\ud800.jpg"])
def test_a_name_that_no_file_can_have_is_an_unreadable_file(name: str) -> None:
    with pytest.raises(FeedrateError, match=r"^image 0: "):
        decode_batch([name], device="cpu")
    _, (status,) = decode_batch([name], device="cpu", on_error="status")
    assert status.status == "unreadable"


def test_an_image_that_no_crop_wants_is_not_read(tmp_path: Path) -> None:
    got = decode_batch([tmp_path / "gone.jpg", JPEG], size=8, image_index=[1], device="cpu")
    assert torch.equal(got, one_by_one([JPEG], [None], 8))


def test_a_whole_image_beyond_pillows_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UsageError, match="the whole image has 96 x 70 pixels, the limit is 2,000"):
        decode_batch([JPEG], device="cpu")
    assert decode_batch([JPEG], [(0, 0, 20, 20)], 8, device="cpu").shape == (1, 3, 8, 8)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"images": JPEG}, "images must be a list of paths or of image files' bytes, got bytes"),
    ({"images": "a.jpg"}, "images must be a list of paths or of image files' bytes, got str"),
    ({"images": 3}, "images must be a list of paths or of image files' bytes, got int"),
    ({"images": np.array("a.jpg")}, "images must be a list of paths .*, got ndarray"),
    ({"images": []}, "images is empty: there is nothing to decode"),
    ({"images": [JPEG, 7]}, r"images\[1\] must be a path or an image file's bytes, got int"),
    ({"crops": [(0, 0, 9, 9)]}, "crops has 1, and 2 are needed: one for each image"),
    ({"crops": 5}, "crops must be a list, one for each image, got int"),
    ({"crops": torch.tensor(5)}, "crops must be a list, one for each image, got Tensor"),
    ({"crops": torch.ones(2, 4, requires_grad=True)}, "in whole pixels"),
    ({"crops": torch.ones(2, 4, dtype=torch.bfloat16)}, "in whole pixels"),
    ({"crops": torch.ones(2, 4, device="meta", dtype=torch.int64)}, "in whole pixels"),
    ({"crops": [(0, 0, 9)] * 2}, r"crops must be left, top, right, bottom .* got \[\(0, 0, 9\)"),
    ({"crops": [(0, 0, 9, 9), (0, 0)]}, "crops must be left, top, right, bottom"),
    ({"crops": [(0, 0, 9, 9.5)] * 2}, "in whole pixels"),
    ({"crops": [(0, 0, 9, 9), (5, 0, 5, 9)]}, r"not empty and not negative; crops\[1\] is \(5, 0, 5, 9\)"),
    ({"crops": [(-1, 0, 9, 9), (0, 0, 5, 9)]}, r"crops\[0\] is \(-1, 0, 9, 9\)"),
    ({"crops": [(0, 0, 2**31, 9)] * 2}, r"crops\[0\] is \(0, 0, 2147483648, 9\)"),
    ({"size": 0}, r"decode_batch: size must be a whole number of pixels, or \(height, width\)"),
    ({"size": (8, 2.5)}, "decode_batch: size must be a whole number of pixels"),
    ({"size": 16385}, "decode_batch: size must be at most 16384 pixels a side, got 16385"),
    ({"flips": [True]}, "flips has 1, and 2 are needed: one for each image"),
    ({"flips": np.array(True)}, "flips must be a list, one for each image, got ndarray"),
    ({"flips": [1, 0]}, r"flips must be True or False for each crop, got \[1, 0\]"),
    ({"interpolation": "cubic"}, "decode_batch: interpolation must be one of bilinear, .*; got 'cubic'"),
    ({"entries": b"abc"}, "entries must be a list, bytes for each image, got bytes"),
    ({"entries": np.array(b"abc")}, "entries must be a list, one for each image, got ndarray"),
    ({"entries": [b""]}, "entries has 1, and 2 are needed: one for each image"),
    ({"entries": [b"", "x"]}, r"entries\[1\] must be bytes, b'' or None, got str"),
    ({"image_index": [0, 2]}, r"image_index\[1\] is 2: the images have numbers 0 to 1"),
    ({"image_index": [-1]}, r"image_index\[0\] is -1: the images have numbers 0 to 1"),
    ({"images": [JPEG], "image_index": [1]}, r"image_index\[0\] is 1: the images have numbers 0 alone"),
    ({"image_index": torch.tensor(0)}, "image_index must be whole numbers, one per crop, got tensor"),
    ({"image_index": []}, "image_index is empty: there is nothing to decode"),
    ({"image_index": [0.5]}, r"image_index must be whole numbers, one per crop, got \[0.5\]"),
    ({"image_index": [0, 0, 1], "flips": [True]}, "3 are needed: one for each number in image_index"),
    ({"on_error": "skip"}, 'on_error must be "raise" or "status", got \'skip\''),
    ({"device": "tpu"}, 'device must be "cuda", "cuda:1", a torch.device of these, or "cpu"; got \'tpu\''),
    ({"device": "cuda:x"}, "got 'cuda:x'"),
    ({"device": torch.device("meta")}, r'or "cpu"; got device\(type=\'meta\'\)'),
]


@pytest.mark.parametrize(("options", "words"), ARGUMENTS, ids=lambda value: str(value)[:40])
def test_arguments_that_make_no_sense_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decode_batch(**{"images": [JPEG, JPEG], "device": "cpu", **options})


def test_arrays_and_tensors_are_taken_for_lists() -> None:
    boxes, index, flips = [(0, 0, 20, 20), (5, 5, 90, 60)], [0, 0], [False, True]
    wanted = decode_batch([JPEG], boxes, 8, flips=flips, image_index=index, device="cpu")
    for make in (np.array, torch.tensor):
        got = decode_batch(
            [JPEG], make(boxes), 8, flips=make(flips), image_index=make(index), device="cpu"
        )  # fmt: skip
        assert torch.equal(got, wanted)


def test_a_gpu_that_cannot_be_used_is_an_error_with_the_reason(gpu: FakeGpu) -> None:
    gpu.why_not = "torch finds no GPU: nvidia-smi shows those that the driver sees"
    with pytest.raises(
        GpuError, match=r"device='cuda' cannot decode images: torch finds no GPU: nvidia-smi"
    ) as e:
        decode_batch([JPEG])
    assert e.value.hint == 'device="cpu" gives the same pixels'


def test_too_little_memory_on_the_gpu_is_an_error(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")

    monkeypatch.setattr(gpu_decode.GpuDecoder, "_make_room", fail)
    with pytest.raises(FeedrateError, match="has no memory left to decode images") as e:
        decode_batch([JPEG], device="cuda")
    assert e.value.hint == 'device="cpu" needs none; or ask for fewer images at a time'
    assert gpu.launches == []


@pytest.mark.usefixtures("gpu")
def test_the_gpu_says_nothing_of_what_the_cpu_makes(caplog: pytest.LogCaptureFixture) -> None:
    decode_batch(MIXED, size=8, device="cuda")
    assert caplog.records == []


def test_without_torch_pixels_are_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_output", lambda _: "numpy")
    got = decode_batch([JPEG], size=(8, 9), device="cpu")
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got[0], feedrate.decode(JPEG, size=(8, 9)))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_threads_may_decode_at_the_same_time(device: str) -> None:
    wanted = [one_by_one(MIXED[i:], [None] * (12 - i), 20) for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda i: decode_batch(MIXED[i:], size=20, device=device), range(8)))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
