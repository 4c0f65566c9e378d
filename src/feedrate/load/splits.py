# SPDX-License-Identifier: Apache-2.0
"""Which samples a split holds: a share of all, or a part that 'feedrate split' stored in the pack."""

from __future__ import annotations

import difflib

import numpy as np

from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import I64
from feedrate.load.order import Members, Subset, cut
from feedrate.units import typed

Split = Subset | Members
DEFAULT_COLUMN = "split"


def find_split(pack: Pack, split: str | tuple[float, float] | None) -> Split:
    """Return the samples of a split; None: all of them.

    Args:
        split: fractions `(start, stop)`, or the name of a part: "train" of the column `split`, "fold:2" of
            another column of classes; several with "+" between them.

    Raises:
        UsageError: the pack has no such column, or the column no such part.
        PackError: the column is damaged.
    """
    if not isinstance(split, str):
        return cut(len(pack), split)
    column, colon, parts = split.partition(":")
    if not colon:
        column, parts = DEFAULT_COLUMN, split
    field = _find_column(pack, column)
    values = pack.checked_column(column)
    chosen = np.flatnonzero(np.isin(values, [_number(field, name) for name in parts.split("+")]))
    # Half the memory where it is enough: 4 MB per million samples.
    return Members(split, chosen.astype(np.int32) if len(pack) < 2**31 else chosen)


def members(split: Split) -> I64:
    """Return the positions of all samples of a split."""
    return split.positions(np.arange(len(split), dtype=np.int64))


def _find_column(pack: Pack, name: str) -> Field:
    # Several classes per sample (`labels`, an array) are no parts: a sample would be in more than one.
    known = [f.name for f in pack.fields if f.classes is not None and f.kind is Kind.NUMBER]
    field = pack.manifest.field(name)
    if field is None or name not in known:
        hint = f"make one: feedrate split {typed(pack.name)} train=0.9 validation=0.1"
        if name != DEFAULT_COLUMN:
            hint = f"columns of classes: {', '.join(known) or 'none'}"
        raise UsageError(f"{pack.name} has no split: it has no column '{name}' of classes", hint=hint)
    return field


def _number(field: Field, name: str) -> int:
    classes = list(field.classes or ())
    if name not in classes:
        near = difflib.get_close_matches(name, classes, n=1)
        raise UsageError(
            f"column '{field.name}' has no part {name!r}; it has {_few(classes)}",
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    return classes.index(name)


def _few(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10:,} more" if len(names) > 10 else "")
