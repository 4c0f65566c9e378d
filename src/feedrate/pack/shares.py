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


def hash_names(names: Iterable[bytes], seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a number per name that depends on the name and the seed alone."""
    key = seed.to_bytes(8, "little")
    digests = bytearray()  # 8 bytes per name are held, and not the names
    for name in names:
        digests += hashlib.blake2b(name, digest_size=8, key=key).digest()
    return np.frombuffer(digests, "<u8")
