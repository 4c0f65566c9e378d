# SPDX-License-Identifier: Apache-2.0
"""Choose the order that the options ask for; read the labels where weights need them."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedrate.draws import F64
from feedrate.errors import UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.load.options import Options, find_label
from feedrate.load.order import Given, Order, Sequential, Shuffled, Staged, Weighted, Windowed
from feedrate.load.splits import Split, members


def choose_order(pack: Pack, options: Options, subset: Split) -> Order:
    """Return the order over the samples of `subset`."""
    n = len(subset)
    if options.weights is not None:
        return Weighted(_weigh(pack, options.weights, subset), options.seed)
    order = options.order
    if order is None and options.shuffle:
        # Not whether there is a copy, or how much of it: ranks on several nodes would not agree.
        order = "shuffled" if options.scratch is None else "staged"
    if order is None:
        return Sequential(n)
    if not isinstance(order, str):
        return Given(order, n)
    if order == "staged":
        return _stage(pack, options.seed, subset)
    return Windowed(n, options.seed) if order == "windowed" else Shuffled(n, options.seed)


def _stage(pack: Pack, seed: int, subset: Split) -> Staged:
    if len(subset) == len(pack):
        return Staged(len(pack), seed, pack.edges)
    positions = members(subset)
    by_position = np.argsort(positions)
    return Staged(len(subset), seed, np.searchsorted(positions[by_position], pack.edges), by_position)


def _weigh(pack: Pack, weights: Any, subset: Split) -> F64:
    if isinstance(weights, str):
        if weights != "balanced":
            raise UsageError(f'weights must be "balanced" or one number per sample, got {weights!r}')
        return _balance(pack, subset)
    try:
        given = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f'weights must be "balanced" or one number per sample, got {weights!r}') from None
    if given.shape != (len(pack),):
        raise UsageError(
            f"weights must hold a number for each of the pack's {len(pack)} samples, got shape {given.shape}"
        )
    if not np.isfinite(given).all() or (given < 0).any():
        worst = given[~np.isfinite(given) | (given < 0)][0]
        raise UsageError(f"weights must be finite and not negative, got {worst}")
    chosen = given[members(subset)]
    if len(chosen) and not chosen.sum() > 0:
        raise UsageError("weights are all 0: no sample can be drawn")
    return chosen


def _balance(pack: Pack, subset: Split) -> F64:
    label = find_label(pack)
    if label.kind is not Kind.NUMBER or label.dtype != "int64":
        raise UsageError(
            f'weights="balanced" needs a label of whole numbers; this pack\'s {label.name} is {label.kind}',
            hint="weights=[...] takes one number per sample",
        )
    # Not checked row by row, which takes 24 s for 1.3 million: a damaged row is found when its sample comes.
    _, classes, counts = np.unique(
        pack.column(label.name)[members(subset)], return_inverse=True, return_counts=True
    )
    return 1.0 / counts[classes]
