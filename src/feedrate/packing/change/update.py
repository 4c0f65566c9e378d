# SPDX-License-Identifier: Apache-2.0
"""What commands share that change a finished pack: new files first, then pack.json in one step, so that it is
always whole; columns; samples by what people call them, original path or key.

Files that pack.json names are never written to, so whoever has the pack open reads on as before. A column's
file is named after its contents: a command that was killed writes the same file again and goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, UsageError
from feedrate.files.atomic import remove_temporaries, write_file
from feedrate.files.lock import folder_lock
from feedrate.format.fields import Field
from feedrate.format.index import Values, dump_columns, make_part
from feedrate.format.manifest import FILE_NAME, ColumnPart, Manifest, dump_manifest, read_manifest
from feedrate.format.pack import Pack
from feedrate.packing.build.unfinished import PROGRESS_NAME
from feedrate.units import printable


@contextlib.contextmanager
def changing(path: str | os.PathLike[str]) -> Iterator[Pack]:
    """Open a finished pack that no other process changes meanwhile.

    Raises:
        NotFound: there is no finished pack.
        AlreadyExists: another process is changing it, or packing was interrupted.
        StorageError: the folder cannot be written.
    """
    folder = Path(path)
    read_manifest(folder)
    with folder_lock(folder):
        if (folder / PROGRESS_NAME).exists():
            raise AlreadyExists(
                f"{folder} is not finished: packing was interrupted",
                hint="run the same 'feedrate pack' command again to finish it",
            )
        remove_temporaries(folder)
        pack = Pack(folder)  # as it is now that no other user changes it
        try:
            yield pack
        finally:
            pack.close()


def write_column(folder: Path, field: Field, values: Values, *, first: int, samples: int) -> ColumnPart:
    """Write the values of a field for some samples; return the entry for pack.json."""
    data = dump_columns((field,), values, samples)
    # Not the CRC-32C, which rows that end in their own can make the same for different values.
    name = f"column-{field.name}-{hashlib.sha256(data).hexdigest()[:16]}.arrow"
    if not (folder / name).exists() or (folder / name).read_bytes() != data:
        write_file(folder / name, data)
    return make_part(name, (field,), data, first=first, samples=samples)


def store_column(pack: Pack, field: Field, values: Values, made: Mapping[str, Any]) -> ColumnPart:
    """Give all samples of a pack a column, in the place of one of that name. `made`: how it came about."""
    manifest = pack.manifest
    part = write_column(pack.path, field, values, first=0, samples=len(pack))
    added = {f.name: f for f in manifest.added} | {field.name: field}
    columns = {**manifest.settings.get("columns", {}), field.name: dict(made)}
    write_manifest(
        pack.path,
        dataclasses.replace(
            manifest,
            settings={**manifest.settings, "columns": columns},
            added=tuple(added.values()),
            parts=(*(p for p in manifest.parts if p.fields != (field.name,)), part),
        ),
    )
    return part


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_file(folder / FILE_NAME, dump_manifest(manifest))


def check_taken(pack: Pack, name: str, *, replace: bool) -> None:
    """Refuse to add a column under a name that is taken, unless it may be replaced."""
    there = pack.manifest.field(name)
    if there is None:
        return
    stored = next((f for f in pack.manifest.fields if f.name == name), None)
    if stored is not None and stored.kind not in ("number", "text", "json"):
        raise AlreadyExists(
            f"{pack.path} has a field '{name}' of kind {stored.kind}, which no column can replace",
            hint="choose another name: --name NAME",
        )
    if not replace:
        kind = "class" if there.classes is not None else there.kind
        raise AlreadyExists(
            f"{pack.path} already has a field '{name}' ({kind})",
            hint="replace it with --replace, or choose another name: --name NAME",
        )


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


def hash_names(names: Iterable[bytes], seed: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a number per name that depends on the name, and on the seed where there is one, alone."""
    key = b"" if seed is None else seed.to_bytes(8, "little")
    digests = bytearray()  # 8 bytes per name are held, and not the names
    for name in names:
        digests += hashlib.blake2b(name, digest_size=8, key=key).digest()
    return np.frombuffer(digests, "<u8")
