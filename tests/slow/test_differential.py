# SPDX-License-Identifier: Apache-2.0
"""The kernel against Pillow on thousands of damaged JPEGs: the same pixels, or words; never other pixels.

FEEDRATE_DIFFERENTIAL_FILES says how many, FEEDRATE_DIFFERENTIAL_JSON where the counts go. A file is made
again by its number: `make_mutant(make_corpus(), number).data`.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import PIL
import pytest
from jpeg_mutations import EOI, Mutant, make_corpus, make_mutant, split
from PIL import Image, ImageFile, features

from feedrate import kernel
from feedrate.kernel import DecodeReport, Ranges, Scan, Status
from feedrate.kernel.pillow import FORMATS

# Pillow warns about odd metadata and large sizes; damage makes both.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FILES = int(os.environ.get("FEEDRATE_DIFFERENTIAL_FILES", "4000"))
MOST_PIXELS = 1 << 21  # a changed size may claim more than is worth decoding a dozen times
Box = tuple[int, int, int, int]


def open_by_pillow(data: bytes) -> Image.Image:
    Image.init()
    return Image.open(io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN])


def by_pillow(data: bytes) -> np.ndarray | None:
    """Return Pillow's pixels; None when it refuses, with whatever exception the damage leads it into."""
    try:
        with open_by_pillow(data) as image:
            return np.asarray(image.convert("RGB"))
    except Exception:
        return None


