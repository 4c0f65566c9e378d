# SPDX-License-Identifier: Apache-2.0
"""JPEGs decoded on a GPU are those of the CPU path, byte for byte: `make test-gpu`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cuda_on_cpu import Case, look
from feedrate import kernel
from feedrate.kernel.cuda import batch

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]
Decode = Callable[[Sequence[Case], tuple[int, int], int], tuple[Any, Any, Any]]


@pytest.fixture(scope="module")
def decode() -> Decode:
    from feedrate.kernel.cuda.launcher import compile_source

    module = compile_source(batch.source(), batch.COMPILE_OPTIONS)

    def launch(name: str, grid: tuple[int, int], block: int, args: Sequence[Any]) -> None:
        module.launch(name, grid, block, args)

    def decode(cases: Sequence[Case], size: tuple[int, int], channels: int) -> tuple[Any, Any, Any]:
        plan = batch.BatchPlan()
        taken = look(plan, cases, size)
        staged = torch.empty(plan.sizes.staged, dtype=torch.uint8, pin_memory=True)
        plan.fill(staged.numpy())
        buffers = {
            name: torch.empty(count, dtype=torch.uint8, device="cuda")
            for name, count in plan.buffer_bytes().items()
        }
        buffers["staged"][: len(staged)].copy_(staged)
        buffers["words"][: plan.sizes.words].copy_(torch.from_numpy(plan.words))
        out = torch.full((len(cases), *size, channels), 77, dtype=torch.uint8, device="cuda")
        statuses = torch.full((len(cases),), -1, dtype=torch.int32, device="cuda")
        batch.run(plan, launch, buffers, out, statuses, channels)
        return out.cpu().numpy(), statuses.cpu().numpy(), taken

    return decode


def draw_case(rng: np.random.Generator, longest: int) -> Case:
    width, height = (int(n) for n in rng.integers(1, longest, 2))
    coarse = rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, np.int16) + rng.integers(-20, 20, (height, width, 3))
    image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(str(rng.choice(["RGB", "RGB", "L"])))
    options: dict[str, Any] = {"quality": int(rng.integers(30, 98)), "optimize": bool(rng.integers(2))}
    if image.mode == "RGB":
        options["subsampling"] = str(rng.choice(["4:4:4", "4:2:2", "4:2:0"]))
    if rng.random() < 0.2:
        options["restart_marker_blocks"] = int(rng.integers(1, 40))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    data = buffer.getvalue()
    left, top = int(rng.integers(width)), int(rng.integers(height))
    box = (left, top, int(rng.integers(left + 1, width + 1)), int(rng.integers(top + 1, height + 1)))
    entries = kernel.scan(data, int(rng.choice([1, 150, 1000]))).entries
    return Case(data, entries, box, bool(rng.integers(2)), int(rng.integers(6)))


@pytest.mark.parametrize(
    ("count", "longest", "size", "channels"),
    [(300, 60, (17, 30), 3), (100, 700, (224, 224), 3), (60, 300, (64, 96), 1), (1, 2000, (1, 1), 3)],
)
def test_pixels_are_those_of_the_cpu_path(
    decode: Decode, count: int, longest: int, size: tuple[int, int], channels: int
) -> None:
    rng = np.random.default_rng(count)
    cases = [draw_case(rng, longest) for _ in range(count)]
    out, statuses, taken = decode(cases, size, channels)
    assert taken.all()
    assert np.count_nonzero(statuses) <= count // 50  # weights on a rounding border are left to the CPU
    for case, pixels, status in zip(cases, out, statuses, strict=True):
        wanted = kernel.decode_one(
            case.data, box=case.box, size=size, flip=case.flip, mode="RGB" if channels == 3 else "L",
            entries=case.entries, filter_=case.filter,
        )  # fmt: skip
        assert status or np.array_equal(pixels, wanted), (case.box, case.filter, case.flip)


def test_damaged_data_gives_a_status_or_the_pixels_of_the_cpu_path(decode: Decode) -> None:
    rng = np.random.default_rng(5)
    cases, size = [], (40, 40)
    while len(cases) < 200:
        case = draw_case(rng, 200)
        data = bytearray(case.data)
        for at in rng.integers(len(data) // 3, len(data), 3):
            data[at] = int(rng.integers(256))
        entries = bytearray(case.entries)
        entries[4:8] = kernel.crc32c(data).to_bytes(4, "little")
        entries[8:12] = kernel.crc32c(entries[12:], kernel.crc32c(entries[:8])).to_bytes(4, "little")
        cases.append(case._replace(data=bytes(data), entries=bytes(entries)))
    out, statuses, taken = decode(cases, size, 3)
    good = np.flatnonzero(taken & (statuses == 0))
    assert 0 < len(good) < len(cases)
    for i in good:
        case = cases[i]
        wanted = kernel.decode_one(
            case.data, box=case.box, size=size, flip=case.flip, entries=case.entries, filter_=case.filter
        )
        assert np.array_equal(out[i], wanted)
