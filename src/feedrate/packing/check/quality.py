# SPDX-License-Identifier: Apache-2.0
"""What a shard's packing finds out about its samples, in numbers that add up and do not grow with them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feedrate.arrays import F64
from feedrate.format.index import ByteStrings, join_texts
from feedrate.kernel import I64, U32, ImageKind
from feedrate.packing.values import ImageFacts
from feedrate.units import printable

KEPT, REJECTED, NORMALISED, MAPPED, FILLED = "kept", "rejected", "normalised", "mapped", "filled up"
# A shard remembers so many of a kind by name, and so many of the most expensive ones.
EXAMPLES, SLOWEST = 10, 10
_TOGETHER = 4096  # images that are counted at a time, where many come
BINS_PER_OCTAVE = 4
SIDES = (32, 64, 128, 224, 256, 384, 512, 768, 1024, 2048, 4096)

_FORMAT_OF_SUFFIX = {
    b"jpg": "JPEG", b"jpeg": "JPEG", b"png": "PNG", b"webp": "WEBP", b"bmp": "BMP", b"tif": "TIFF",
    b"tiff": "TIFF", b"gif": "GIF", b"ppm": "PPM", b"pgm": "PPM", b"avif": "AVIF",
}  # fmt: skip
# Of the images that go into a shard many at a time: format, and Pillow's mode where it is Pillow's.
_PLAIN = {
    ImageKind.JPEG: ("JPEG", ""), ImageKind.GRAY_JPEG: ("JPEG", "L"), ImageKind.PNG_GRAY: ("PNG", "L"),
    ImageKind.PNG_RGB: ("PNG", "RGB"), ImageKind.PNG_PALETTE: ("PNG", "P"), ImageKind.PNG_BITS: ("PNG", "1"),
    ImageKind.PNG_GRAY_ALPHA: ("PNG", "LA"), ImageKind.PNG_RGB_ALPHA: ("PNG", "RGBA"),
}  # fmt: skip
# By number of the kind: which of them are odd, and in what way.
_PLAIN_ODD = {
    code: np.array([_PLAIN[kind][1] in modes for kind in ImageKind])
    for code, modes in (("alpha", ("RGBA", "LA")), ("gray", ("1", "L", "LA")))
}
# Nanoseconds per pixel, decoding photographs on one core: relations matter here, not the machine. What the
# kernel takes costs by bytes, too.
_NS_PER_PIXEL = {"JPEG": 2.3, "PNG": 33.0, "WEBP": 20.0, "AVIF": 34.0, "GIF": 14.0, "raw": 1.0}
_OTHER_NS_PER_PIXEL, _KERNEL_NS_PER_BYTE = 18.0, 5.5
_EXTREMES = {"smallest": 1, "largest": -1}


class QualityTally:
    """Counts along while a shard is made."""

    def __init__(self) -> None:
        self.formats: dict[str, list[int]] = {}  # images, bytes
        self.short_sides: Counter[int] = Counter()
        self.long_sides: Counter[int] = Counter()
        self.extremes: dict[str, list[Any]] = {}  # "smallest", "largest" -> path, width, height
        self.costs: Counter[int] = Counter()  # by the logarithm of the estimated time
        self.slowest: list[list[Any]] = []  # microseconds, path, words
        self.odd: dict[str, dict[str, Any]] = {}
        self.left_out = 0
        self._least, self._most = math.inf, 0
        self._waiting: list[tuple[ByteStrings, I64, U32, U32, I64]] = []  # of `add_plain`
        self._waiting_images = 0

    def add_image(self, path: bytes, size_bytes: int, facts: ImageFacts, *, done: str, turned: bool) -> None:
        """Count an image as the source has it. `done`: what became of the file; `turned`: set upright."""
        self._count_waiting()  # examples are the first ones
        self.add_format(facts.format, 1, size_bytes)
        short, long = sorted((facts.width, facts.height))
        self.short_sides[bisect_right(SIDES, short)] += 1
        self.long_sides[bisect_right(SIDES, long)] += 1
        self._compare(path, facts.width, facts.height)
        self.add_orientation(
            path, facts.orientation, NORMALISED if turned else MAPPED if done == MAPPED else KEPT
        )
        if facts.pillow_reason is None and facts.format == "JPEG":
            if facts.is_gray:
                self.add("gray", path, "JPEG", done)
        else:
            self._count_kind(path, facts, done)
        expected = _FORMAT_OF_SUFFIX.get(path.rpartition(b".")[2].lower())
        if expected is not None and expected not in facts.format:
            self.add("wrong-suffix", path, f"is {facts.format}", done)

    def add_cost(self, path: bytes, facts: ImageFacts, size_bytes: int) -> None:
        """Count what decoding an image will cost, as it is stored."""
        is_by_kernel = facts.pillow_reason is None and facts.format == "JPEG"
        name = "JPEG" if is_by_kernel else facts.format.replace("JPEG", "other")
        by_bytes = _KERNEL_NS_PER_BYTE if is_by_kernel else 0.0
        pixels = facts.width * facts.height
        cost_us = (pixels * _NS_PER_PIXEL.get(name, _OTHER_NS_PER_PIXEL) + size_bytes * by_bytes) / 1000
        self.costs[round(BINS_PER_OCTAVE * math.log2(max(cost_us, 0.01)))] += 1
        self._note_slow(path, cost_us, facts.format, facts.width, facts.height)

    def _note_slowest(
        self, paths: Sequence[bytes], costs_us: F64, kinds: I64, widths: U32, heights: U32
    ) -> None:
        start, step = 0, SLOWEST
        while start < len(paths):
            stop = min(start + step, len(paths))
            least = self.slowest[-1][0] if len(self.slowest) == SLOWEST else -1.0
            for i in (np.flatnonzero(costs_us[start:stop] > least) + start).tolist():
                name = _PLAIN[ImageKind(int(kinds[i]))][0]
                self._note_slow(paths[i], float(costs_us[i]), name, int(widths[i]), int(heights[i]))
            start, step = stop, 2 * step

    def _note_slow(self, path: bytes, cost_us: float, format_name: str, width: int, height: int) -> None:
        if len(self.slowest) < SLOWEST or cost_us > self.slowest[-1][0]:
            words = f"{format_name}, {width} x {height} pixels"
            self.slowest.append([round(cost_us, 2), printable(path), words])
            self.slowest.sort(key=lambda one: (-one[0], one[1]))
            del self.slowest[SLOWEST:]

    def add_plain(self, paths: ByteStrings, sizes: I64, widths: U32, heights: U32, kinds: I64) -> None:
        """Count many images that are kept, are what their names say, and have plain names: `add_image` and
        `add_cost` for each."""
        # A few large photographs come at a time: counting takes as long for them as for thousands.
        self._waiting.append((paths, sizes, widths, heights, kinds))
        self._waiting_images += len(sizes)
        if self._waiting_images >= _TOGETHER:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if not self._waiting:
            return
        texts, *numbers = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_images = [], 0
        paths = join_texts(texts)
        sizes, widths, heights, kinds = (np.concatenate(one) for one in numbers)
        for kind, count in _count(kinds).items():
            self.add_format(_PLAIN[ImageKind(kind)][0], count, int(sizes[kinds == kind].sum()))
        for code, known in _PLAIN_ODD.items():
            chosen = np.flatnonzero(known[kinds])
            for i in chosen[:EXAMPLES].tolist():
                name, mode = _PLAIN[ImageKind(int(kinds[i]))]
                self.add(code, paths[i], f"{name} of mode {mode}" if code == "alpha" else name, KEPT)
            if len(chosen) > EXAMPLES:
                self.odd[code]["done"][KEPT] += len(chosen) - EXAMPLES
        short, long = np.minimum(widths, heights), np.maximum(widths, heights)
        for sides, counts in ((short, self.short_sides), (long, self.long_sides)):
            counts.update(_count(np.searchsorted(SIDES, sides, side="right")))
        pixels = widths.astype(np.int64) * heights
        for extreme in dict.fromkeys((int(pixels.min()), int(pixels.max()))):
            alike = np.flatnonzero(pixels == extreme)
            i = int(alike[paths.take(alike).find_first()])
            self._compare(paths[i], int(widths[i]), int(heights[i]))
        is_jpeg = kinds <= ImageKind.GRAY_JPEG
        rates = np.where(is_jpeg, _NS_PER_PIXEL["JPEG"], _NS_PER_PIXEL["PNG"])
        by_bytes = np.where(is_jpeg, _KERNEL_NS_PER_BYTE, 0.0)
        costs_us = (pixels * rates + sizes * by_bytes) / 1000
        bins = np.rint(BINS_PER_OCTAVE * np.log2(np.maximum(costs_us, 0.01))).astype(np.int64)
        self.costs.update(_count(bins))
        self._note_slowest(paths, costs_us, kinds, widths, heights)

    def add_format(self, name: str, images: int, size_bytes: int) -> None:
        count = self.formats.setdefault(name, [0, 0])
        count[0] += images
        count[1] += size_bytes

    def add_orientation(self, path: bytes, orientation: int, done: str = KEPT) -> None:
        if orientation != 1:
            self.add("rotated", path, f"EXIF orientation {orientation}", done)

    def add(self, code: str, path: bytes | str, detail: str, done: str) -> None:
        found = self.odd.setdefault(code, {"done": {}, "examples": []})
        found["done"][done] = found["done"].get(done, 0) + 1
        if len(found["examples"]) < EXAMPLES:
            name = printable(path) if isinstance(path, bytes) else path
            found["examples"].append([name, detail, done])

    def dump(self) -> dict[str, Any]:
        """Return what the index part's metadata says."""
        self._count_waiting()
        return {name: value for name, value in vars(self).items() if value and name[0] != "_"}

    def _compare(self, path: bytes, width: int, height: int) -> None:
        pixels = width * height
        if self.extremes and self._least < pixels < self._most:
            return
        for which in _EXTREMES:
            self.add_extreme(which, [printable(path), width, height])
        self._least, self._most = min(self._least, pixels), max(self._most, pixels)

    def add_extreme(self, which: str, here: list[Any]) -> None:
        """Remember an image if it is smaller, or larger; of those of one size the first by name."""
        there = self.extremes.setdefault(which, here)
        self.extremes[which] = min(there, here, key=lambda one: (_EXTREMES[which] * one[1] * one[2], one[0]))

    def _count_kind(self, path: bytes, facts: ImageFacts, done: str) -> None:
        if facts.damage is not None:
            self.add(facts.damage, path, facts.pillow_reason or "", done)
        if "progressive" in facts.format:
            self.add("progressive", path, facts.format, done)
        if facts.mode == "CMYK":
            self.add("cmyk", path, facts.format, done)
        if facts.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
            self.add("alpha", path, f"{facts.format} of mode {facts.mode}", done)
        if facts.mode in ("1", "L", "LA"):
            self.add("gray", path, facts.format, done)
        if facts.is_deep:
            self.add("deep", path, f"{facts.format} of mode {facts.mode}", done)
        if facts.frames > 1:
            self.add("animated", path, f"{facts.format} of {facts.frames} frames", done)


def merge(tallies: Iterable[Mapping[str, Any]]) -> QualityTally:
    """Add up what shards found, in their order."""
    whole = QualityTally()
    for one in tallies:
        for name, count in one.get("formats", {}).items():
            whole.add_format(name, *count)
        for name in ("short_sides", "long_sides", "costs"):
            getattr(whole, name).update({int(bin_): n for bin_, n in one.get(name, {}).items()})
        for which in _EXTREMES:
            if here := one.get("extremes", {}).get(which):
                whole.add_extreme(which, here)
        slowest = [*whole.slowest, *one.get("slowest", [])]
        whole.slowest = sorted(slowest, key=lambda s: (-s[0], s[1]))[:SLOWEST]
        whole.left_out += one.get("left_out", 0)
        for code, found in one.get("odd", {}).items():
            known = whole.odd.setdefault(code, {"done": {}, "examples": []})
            for done, n in found["done"].items():
                known["done"][done] = known["done"].get(done, 0) + n
            known["examples"] = [*known["examples"], *found["examples"]][:EXAMPLES]
    return whole


def _count(numbers: I64) -> dict[int, int]:
    """Return how often each number is there, in order."""
    values, counts = np.unique(numbers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
