# SPDX-License-Identifier: Apache-2.0
"""Random numbers that anyone can draw again: hashes of (seed, epoch, purpose) and of the sample, stateless.

A counter-based generator: the value for a sample does not depend on which samples were drawn before it, so
batch size, ranks, threads and resuming cannot change it. The hash is splitmix64's finaliser (Stafford's
variant 13).

The order in which shards of a pack are copied to scratch is drawn here, too: who trains meanwhile reads them
in that order. `draw_crop` alone draws from Python's own generator: as a plain DataLoader does.
"""

from __future__ import annotations

import enum
import math
import random

import numpy as np

from feedrate.arrays import F64, I64, U64

# By counting permutations and pairs: 8 rounds are even from a few hundred values on, 24 for the smallest.
ROUNDS, SMALL_ROUNDS, SMALL = 8, 24, 1024

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


class Purpose(enum.IntEnum):
    """What a number is drawn for. Values are part of the reproducible result: add, never renumber."""

    ORDER = 1
    BLOCKS = 2
    WINDOW = 3
    OFFSET = 4
    WEIGHTS = 5
    SPLIT = 6
    CROP = 7
    FLIP = 8
    PACK = 9
    STAGE = 10
    FILTER = 11
    COLOR_JITTER = 12
    GRAYSCALE = 13
    GAUSSIAN_BLUR = 14
    SOLARIZE = 15
    ERASE = 16
    NOISE = 17
    MIX = 18
    MIXUP = 19
    CUTMIX = 20


def mix(value: int) -> int:
    """Return a 64-bit hash of a 64-bit value; a bijection."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: U64) -> U64:
    """Return `mix` of each value."""
    out: U64 = values ^ (values >> np.uint64(30))
    out *= np.uint64(_M1)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_M2)
    out ^= out >> np.uint64(31)
    return out


def make_key(*parts: int) -> int:
    """Return one 64-bit key for a seed, an epoch, a purpose, ...; their order matters."""
    key = 0
    for part in parts:
        key = mix(mix(key + _GOLDEN) + mix(part + _GOLDEN))
    return key


def draw_uniforms(key: int, numbers: I64, count: int, slots: I64 | None = None) -> F64:
    """Return `count` numbers in [0, 1) for each sample, as N x count.

    Args:
        numbers: the samples' numbers in the source.
        slots: their places in the epoch's order, when one sample can come several times: each time draws
            anew.
    """
    points = mix_array(numbers.astype(np.uint64) + np.uint64(key))
    if slots is not None:
        points = mix_array(points + mix_array(slots.astype(np.uint64) + np.uint64(mix(key))))
    columns = np.array([mix(key + _GOLDEN * (j + 1)) for j in range(count)], np.uint64)
    hashes = mix_array(points[:, None] ^ columns[None, :])
    uniforms: F64 = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


def permute(indices: I64, n: int, key: int | U64) -> I64:
    """Return where a keyed bijection of 0 .. n-1 sends `indices`; `key` may differ from index to index.

    A Feistel network over Z_a x Z_b with a*b just above n: the few values that fall outside are sent round
    again (about one in sqrt(n)), which keeps it a bijection of exactly 0 .. n-1.
    """
    if n < 2:
        return indices.astype(np.int64)
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    out = _feistel(indices.astype(np.uint64), a, b, key)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _feistel(out[outside], a, b, key if isinstance(key, int) else key[outside])
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)


def _feistel(values: U64, a: int, b: int, key: int | U64) -> U64:
    left, right = np.divmod(values, np.uint64(b))
    for r in range(ROUNDS if a * b >= SMALL else SMALL_ROUNDS):
        round_key = np.uint64(mix(key + r)) if isinstance(key, int) else mix_array(key + np.uint64(r))
        # One bit is given up so that the sum cannot wrap at 2**64: a wrap would break the bijection.
        if r % 2 == 0:
            left = (left + (mix_array(right + round_key) >> np.uint64(1))) % np.uint64(a)
        else:
            right = (right + (mix_array(left + round_key) >> np.uint64(1))) % np.uint64(b)
    joined: U64 = left * np.uint64(b) + right
    return joined


# Shards that flow side by side: the first batches of an epoch come from so many of them.
GROUP = 16


def order_shards(shards: int) -> I64:
    """Return the order in which shards flow: mixed, and the same for all jobs, whatever their seeds."""
    numbers = np.arange(shards, dtype=np.int64)
    return permute(numbers, shards, make_key(shards, Purpose.STAGE)) if shards else numbers


_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of torchvision's RandomResizedCrop


def draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a random crop: torchvision's rule, drawn from Python's `random`."""
    for _ in range(10):
        area = width * height * random.uniform(*_SCALE)
        ratio = math.exp(random.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def pick(count: int, wanted: int, seed: int) -> I64:
    """Return up to `wanted` of the numbers below `count`, in ascending order."""
    if wanted >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, wanted, replace=False)).astype(np.int64)
