# SPDX-License-Identifier: Apache-2.0
"""Pairs of pictures for people to look at: ours, theirs, and the difference made large enough to see."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from feedrate.fidelity.results import ImageDifference, Picture
from feedrate.kernel import I32, U8

_LARGEST_GAIN = 64


@dataclass(frozen=True, slots=True)
class Pair:
    difference: ImageDifference
    ours: U8
    theirs: U8


def draw_pictures(pairs: list[Pair]) -> tuple[Picture, ...]:
    """Return them as PNG files. All differences of one list are multiplied alike, so that they compare."""
    gain = choose_gain(pairs)
    return tuple(
        Picture(pair.difference, _png(pair.ours), _png(pair.theirs), _png(amplify(pair, gain)), gain)
        for pair in pairs
    )


def choose_gain(pairs: list[Pair]) -> int:
    """Return the power of two that makes what differs bright, and whitens no more than single pixels."""
    large = max((float(np.percentile(_difference(pair), 99.5)) for pair in pairs), default=0)
    gain = _LARGEST_GAIN
    while gain > 1 and gain * large > 255:
        gain //= 2
    return gain


def amplify(pair: Pair, gain: int) -> U8:
    """Return the difference of each channel times `gain`, black where there is none."""
    amplified: U8 = np.minimum(_difference(pair) * gain, 255).astype(np.uint8)
    return amplified


def _difference(pair: Pair) -> I32:
    difference: I32 = np.abs(pair.ours.astype(np.int32) - pair.theirs.astype(np.int32))
    return difference


def _png(pixels: U8) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return out.getvalue()
