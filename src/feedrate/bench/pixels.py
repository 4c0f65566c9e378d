# SPDX-License-Identifier: Apache-2.0
"""Do both contestants give the same pixels? The same crops through Pillow and through the kernel, as the
loader calls it.
"""

from __future__ import annotations

import io
import math
import random
from itertools import pairwise

import numpy as np
from PIL import Image

from feedrate import kernel
from feedrate.bench.files import draw_crop
from feedrate.format.pack import Pack
from feedrate.kernel import U8
from feedrate.results import PixelCheck

# Two exact decoders differ in how they round, by a level or two in places. Half a level everywhere: 54 dB.
LOWEST_PSNR_DB = 54.0
LARGEST_DIFFERENCE = 2


def check_pixels(pack_path: str, *, side: int, images: int = 24, seed: int = 0) -> PixelCheck:
    """Decode random crops of up to `images` samples, spread over the pack, both ways."""
    pack = Pack(pack_path)
    try:
        positions = np.unique(np.linspace(0, len(pack) - 1, min(images, len(pack))).astype(np.int64))
        ours, theirs, by_pillow = _decode_both(pack, positions, side, seed)
    finally:
        pack.close()
    return judge_pixels(ours, theirs, by_pillow)


def judge_pixels(ours: U8, theirs: U8, by_pillow: int = 0) -> PixelCheck:
    difference = ours.astype(np.int16) - theirs.astype(np.int16)
    errors = (difference.astype(np.float64) ** 2).mean(axis=(1, 2, 3))
    largest = int(np.abs(difference).max())
    psnr = 10 * math.log10(255**2 / float(errors.max())) if largest else None
    is_same = psnr is None or (psnr >= LOWEST_PSNR_DB and largest <= LARGEST_DIFFERENCE)
    return PixelCheck(len(ours), psnr, largest, is_same, by_pillow)


def _decode_both(pack: Pack, positions: kernel.I64, side: int, seed: int) -> tuple[U8, U8, int]:
    rows, statuses = pack.rows(positions)
    if statuses.any():
        bad = int(np.flatnonzero(statuses)[0])
        raise pack.describe_bad(int(positions[bad]), "image", None, "its row of the index is damaged")
    images = pack.ranges("image", rows, positions)
    state = random.getstate()
    random.seed(seed)
    sizes = zip(rows["image.width"], rows["image.height"], strict=True)
    boxes = np.array([draw_crop(int(w), int(h)) for w, h in sizes], np.int32)
    random.setstate(state)
    ours = np.zeros((len(positions), side, side, 3), np.uint8)
    report = kernel.decode_batch(
        pack.files, images, ours, boxes=boxes, flips=np.zeros(len(positions), np.bool_),
        entries=pack.entries("image", rows, positions),
    )  # fmt: skip
    for number, reason in report.reasons.items():
        raise pack.describe_bad(int(positions[number]), "image", rows[number], reason)
    buffer, starts, _ = kernel.read_ranges(pack.files, images)
    files = [buffer[start:stop].tobytes() for start, stop in pairwise(starts)]
    theirs = [_decode_with_pillow(file, box, side) for file, box in zip(files, boxes, strict=True)]
    return ours, np.stack(theirs), report.by_pillow


def _decode_with_pillow(file: bytes, box: kernel.I32, side: int) -> U8:
    with Image.open(io.BytesIO(file)) as image:
        crop = image.convert("RGB").crop((int(box[0]), int(box[1]), int(box[2]), int(box[3])))
    return np.asarray(crop.resize((side, side), Image.Resampling.BILINEAR))
