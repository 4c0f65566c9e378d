# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on lists of measurements; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

__all__ = ["median", "median_ratio", "spread"]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile; of one value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def median_ratio(after: Sequence[float], before: Sequence[float]) -> float:
    """Return the median of the ratios of paired runs.

    Runs are interleaved, so pair i saw the same neighbours on the machine: the ratio of a pair is steadier
    than the ratio of two medians.
    """
    return median(a / b for a, b in zip(after, before, strict=True))
