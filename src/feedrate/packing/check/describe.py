# SPDX-License-Identifier: Apache-2.0
"""`feedrate ls`: what is in a pack. Reads whole columns of the index, never a shard."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from feedrate.errors import PackError, UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import Status
from feedrate.packing.check.warm import measure_pack_residency
from feedrate.packing.recode import describe_pixels
from feedrate.packing.results import FieldSummary, PackDescription, SampleLine
from feedrate.units import printable, shell_quote


def describe(pack: str | os.PathLike[str], *, samples: int = 0) -> PackDescription:
    """Sum up a pack, and list its first `samples` samples.

    Raises:
        NotFound: there is no pack.
        PackError: its manifest or its index is damaged.
    """
    if samples < 0:
        raise UsageError(f"samples must be at least 0, got {samples}")
    opened = Pack(pack)
    try:
        shards = opened.manifest.shards
        rejected = opened.manifest.settings.get("rejected", 0)
        return PackDescription(
            pack=str(pack),
            samples=len(opened),
            fields=tuple(_summarise(opened, field) for field in opened.fields),
            class_counts=_count_classes(opened, opened.manifest.field("label")),
            column_counts={
                field.name: _count_classes(opened, field)
                for field in opened.fields
                if field.classes is not None and field.kind is Kind.NUMBER and field.name != "label"
            },
            shards=len(shards),
            shard_bytes=opened.manifest.shard_bytes,
            entries=_list_entries(opened),
            index_bytes=opened.manifest.index_bytes + sum(p.size_bytes for p in opened.manifest.parts),
            rejected=rejected if isinstance(rejected, int) else 0,
            settings=dict(opened.manifest.settings),
            pixels=describe_pixels(opened.manifest.settings),
            first_samples=_list_samples(opened, min(samples, len(opened))),
            resident_share=measure_pack_residency(opened),
        )
    finally:
        opened.close()


def _list_entries(pack: Pack) -> tuple[int, ...]:
    """Return how far apart entry points are, in bytes: packs that were merged may differ."""
    has_any = any(f.kind is Kind.IMAGE and f.coding is not Coding.RAW for f in pack.manifest.fields)
    if not has_any or not pack.manifest.settings.get("scan", True):
        return ()
    return tuple(sorted({shard.index.entries for shard in pack.manifest.shards}))


def _summarise(pack: Pack, field: Field) -> FieldSummary:
    summary = {
        "name": field.name, "kind": field.kind.value, "dtype": field.dtype, "shape": field.shape,
        "coding": field.coding.value,
    }  # fmt: skip
    if field.kind is Kind.NUMBER:
        return FieldSummary(**summary, size_bytes=8 * len(pack))  # type: ignore[arg-type]
    size_bytes = int(pack.column(f"{field.name}.length").sum())
    if not field.has_pixels or not len(pack):
        return FieldSummary(**summary, size_bytes=size_bytes)  # type: ignore[arg-type]
    share = None
    # Without a scan there are no entry points to tell by.
    if field.kind is Kind.IMAGE and pack.manifest.settings.get("scan", True):
        entries = pack.column(f"{field.name}.entries")
        share = float((entries[:, 1] > entries[:, 0]).mean())
    return FieldSummary(
        **summary,  # type: ignore[arg-type]
        size_bytes=size_bytes,
        mean_width=float(pack.column(f"{field.name}.width").mean()),
        mean_height=float(pack.column(f"{field.name}.height").mean()),
        kernel_share=share,
    )


def _count_classes(pack: Pack, field: Field | None) -> dict[str, int]:
    if field is None or field.classes is None:
        return {}
    counts = Counter(pack.column(field.name).tolist())
    return {name: counts[number] for number, name in enumerate(field.classes)}


def _list_samples(pack: Pack, count: int) -> tuple[SampleLine, ...]:
    if not count:
        return ()
    positions = np.arange(count, dtype=np.int64)
    rows, statuses = pack.rows(positions)
    if statuses.any():
        bad = int(np.flatnonzero(statuses)[0])
        raise PackError(
            f"{pack.path}: the index is damaged at sample {bad} ({Status(int(statuses[bad])).name.lower()})",
            hint=f"feedrate verify {shell_quote(pack.path)}",
        )
    keys = pack.texts("key", positions)
    paths = pack.texts("image.path", positions) if pack.manifest.field("image") else [b""] * count
    label = pack.manifest.field("label")
    sizes = [name for name in pack.dtype.names or () if name.endswith(".length")]
    return tuple(
        SampleLine(
            key=keys[i].decode("ascii", "replace"),
            path=printable(paths[i]),
            number=int(rows["number"][i]),
            size_bytes=sum(int(rows[name][i]) for name in sizes),
            label=None if label is None else _label_text(label, rows["label"][i].item()),
        )
        for i in range(count)
    )


def _label_text(label: Field, value: int | float) -> str:
    if label.classes is not None and isinstance(value, int) and 0 <= value < len(label.classes):
        return label.classes[value]
    return str(value)
