# SPDX-License-Identifier: Apache-2.0
"""Find samples of a pack by what people call them: original path, or key."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator

from feedrate.errors import SourceError, UsageError
from feedrate.format.pack import Pack
from feedrate.units import printable

_FEW = 3


def path_column(pack: Pack) -> str | None:
    """Return the column of original paths: the image's, else that of the first field that has files."""
    names = [f.name for f in pack.manifest.fields if f.variable_columns()]
    return f"{'image' if 'image' in names else names[0]}.path" if names else None


def read_names(pack: Pack, *, by_key: bool) -> Iterator[bytes]:
    """Yield what each sample is called, in stored order.

    Raises:
        UsageError: by path, and samples of this pack have none.
    """
    if by_key:
        yield from pack.all_texts("key")
        return
    column = path_column(pack)
    for path in pack.all_texts(column) if column else (b"",) * len(pack):
        if not path:
            raise UsageError(
                f"samples of {pack.path} have no original path, only keys",
                hint="name them by their keys; 'feedrate ls --samples 5' shows some",
            )
        yield path


def as_path(name: str) -> bytes:
    """Return a name from a table or a list as the pack writes paths."""
    return os.fsencode(posixpath.normpath(name))


def some(names: list[bytes]) -> str:
    """Return the first few names for a sentence."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:_FEW])
    return shown + (", ..." if len(names) > _FEW else "")


def check_missing(missing: list[bytes], total: int, what: str, hint: str) -> None:
    if missing:
        raise SourceError(f"{len(missing):,} of {total:,} samples have no {what}: {some(missing)}", hint=hint)
