# SPDX-License-Identifier: Apache-2.0
"""Whether values in a shard that lies elsewhere are what the index says: those of a part are brought near."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from feedrate.errors import FeedrateError
from feedrate.format.fields import Field, Kind
from feedrate.format.index import Part
from feedrate.format.manifest import Shard
from feedrate.pack.check_values import check_in_place
from feedrate.pack.workers import advance
from feedrate.remote.addresses import Place, split_source
from feedrate.remote.fetch import fetch, find_patiently
from feedrate.remote.index_files import origin
from feedrate.results.verify import Problem


def check_elsewhere(shard: Shard, fields: Sequence[Field], part: Part | None) -> Iterator[Problem]:
    """Yield what is wrong with values in a file behind an address.

    Needs room for the bytes that the part is about, where temporary files go.
    """
    root, name = split_source(origin(shard).decode("utf-8", "surrogateescape"))
    place = Place(root)
    try:
        found = find_patiently(place, name)
        if found is None or found.size_bytes != shard.size_bytes:
            size = "a folder" if found is None else f"{found.size_bytes}"
            yield Problem(
                shard.name,
                f"has changed since it was indexed: {shard.size_bytes} bytes then, {size} now; "
                "index it again",
            )
            return
        with tempfile.TemporaryDirectory(prefix="feedrate-verify-") as folder:
            near = Path(folder) / "shard"
            span = _find_span(fields, part, shard.size_bytes)
            fetch(place, name, span, near, lambda _: advance(0, 0))
            with open(near, "ab") as file:
                file.truncate(shard.size_bytes)  # what is not looked at is a hole
            yield from check_in_place(shard, near, fields, part)
    except FeedrateError as error:
        yield Problem(shard.name, f"cannot be read: {error}")


def _find_span(fields: Sequence[Field], part: Part | None, size_bytes: int) -> range:
    """Return where in the file the values of a part lie."""
    if part is None or not len(part.rows):
        return range(0)
    names = [field.name for field in fields if field.kind is not Kind.NUMBER]
    starts = [int(part.rows[f"{name}.offset"].min()) for name in names]
    stops = [int((part.rows[f"{name}.offset"] + part.rows[f"{name}.length"]).max()) for name in names]
    return range(max(0, min(starts, default=0)), min(size_bytes, max(stops, default=0)))
