# SPDX-License-Identifier: Apache-2.0
"""`feedrate.decode_batch` on a GPU gives the bytes of the CPU: `make test-gpu`."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate import decode_batch, kernel
from feedrate.errors import FeedrateError, GpuError
from feedrate.filters import FILTERS
from feedrate.loader import decode_batch as module
from support.packs import encode_mixed

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch: not ours to mend
]
IMAGES = [encode_mixed(i) for i in range(48)]  # 32 of them for the GPU


def draw(rng: np.random.Generator, count: int) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    index = [int(n) for n in rng.integers(0, len(IMAGES), count)]
    boxes = []
    for number in index:
        width, height = Image.open(io.BytesIO(IMAGES[number])).size
        left, top = int(rng.integers(width)), int(rng.integers(height))
        boxes.append((left, top, int(rng.integers(left, width)) + 1, int(rng.integers(top, height)) + 1))
    return boxes, {"image_index": index, "flips": rng.integers(0, 2, count).astype(bool)}


@pytest.mark.parametrize("interpolation", list(FILTERS))
@pytest.mark.parametrize("size", [(17, 30), 64, (224, 225)])
def test_crops_that_share_images_are_those_of_the_cpu(interpolation: str, size: Any) -> None:
    boxes, options = draw(np.random.default_rng(7), 300)
    options["interpolation"] = interpolation
    there = decode_batch(IMAGES, boxes, size, device="cuda", **options)
    assert there.device == torch.device("cuda", torch.cuda.current_device())
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.cpu(), decode_batch(IMAGES, boxes, size, device="cpu", **options))


def test_most_crops_are_made_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def decode_crops(images: Any, entries: Any, wanted: Any, *rest: Any) -> Any:
        made.append(len(wanted.image))
        return kernel.decoding.decode_crops(images, entries, wanted, *rest)

    monkeypatch.setattr(kernel, "decode_crops", decode_crops)
    decode_batch(IMAGES, size=32, device="cuda")
    assert made == [16]


def test_damaged_images_have_the_statuses_of_the_cpu() -> None:
    rng, images = np.random.default_rng(3), []
    for image in IMAGES:
        data = bytearray(image)
        for at in rng.integers(len(data) // 3, len(data), 3):
            data[at] = int(rng.integers(256))
        images.append(bytes(data))
    boxes, options = draw(rng, 200)
    (there, said), (here, also) = (
        decode_batch(images, boxes, 40, device=device, on_error="status", **options)
        for device in ("cuda", "cpu")
    )
    assert said == also
    assert {"ok", "corrupt"} <= {one.status for one in said}
    assert torch.equal(there.cpu(), here)


def test_the_pixels_are_ready_on_the_stream_that_is_current() -> None:
    wanted = int(decode_batch(IMAGES, size=200, device="cpu").long().sum())
    for _ in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(200_000)
            pixels = decode_batch(IMAGES, size=200, device="cuda")
            total = pixels.sum(dtype=torch.int64)
            del pixels  # its memory is not used again before the sum is done
        decode_batch(IMAGES[::-1], size=200, device="cuda")
        assert int(total) == wanted


def test_threads_decode_at_the_same_time() -> None:
    wanted = [decode_batch(IMAGES[i:], size=40, device="cpu") for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            got = threads.map(lambda i: decode_batch(IMAGES[i:], size=40, device="cuda"), range(8))
            assert all(torch.equal(a.cpu(), b) for a, b in zip(got, wanted, strict=True))


def test_memory_stays_where_it_is() -> None:
    boxes, options = draw(np.random.default_rng(1), 200)
    for _ in range(3):
        decode_batch(IMAGES, boxes, 64, device="cuda", **options)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(30):
        decode_batch(IMAGES, boxes, 64, device="cuda", **options)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2 * 200 * 3 * 64 * 64


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(GpuError, match="there is no cuda:99"):
        decode_batch(IMAGES, device="cuda:99")


def test_too_little_memory_on_the_gpu_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_opened", {})
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(FeedrateError, match="has no memory left to decode images"):
            decode_batch(IMAGES, size=2048, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
