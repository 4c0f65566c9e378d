# SPDX-License-Identifier: Apache-2.0
"""Gigabytes of photographs in memory, for decoders that are to find none of them in a cache."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threads import say

from feedrate import kernel
from feedrate.kernel.cuda import batch as contract

MOST_MEMORY = 64 << 30
Box = tuple[int, int, int, int]


class PhotoCopies:
    """Copies of the photographs, one behind the other, in orders of their own; and what is wanted of each.

    Attributes:
        files: the photographs that have entry points, once.
        order: which of them each image is.
        data, starts: all images' bytes, and where each begins.
        entries, entry_starts: the same for entry points, once they are noted.
    """

    def __init__(self, folder: Path, gigabytes: float) -> None:
        found = [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]
        scans = [kernel.scan(data) for data in found]
        self.files = [data for data, scan in zip(found, scans, strict=True) if scan.entries]
        sizes = [(scan.width, scan.height) for scan in scans if scan.entries]
        say(f"{len(self.files)} of {len(found)} files have entry points")
        draw, rng = random.Random(0), np.random.default_rng(0)
        copies = max(1, math.ceil(gigabytes * 1e9 / sum(map(len, self.files))))
        self.order = np.concatenate([rng.permutation(len(self.files)) for _ in range(copies)])
        self.data, self.starts = self._join(self.files)
        self.data.setflags(write=False)  # so that nothing copies it
        self.crcs = np.array([kernel.crc32c(data) for data in self.files], np.uint32)[self.order]
        self.whole = np.array([(0, 0, *sizes[i]) for i in self.order], np.int32)
        self.boxes = np.array([draw_box(*sizes[i], draw) for i in self.order], np.int32)
        self.flips = rng.random(len(self.order)) < 0.5

    def note_entries(self, bytes_per_entry: int) -> None:
        found = [kernel.find_entry_points(data, bytes_per_entry) for data in self.files]
        self.entries, self.entry_starts = self._join(found)
        self.entries.setflags(write=False)
        say(
            f"entry points every {bytes_per_entry} bytes: "
            f"{self.entry_starts[-1] / self.starts[-1]:.2%} of the files"
        )

    def _join(self, parts: Sequence[bytes]) -> tuple[Any, Any]:
        arrays = [np.frombuffer(part, np.uint8) for part in parts]
        starts = np.zeros(len(self.order) + 1, np.int64)
        np.cumsum(np.array([len(part) for part in parts])[self.order], out=starts[1:])
        return np.concatenate([arrays[i] for i in self.order]), starts

    def look(
        self, plan: contract.BatchPlan, images: slice, boxes: Any, size: int, filter_: int, pool: Any
    ) -> Any:
        """Plan a batch; return which images were taken."""
        return plan.look(
            kernel.Inputs(*self.take(images)), boxes=boxes[images], flips=self.flips[images],
            filters=np.full(images.stop - images.start, filter_, np.uint8), size=(size, size),
            most_memory=MOST_MEMORY, pool=pool,
        )  # fmt: skip

    def take(self, images: slice) -> tuple[list[memoryview], list[memoryview]]:
        """Return the bytes of some images, and their entry points."""
        data, entries = (
            [memoryview(whole)[a:b] for a, b in itertools.pairwise(starts[images.start : images.stop + 1])]
            for whole, starts in (
                (self.data, self.starts.tolist()),
                (self.entries, self.entry_starts.tolist()),
            )
        )
        return data, entries


def draw_box(width: int, height: int, rng: random.Random) -> Box:
    """Return a crop as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area, ratio = (
            width * height * rng.uniform(0.08, 1),
            math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
