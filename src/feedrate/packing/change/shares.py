# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a split: shares that add up, and who gets into which part.

Samples, or groups of them, are sorted by a hash of their names and the seed, and the parts are cut off one
after the other. So the same data gives the same parts, whatever its order in the pack, and new samples move
few others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feedrate.errors import UsageError
from feedrate.kernel import I64

_MOST_ROUNDS = 20  # of moving groups; a few are enough
Share = float | int | Literal["rest"]  # a fraction, a number of samples, or what the others leave


def parse_shares(texts: Sequence[str]) -> dict[str, Share]:
    """Read `train=0.9`, `train=90%`, `validation=5000` and `train=rest`."""
    shares: dict[str, Share] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' is not a part", hint="write it like train=0.9, or train=rest")
        if name in shares:
            raise UsageError(f"part '{name}' is given twice")
        shares[name] = _parse_share(name, value)
    return shares


def _parse_share(name: str, text: str) -> Share:
    if text == "rest":
        return "rest"
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise UsageError(
            f"part '{name}' cannot have '{text}'",
            hint="write a fraction (0.9), a percentage (90%), a number of samples (5000) or rest",
        ) from None


def count_shares(shares: Mapping[str, Share], samples: int) -> list[int]:
    """Return how many samples each part gets; they add up to `samples` exactly."""
    fixed = {name: share for name, share in shares.items() if share != "rest"}
    for name, share in fixed.items():
        if isinstance(share, bool) or not float(share) > 0:
            raise UsageError(f"part '{name}' must get more than 0, got {share}")
    wanted = {n: float(s) * samples if isinstance(s, float) else float(s) for n, s in fixed.items()}
    total = sum(wanted.values())
    if total > samples * (1 + 1e-9) or (len(fixed) == len(shares) and total < samples * (1 - 1e-9)):
        said = ", ".join(f"{name}={share}" for name, share in shares.items())
        raise UsageError(
            f"{said} adds up to {total:,.10g} samples, and the pack has {samples:,}",
            hint="fractions must add up to 1; NAME=rest takes what the others leave",
        )
    counts = dict(zip(wanted, _round_to(list(wanted.values()), round(total)), strict=True))
    left = samples - sum(counts.values())
    return [counts.get(name, left) for name in shares]


def count_missing(counts: Sequence[int], given: I64) -> list[int]:
    """Return how many of the samples without a part (-1) each part gets, so that `counts` are met."""
    there = np.bincount(given[given >= 0], minlength=len(counts))
    missing = np.maximum(np.array(counts) - there, 0)
    free = int((given < 0).sum())
    # Where a part has too much already, the others get less than they miss.
    return _round_to((missing * (free / max(int(missing.sum()), 1))).tolist(), free)


def _round_to(wanted: Sequence[float], total: int) -> list[int]:
    """Round numbers so that they add up: those with the largest fractions up."""
    counts = [int(value + 1e-9) for value in wanted]
    for place in sorted(range(len(wanted)), key=lambda i: counts[i] - wanted[i])[: total - sum(counts)]:
        counts[place] += 1
    return counts


def split_samples(hashes: np.ndarray[Any, Any], strata: I64, counts: Sequence[int]) -> I64:
    """Return the part of each sample: exactly `counts`, and of each stratum its share, give or take a few."""
    parts = np.full(len(hashes), len(counts) - 1, np.int64)
    left = np.lexsort((hashes, strata))
    for part, count in enumerate(counts[:-1]):
        if not len(left):
            break
        sizes = np.bincount(strata[left])
        ends = np.cumsum(sizes)
        taken = np.diff(ends * count // len(left), prepend=0)
        place = np.arange(len(left)) - (ends - sizes)[strata[left]]
        chosen = place < taken[strata[left]]
        parts[left[chosen]] = part
        left = left[~chosen]
    return parts


def split_groups(groups: I64, hashes: np.ndarray[Any, Any], counts: Sequence[int]) -> I64:
    """Return the part of each sample; groups stay whole, so counts are met as nearly as groups allow.

    Args:
        groups: of each sample.
        hashes: of each group.
    """
    sizes = np.bincount(groups, minlength=len(hashes))
    order = np.argsort(hashes, kind="stable")
    # Where a group's middle falls when groups are laid end to end.
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of_group = np.zeros(len(hashes), np.int64)
    part_of_group[order] = np.searchsorted(np.cumsum(counts)[:-1], middles, side="right")
    return part_of_group[groups]


def split_strata_of_groups(
    groups: I64, hashes: np.ndarray[Any, Any], strata: I64, counts: Sequence[int], given: I64
) -> I64:
    """Return the part of each sample: groups stay whole, each part gets its share of each stratum as nearly
    as they allow.

    Large groups are placed first, those of about one size in the order of their hashes, each where it brings
    the parts nearest to their shares; then groups move as long as that brings them nearer still.

    Args:
        groups: of each sample.
        hashes: of each group.
        strata: of each sample, from 0.
        counts: samples of each part.
        given: the part of each sample, -1: none yet. A group that has one keeps it.
    """
    classes = int(strata.max()) + 1
    held = _count_held(groups, strata, len(hashes), classes)
    sizes = np.bincount(groups, minlength=len(hashes))
    # The whole counts as one more stratum, so that parts have the sizes that they should.
    totals = np.append(np.bincount(strata, minlength=classes), len(strata)).astype(float)
    shares = np.array(counts) / max(sum(counts), 1)
    wanted = shares[:, None] * totals
    weights = 1 / np.maximum(wanted, 1e-9)
    there = np.zeros_like(wanted)
    part_of = np.full(len(hashes), -1, np.int64)
    part_of[groups[given >= 0]] = given[given >= 0]
    for group in np.flatnonzero(part_of >= 0):
        kinds, numbers = held[group]
        there[part_of[group], kinds] += numbers
    free = np.flatnonzero(part_of < 0)
    order = free[np.lexsort((hashes[free], -np.floor(np.log2(np.maximum(sizes[free], 1)))))]
    for _ in range(_MOST_ROUNDS):
        is_moved = False
        for group in order.tolist():
            kinds, numbers = held[group]
            now = int(part_of[group])
            if now >= 0:
                there[now, kinds] -= numbers
            # How much further from their shares (squares, relative to these) all parts are with the group.
            far = (numbers * (2 * (there[:, kinds] - wanted[:, kinds]) + numbers) * weights[:, kinds]).sum(
                axis=1
            )
            best = int(far.argmin())
            if now >= 0 and far[best] > far[now] - 1e-9:
                best = now
            is_moved |= best != now
            part_of[group] = best
            there[best, kinds] += numbers
        if not is_moved:
            break
    return part_of[groups]


def _count_held(groups: I64, strata: I64, number: int, classes: int) -> list[tuple[I64, I64]]:
    """Return of each group which strata it has samples of, and how many; the last is the whole group."""
    pairs, counts = np.unique(groups * classes + strata, return_counts=True)
    ends = np.searchsorted(pairs, np.arange(number + 1) * classes)
    held = []
    for group in range(number):
        inside = slice(ends[group], ends[group + 1])
        kinds, numbers = pairs[inside] - group * classes, counts[inside]
        held.append((np.append(kinds, classes), np.append(numbers, numbers.sum())))
    return held


def hash_names(names: Iterable[bytes], seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a number per name that depends on the name and the seed alone."""
    key = seed.to_bytes(8, "little")
    digests = bytearray()  # 8 bytes per name are held, and not the names
    for name in names:
        digests += hashlib.blake2b(name, digest_size=8, key=key).digest()
    return np.frombuffer(digests, "<u8")
