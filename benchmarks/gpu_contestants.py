# SPDX-License-Identifier: Apache-2.0
"""Who else decodes the batches of gpu_decode.py: the CPU path, nvJPEG, and the prototype it began with.

Each has `run(number)`, which decodes the batch of that number; numbers beyond the last begin anew.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from photo_copies import PhotoCopies
from threads import say

from feedrate import kernel

PROTOTYPE_IMAGES = 2048  # in turn: 220 MB, several times a GPU's cache; it prepares them in Python
CHECKED = 20


class CpuKernel:
    """feedrate's decoder on the CPU: bytes come from the page cache, checksums are compared."""

    def __init__(
        self, photos: PhotoCopies, path: Path, count: int, size: int, filter_: int, pool: kernel.Pool
    ) -> None:
        self.photos, self.count, self.pool = photos, count, pool
        entries = path.with_name("entries")
        photos.entries.tofile(entries)
        self.files = kernel.Files([path, entries])
        self.filters = np.full(count, filter_, np.uint8)
        self.out = np.empty((count, size, size, 3), np.uint8)

    def run(self, number: int) -> None:
        photos, count = self.photos, self.count
        first = number % (len(photos.order) // count) * count
        images = slice(first, first + count)
        report = kernel.decode_batch(
            self.files, self._ranges(0, photos.starts, images, photos.crcs[images]), self.out,
            boxes=photos.boxes[images], flips=photos.flips[images], filters=self.filters,
            entries=self._ranges(1, photos.entry_starts, images), pool=self.pool,
        )  # fmt: skip
        assert not report.statuses.any()
        assert not report.by_pillow

    def _ranges(self, file: int, starts: Any, images: slice, crcs: Any = None) -> kernel.Ranges:
        here = starts[images.start : images.stop + 1]
        return kernel.Ranges(np.full(self.count, file, np.int32), here[:-1].copy(), np.diff(here), crcs)


def why_no_nvjpeg() -> str | None:
    """Return why torchvision does not decode JPEGs on this GPU; None: it does."""
    try:
        import torchvision
    except ImportError as error:
        return f"torchvision: {error}"
    try:
        one = torchvision.io.encode_jpeg(torch.zeros(3, 16, 16, dtype=torch.uint8))
        torchvision.io.decode_jpeg([one], device="cuda")
    except (AttributeError, RuntimeError) as error:
        return f"torchvision {torchvision.__version__}: {str(error).splitlines()[0]}"
    return None


class NvJpeg:
    """torchvision's decoder on the GPU: files in the host's memory become whole RGB images there."""

    def __init__(self, photos: PhotoCopies, count: int) -> None:
        self.photos, self.count = photos, count
        self.data = torch.from_numpy(photos.data)

    def run(self, number: int) -> None:
        import torchvision

        first = number % (len(self.photos.order) // self.count) * self.count
        starts = self.photos.starts[first : first + self.count + 1].tolist()
        files = [self.data[a:b] for a, b in itertools.pairwise(starts)]
        torchvision.io.decode_jpeg(files, mode=torchvision.io.ImageReadMode.RGB, device="cuda")


class Prototype:
    """A script that is not part of this project, as it stands, but for its last line, which calls `main()`.

    Its own functions read the files, prepare batches and say what its kernels get; what is queued here is
    what its `main` times, zeroing included, in batches of which each is another.
    """

    def __init__(self, script: Path, folder: Path) -> None:
        text = script.read_text().rstrip()
        source = text.removesuffix("\nmain()")
        if source == text:
            raise SystemExit(f"{script} does not end in main(): it is not the prototype that this knows")
        self.names: dict[str, Any] = {"__name__": "prototype"}
        exec(compile(source, script, "exec"), self.names)
        self.folder, self.loaded, self.bytes_per_entry = folder, [], 0
        self.kernels = {
            name: torch.cuda._compile_kernel(self.names["SRC"], name) for name in ("huff", "idct", "resize")
        }

    def prepare(self, count: int, bytes_per_entry: int, size: int) -> None:
        if bytes_per_entry != self.bytes_per_entry:
            self.bytes_per_entry = bytes_per_entry
            self.names["kernel"] = SimpleNamespace(scan=lambda data: kernel.scan(data, bytes_per_entry))
            self.loaded = self.names["load"](str(self.folder))
        rng = random.Random(1)
        made = [
            self.names["batch"](self.loaded, count, rng) for _ in range(max(2, PROTOTYPE_IMAGES // count))
        ]
        arrays = ("imgs", "segs", "mcus", "crops", "blob", "luts", "maxcode", "off", "syms", "quants")
        self.batches = [
            SimpleNamespace(
                **{name: to_device(one[name]) for name in arrays},
                segments=len(one["segs"]), mcu_count=len(one["mcus"]), blocks=one["blocks"],
            )
            for one in made
        ]  # fmt: skip
        self.zigzag = to_device(self.names["ZZ"])
        self.coefficients = torch.zeros(
            64 * max(one["blocks"] for one in made), dtype=torch.int16, device="cuda"
        )
        self.planes = torch.zeros(max(one["plane"] for one in made) + 64, dtype=torch.uint8, device="cuda")
        self.out = torch.zeros(count, size, size, 3, dtype=torch.uint8, device="cuda")
        self.count, self.size = count, size
        self.run(0)
        self._check(made[0])

    def run(self, number: int) -> None:
        b = self.batches[number % len(self.batches)]
        self.coefficients[: b.blocks * 64].zero_()
        self.kernels["huff"](
            (-(-b.segments // 64), 1, 1), (64, 1, 1),
            [
                b.segs, b.segments, b.imgs, b.blob, b.luts, b.maxcode, b.off, b.syms, b.quants,
                self.zigzag, self.coefficients,
            ],
        )  # fmt: skip
        self.kernels["idct"](
            (-(-b.mcu_count * 8 // 128), 1, 1), (128, 1, 1),
            [b.mcus, b.mcu_count, b.imgs, self.coefficients, self.planes],
        )  # fmt: skip
        self.kernels["resize"](
            (-(-self.size * self.size // 128), self.count, 1), (128, 1, 1),
            [b.crops, b.imgs, self.planes, self.out, self.size],
        )  # fmt: skip

    def _check(self, made: dict[str, Any]) -> None:
        """Say how far its pixels are from the CPU path's: it computes in floats, chroma is not smoothed."""
        files = {bytes(one["data"][one["begin"] :]): one["data"] for one in self.loaded}
        out, differences = self.out.cpu().numpy(), []
        for i in range(CHECKED):
            image, crop = made["imgs"][i], made["crops"][i]
            body = bytes(made["blob"][image["data"] : image["data"] + image["length"]])
            left, top, width, height = (int(crop[name]) for name in "ltwh")
            wanted = kernel.decode_one(
                files[body], box=(left, top, left + width, top + height), size=(self.size, self.size),
                flip=bool(crop["flip"]),
            )  # fmt: skip
            differences.append(float(np.abs(wanted.astype(int) - out[i]).mean()))
        self.mean_difference = float(np.mean(differences))
        say(f"prototype: pixels differ from the CPU path's by {self.mean_difference:.2f} levels on average")


def to_device(array: Any) -> torch.Tensor:
    data = array.tobytes() if isinstance(array, np.ndarray) else array
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
