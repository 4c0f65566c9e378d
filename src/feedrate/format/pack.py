# SPDX-License-Identifier: Apache-2.0
"""An opened pack: where each sample's bytes lie.

Rows of the index are read one by one with `pread`, so opening a pack costs nothing per sample, memory does not
grow with the dataset, and an index that is cut short under a running job ends in a status, not in a SIGBUS.
"""

from __future__ import annotations

import os
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
        try:
            self._bases = np.array(
                [[0 if n == "number" and not s.samples else s.index.columns[n][0] for n in names] for s in shards],
                np.int64,
            ).reshape(len(shards), len(names))
        except (KeyError, IndexError) as error:
            raise PackError(f"{self.path}: the index lacks column {error}", hint="pack the source again") from None
        # Entry-point ranges are two neighbours of an offsets column: 16 bytes wide, 8 apart.
        self._strides = np.array([8 if n.endswith(".entries") else self.dtype[n].itemsize for n in names], np.int64)

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
        """Return the index rows of some samples, and a `Status` each: a row that fails its checksum is not to be used."""
        shards, rows = self.locate(positions)
        return kernel.gather_rows(
            self.files, (2 * shards + 1).astype(np.int32), rows, self._bases[shards], self._strides, self.dtype
        )

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
        data = np.array([s.index.columns[column][1] for s in self.manifest.shards], np.int64)
        return Ranges(
            file=(2 * shards + 1).astype(np.int32),
            offset=data[shards] + rows[column][:, 0],
            length=rows[column][:, 1] - rows[column][:, 0],
        )

    def texts(self, column: str, positions: I64) -> list[bytes]:
        """Return values of a variable-width column of the index: `key`, `image.path`, ...

        Raises:
            PackError: the index cannot be read there.
        """
        shards, rows = self.locate(positions)
        files = (2 * shards + 1).astype(np.int32)
        bases = np.array([s.index.columns[column][:2] for s in self.manifest.shards], np.int64)[shards]
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
                    return [whole[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
        raise PackError(f"{self.path}: the index is damaged in column '{column}'", hint=f"feedrate verify {self.path}")

    def describe_bad(self, position: int, field: str, row: Rows | None, reason: str) -> BadSample:
        """Return the error that names a sample which cannot be used."""
        at = np.array([position], np.int64)
        shard, _ = self.locate(at)
        try:
            key = self.texts("key", at)[0].decode("ascii", "replace")
        except PackError:
            key = f"number {position}"
        offset_column = f"{field}.offset"
        offset = int(row[offset_column]) if row is not None and offset_column in (row.dtype.names or ()) else 0
        return BadSample(
            key=key, shard=self.manifest.shards[int(shard[0])].name, offset=offset, field=field, reason=reason
        )


__all__ = ["Pack", "Rows", "Status"]
