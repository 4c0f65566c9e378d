# SPDX-License-Identifier: Apache-2.0
"""An opened pack: where each sample's bytes lie.

Rows of the index are read one by one with `pread`, so opening a pack costs nothing per sample, memory does
not grow with the dataset, and an index that is cut short under a running job ends in a status, not a SIGBUS.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import BadSample, PackError
from feedrate.format.fields import row_dtype
from feedrate.format.manifest import read_manifest
from feedrate.kernel import I32, I64, Ranges, Status

Rows = np.ndarray[Any, np.dtype[Any]]


class Pack:
    """A finished pack, open for reading. Positions count samples as they are stored, 0 to `len(pack) - 1`.

    Safe to use from any thread. Pickles as its path: workers open it anew.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(path)
        self.fields = self.manifest.fields
        self.dtype = row_dtype(self.fields)
        shards = self.manifest.shards
        self._starts = np.cumsum([0, *(s.samples for s in shards)]).astype(np.int64)
        # File 2i is shard i, file 2i + 1 its index part.
        self.files = kernel.Files([self.path / name for s in shards for name in (s.name, s.index.name)])
        names = self.dtype.names or ()
        variable = ["key", *(name for field in self.fields for name in field.variable_columns())]
        try:
            bases = [[s.index.columns[n][0] for n in names] for s in shards]
            pairs = {n: [(s.index.columns[n][0], s.index.columns[n][1]) for s in shards] for n in variable}
        except (KeyError, IndexError) as error:
            raise PackError(
                f"{self.path}: the index lacks column {error}", hint="pack the source again"
            ) from None
        self._bases = np.array(bases, np.int64).reshape(len(shards), len(names))
        # Of variable-width columns: where their offsets and their data begin.
        self._variable = {n: np.array(pair, np.int64).reshape(len(shards), 2) for n, pair in pairs.items()}
        # Entry-point ranges are two neighbours of an offsets column: 16 bytes wide, 8 apart.
        self._strides = np.array(
            [8 if n.endswith(".entries") else self.dtype[n].itemsize for n in names], np.int64
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[type[Pack], tuple[Path]]:
        return Pack, (self.path,)

    def close(self) -> None:
        self.files.close()

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return (shard, row in that shard) of each position."""
        shards = np.searchsorted(self._starts, positions, side="right") - 1
        return shards, positions - self._starts[shards]

    def rows(self, positions: I64) -> tuple[Rows, I32]:
        """Return the index rows of some samples, and a `Status` each: use no row that is not OK."""
        shards, rows = self.locate(positions)
        files = (2 * shards + 1).astype(np.int32)
        found: tuple[Rows, I32] = kernel.gather_rows(
            self.files, files, rows, self._bases[shards], self._strides, self.dtype
        )
        return found

    def ranges(self, field: str, rows: Rows, positions: I64) -> Ranges:
        """Return where the bytes of a field lie."""
        shards, _ = self.locate(positions)
        return Ranges(
            file=(2 * shards).astype(np.int32),
            offset=np.ascontiguousarray(rows[f"{field}.offset"]),
            length=np.ascontiguousarray(rows[f"{field}.length"]),
            crc32c=np.ascontiguousarray(rows[f"{field}.crc32c"]),
        )

    def entries(self, field: str, rows: Rows, positions: I64) -> Ranges:
        """Return where the entry points of an image field lie; length 0 where it has none."""
        shards, _ = self.locate(positions)
        column = f"{field}.entries"
        return Ranges(
            file=(2 * shards + 1).astype(np.int32),
            offset=self._variable[column][shards, 1] + rows[column][:, 0],
            length=rows[column][:, 1] - rows[column][:, 0],
        )

    def texts(self, column: str, positions: I64) -> list[bytes]:
        """Return values of a variable-width column of the index: `key`, `image.path`, ...

        Raises:
            PackError: the index cannot be read there.
        """
        shards, rows = self.locate(positions)
        files = (2 * shards + 1).astype(np.int32)
        bases = self._variable[column][shards]
        pairs, _, bad = kernel.read_ranges(
            self.files, Ranges(files, bases[:, 0] + rows * 8, np.full(len(rows), 16, np.int64))
        )
        if not bad.any():
            bounds = pairs.view("<i8").reshape(-1, 2)
            lengths = bounds[:, 1] - bounds[:, 0]
            if (bounds[:, 0] >= 0).all() and (lengths >= 0).all() and (lengths < 2**20).all():
                values, starts, bad = kernel.read_ranges(
                    self.files, Ranges(files, bases[:, 1] + bounds[:, 0], np.ascontiguousarray(lengths))
                )
                if not bad.any():
                    whole = values.tobytes()
                    return [whole[a:b] for a, b in itertools.pairwise(starts)]
        raise PackError(
            f"{self.path}: the index is damaged in column '{column}'", hint=f"feedrate verify {self.path}"
        )

    def column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a fixed-width column of the whole index, unchecked; an `.entries` column as start and stop.

        Raises:
            PackError: an index part cannot be read there.
        """
        dtype = self.dtype[name]
        return np.concatenate([np.zeros(0, dtype.base).reshape(0, *dtype.shape), *self.columns(name)])

    def columns(self, name: str) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        """Yield such a column shard by shard, so that the whole of it need not be in memory.

        Raises:
            PackError: an index part cannot be read there.
        """
        dtype = self.dtype[name]
        for shard in self.manifest.shards:
            is_pairs = name.endswith(".entries")
            # Entry-point ranges are neighbours of an offsets column: one value more than there are samples.
            count = shard.samples + (1 if is_pairs and shard.samples else 0)
            wanted, start = count * dtype.base.itemsize, shard.index.columns[name][0]
            try:
                with open(self.path / shard.index.name, "rb") as file:
                    is_there = start + wanted <= os.fstat(file.fileno()).st_size
                    data = os.pread(file.fileno(), wanted, start) if is_there else b""
                values = np.frombuffer(data, dtype.base, count) if count else np.zeros(0, dtype.base)
            except (OSError, ValueError) as error:
                raise PackError(
                    f"{self.path}: {shard.index.name} cannot be read", hint=f"feedrate verify {self.path}"
                ) from error
            pairs = np.stack([values[:-1], values[1:]], axis=1) if is_pairs and count else None
            yield values.reshape(-1, *dtype.shape) if pairs is None else pairs

    def describe_bad(self, position: int, field: str, row: Rows | None, reason: str) -> BadSample:
        """Return the error that names a sample which cannot be used."""
        at = np.array([position], np.int64)
        shard, _ = self.locate(at)
        try:
            key = self.texts("key", at)[0].decode("ascii", "replace")
        except PackError:
            key = f"number {position}"
        offset_column = f"{field}.offset"
        offset = (
            int(row[offset_column]) if row is not None and offset_column in (row.dtype.names or ()) else 0
        )
        return BadSample(
            key=key, shard=self.manifest.shards[int(shard[0])].name, offset=offset, field=field, reason=reason
        )


__all__ = ["Pack", "Rows", "Status"]