def by_lenient_pillow(data: bytes) -> np.ndarray | None:
    """Return what Pillow makes of a file that ends too soon: the lines above the damage are right."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return by_pillow(data)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def claims_too_much(data: bytes) -> bool:
    try:
        with open_by_pillow(data) as image:
            return image.width * image.height > MOST_PIXELS
    except Exception:
        return False


def crop(pixels: np.ndarray, box: Box) -> np.ndarray:
    left, top, right, bottom = box
    return pixels[top:bottom, left:right]


def are_equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and np.array_equal(a, b)


def find_excuse(data: bytes, pixels: np.ndarray) -> str | None:
    """Say why the kernel may decode what Pillow refuses; there are three reasons, and no others.

    Each is proved: without what Pillow complains about, it decodes the file, and to the same pixels.

    - EOI is missing, or damage follows the image: Pillow asks libjpeg to read on to EOI after the last line,
      and raises when it cannot, or meets what it does not like. By then every MCU is there.
    - Metadata that Pillow cannot read: its own reader takes more of the application segments apart than
      libjpeg, and raises when they are shorter than it thinks. They say nothing about the pixels.
    """
    *image, rest = split(data)
    if decodes_to(b"".join(image) + EOI, pixels):
        return "EOI is missing" if rest in (b"", b"\xff") else "damage follows the image"
    if decodes_to(b"".join(part for part in image if not is_passed_over(part)) + EOI, pixels):
        return "metadata that Pillow cannot read"
    return None


def decodes_to(data: bytes, pixels: np.ndarray) -> bool:
    expected = by_pillow(data)
    if expected is None or expected.shape != pixels.shape:
        return False
    return np.array_equal(expected, pixels) or is_wide(data, (0, 0, *pixels.shape[1::-1]))


def is_passed_over(part: bytes) -> bool:
    """Say whether a part is an application segment or a comment that libjpeg does not look at."""
    if part[:1] != b"\xff" or not (b"\xe0" <= part[1:2] <= b"\xef" or part[1:2] == b"\xfe"):
        return False
    is_jfif = part[1] == 0xE0 and part[4:9] == b"JFIF\0" and len(part) >= 18
    is_adobe = part[1] == 0xEE and part[4:9] == b"Adobe" and len(part) >= 16
    return not is_jfif and not is_adobe


def is_wide(data: bytes, box: Box) -> bool:
    """Say whether kernel and Pillow differ by nothing but sums in the IDCT that need more than 16 bits.

    Only damage makes such coefficients, and what they decode to depends on the machine: of 47 such files
    libjpeg-turbo's C code (JSIMD_FORCENONE=1) and its AVX2 code, where these sums wrap, agreed on two. The
    proof: with quantisation tables of ones, which keep the coefficients small, both give the same pixels.
    """
    parts = [of_ones(part) if part[:2] == b"\xff\xdb" else part for part in split(data)]
    small = b"".join(parts)
    expected = by_lenient_pillow(small)
    return expected is not None and are_equal(decode_one(small, box=box), crop(expected, box))


def of_ones(tables: bytes) -> bytes:
    flat, at = bytearray(tables), 4
    while at < len(flat):
        one = b"\0\1" if flat[at] >> 4 else b"\1"
        flat[at + 1 : at + 1 + 64 * len(one)] = one * 64
        at += 1 + 64 * len(one)
    return bytes(flat)


def decode_one(data: bytes, *, box: Box | None = None, entries: bytes = b"") -> np.ndarray | None:
    try:
        return kernel.decode_one(data, box=box, entries=entries)
    except ValueError as error:
        words = str(error)
    assert words, "an error without words"
    return None


class Stored:
    """An image on disk with entry points behind it, as a pack has them."""

    def __init__(self, path: Path, data: bytes, tables: list[bytes]) -> None:
        parts = [data, *tables]
        path.write_bytes(b"".join(parts))
        self.files = kernel.Files([path])
        self.length = np.array([len(part) for part in parts], np.int64)
        self.offset = np.cumsum(self.length) - self.length
        self.crc32c = np.array([kernel.crc32c(part) for part in parts], np.uint32)

    def decode(self, boxes: list[Box], tables: list[int]) -> tuple[np.ndarray, DecodeReport]:
        """Decode boxes of one size, each with the entry points of that number."""
        left, top, right, bottom = boxes[0]
        out = np.full((len(boxes), bottom - top, right - left, 3), 77, np.uint8)
        report = kernel.decode_batch(
            self.files,
            self.ranges([0] * len(boxes)),
            out,
            boxes=np.array(boxes, np.int32),
            flips=np.zeros(len(boxes), np.bool_),
            entries=self.ranges([1 + number for number in tables]),
        )
        return out, report

    def ranges(self, parts: list[int]) -> Ranges:
        return Ranges(
            np.zeros(len(parts), np.int32), self.offset[parts], self.length[parts], self.crc32c[parts]
        )


NO_TABLE, OWN, STRANGERS = 0, 1, (2, 3)


class Comparison:
    """One damaged file, decoded in every way; `run` says how it ended, or raises."""

    def __init__(self, mutant: Mutant, strangers: list[bytes], path: Path, rng: np.random.Generator) -> None:
        self.data, self.strangers, self.rng = mutant.data, strangers, rng
        self.scan: Scan = kernel.scan(self.data)
        self.stored = Stored(path, self.data, [b"", self.scan.entries, *strangers])
        self.expected = by_pillow(self.data)
        self.counts: Counter[str] = Counter()

    def run(self) -> str:
        assert self.scan.damaged <= (self.scan.reason is not None), self.scan
        assert bool(self.scan.entries) == (self.scan.reason is None), self.scan
        height, width = (
            (self.scan.height, self.scan.width) if self.expected is None else self.expected.shape[:2]
        )
        if not 0 < width * height <= MOST_PIXELS:  # of a file that Pillow refuses
            width = height = 1
        box = (0, 0, width, height)
        pixels, verdict = self.compare_whole(box)
        self.check_strangers(box)
        self.check_crops(pixels, width, height)
        return verdict

    def compare_whole(self, box: Box) -> tuple[np.ndarray | None, str]:
        out, report = self.stored.decode([box] * 2, [NO_TABLE, OWN])
        native = report.by_pillow == 0
        one = decode_one(self.data)
        assert report.statuses[0] == report.statuses[1], f"entry points change the outcome: {report}"
        assert np.array_equal(out[0], out[1]), "entry points change pixels"
        if report.statuses[0] != Status.OK:
            assert not out.any(), "pixels without a good status"
            assert all(report.reasons.get(i) for i in range(2)), "a status without words"
            assert one is None, f"decode_one gives pixels, decode_batch says {report.reasons[0]}"
            assert self.expected is None, f"Pillow decodes it, the kernel says {report.reasons[0]}"
            return None, "refused by both"
        assert are_equal(one, out[0]), "decode_one and decode_batch differ"
        assert native == (self.scan.reason is None), (
            f"scan says {self.scan.reason}, decode {report.pillow_reasons}"
        )
        if self.expected is None:
            excuse = find_excuse(self.data, out[0]) if native else None
            assert excuse, "Pillow refuses it, the kernel decodes it, and the image is not whole"
            return out[0], f"decoded by the kernel, refused by Pillow: {excuse}"
        if not np.array_equal(out[0], self.expected):
            assert native, "Pillow and the kernel's way through Pillow differ"
            assert is_wide(self.data, box), "other pixels than Pillow's"
            return out[0], "decoded by both, beyond 16 bits in the IDCT"
        kind = "damaged" if self.scan.damaged else "of another kind"
        return out[0], "decoded by the kernel" if native else f"{kind}, decoded by Pillow"

    def check_strangers(self, box: Box) -> None:
        """Entry points of the file before the damage and of another file: refused, whatever the file is."""
        out, report = self.stored.decode([box] * len(STRANGERS), list(STRANGERS))
        for i, entries in enumerate(self.strangers):
            if not entries:
                continue
            assert report.statuses[i] == Status.BAD_ENTRIES, f"entry points of another file: {report}"
            assert not out[i].any(), "pixels by entry points of another file"
            assert decode_one(self.data, entries=entries) is None, (
                "decode_one takes entry points of another file"
            )
            self.counts["entry points of other files refused"] += 1
        self.stored.crc32c[0] ^= 1
        out, report = self.stored.decode([box], [OWN])
        self.stored.crc32c[0] ^= 1
        assert report.statuses.tolist() == [Status.CRC_MISMATCH], "a wrong checksum is not noticed"
        assert not out.any(), "pixels with a wrong checksum"

    def check_crops(self, pixels: np.ndarray | None, width: int, height: int) -> None:
        across, down = int(self.rng.integers(1, width + 1)), int(self.rng.integers(1, height + 1))
        lefts = self.rng.integers(0, width - across + 1, 2).tolist()
        tops = [0, int(self.rng.integers(0, height - down + 1))]
        boxes: list[Box] = [
            (left, top, left + across, top + down) for left, top in zip(lefts, tops, strict=True)
        ]
        out, report = self.stored.decode(boxes * 2, [NO_TABLE, NO_TABLE, OWN, OWN])
        for i, box in enumerate(boxes * 2):
            if report.statuses[i] != Status.OK:
                assert pixels is None, f"the whole decodes, the crop {box} does not: {report.reasons[i]}"
                assert report.reasons[i], "a status without words"
            elif pixels is None:
                # Damage below the crop is not met. A pack's checksums are there to find it.
                lenient = by_lenient_pillow(self.data)
                right = lenient is not None and np.array_equal(out[i], crop(lenient, box))
                assert right or is_wide(self.data, box), (
                    f"Pillow refuses the file, and the crop {box} is wrong"
                )
                self.counts["crops above the damage of refused files"] += 1
            else:
                right = np.array_equal(out[i], crop(pixels, box))
                assert right or is_wide(self.data, box), f"the crop {box} is not that of the whole"
                self.counts["crops of decoded files"] += 1


def compare_files(count: int, folder: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    corpus = make_corpus()
    entries = [kernel.scan(data).entries for data in corpus]
    verdicts: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    differences = []
    for number in range(count):
        mutant = make_mutant(corpus, number)
        if claims_too_much(mutant.data):
            verdicts["too large to compare"] += 1
            continue
        other = (mutant.base + 5) % len(corpus)
        strangers = [b"" if mutant.data == corpus[i] else entries[i] for i in (mutant.base, other)]
        comparison = Comparison(mutant, strangers, folder / "stored", np.random.default_rng(number))
        try:
            verdicts[comparison.run()] += 1
        except AssertionError as difference:
            words = str(difference).splitlines()[0]
            differences.append(f"file {number} ({', '.join(mutant.changes)}): {words}")
            (folder / f"{number}.jpg").write_bytes(mutant.data)
        checks += comparison.counts
        comparison.stored.files.close()
    return verdicts, checks, differences


def test_kernel_and_pillow_agree_on_damaged_files(tmp_path: Path) -> None:
    verdicts, checks, differences = compare_files(FILES, tmp_path)
    counts = {
        "files": FILES,
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
        "verdicts": dict(verdicts.most_common()),
        "checks": dict(checks.most_common()),
        "differences": differences,
    }
    if target := os.environ.get("FEEDRATE_DIFFERENTIAL_JSON"):
        Path(target).write_text(json.dumps(counts, indent=1) + "\n")
    print(json.dumps(counts, indent=1))
    assert not differences, f"{len(differences)} files, kept in {tmp_path}:\n" + "\n".join(differences[:20])
    # The damage is neither so mild nor so coarse that one side of the contract goes untested.
    for verdict in ("decoded by the kernel", "damaged, decoded by Pillow", "refused by both"):
        assert verdicts[verdict] > FILES / 10, verdicts
