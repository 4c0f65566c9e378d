# SPDX-License-Identifier: Apache-2.0
"""An opened pack: where each sample's bytes are.

Rows of the index are read one by one with `pread`, so opening a pack costs nothing per sample, memory does
not grow with the dataset, and an index that is cut short under a running job ends in a status, not a SIGBUS.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from feedrate import kernel
from feedrate.errors import BadSample, PackError, StorageError
from feedrate.format.containers import FILES
from feedrate.format.fields import row_dtype, text_check
from feedrate.format.file_checks import (
    check_in_place,
    check_index,
    check_referred,
    check_rows,
    check_values,
)
from feedrate.format.index import part_dtype
from feedrate.format.manifest import (
    ColumnPart,
    IndexPart,
    Manifest,
    PackFile,
    Shard,
    file_path,
    read_manifest,
)
from feedrate.kernel import I32, I64, Ranges
from feedrate.units import shell_quote

Rows = np.ndarray[Any, np.dtype[Any]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
_TEXTS_TOGETHER = 65536


class Lease(Protocol):
    """What keeps a pack on scratch from being deleted while it is used."""

    def release(self) -> None: ...


class Pack:
    """A finished pack, open for reading. Positions count samples as they are stored, 0 to `len(pack) - 1`.

    Safe to use from any thread. Pickles as its path: workers open it anew.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest | None = None) -> None:
        self.path = Path(path)
        self.name = os.fspath(path)  # what the user calls it
        self.lease: Lease | None = None
        self.manifest = manifest or read_manifest(path)
        self.fields = self.manifest.all_fields
        self.dtype = row_dtype(self.fields)
        self._stored = row_dtype(self.manifest.fields)
        shards = self.manifest.shards
        self._starts = np.cumsum([0, *(s.samples for s in shards)]).astype(np.int64)
        self._first_numbers = np.array([s.first_number for s in shards], np.int64)
        self._stored_names = self._stored.names or ()
        self._is_plain = not (self.manifest.added or self.manifest.parts or self._first_numbers.any())
        # File 2i is shard i, file 2i + 1 its index part; behind them the parts with added columns. Of shards
        # in one file the first has its number.
        stored = [self.locate_file(file) for s in shards for file in (s, s.index)]
        self.files = kernel.Files([*stored, *map(self.locate_file, self.manifest.parts)])
        self._is_loose = np.array([s.container == FILES for s in shards], np.bool_)
        self._check_in_place()
        self._check_referred()
        first: dict[Path, int] = {}
        self._file_of_shard = np.array(
            [first.setdefault(path, 2 * i) for i, path in enumerate(stored[::2])], np.int32
        )
        names = self._stored_names
        variable = ["key", *(name for f in self.manifest.fields for name in f.variable_columns())]
        try:
            bases = [[s.index.columns[n][0] for n in names] for s in shards]
            places = {n: [_place_texts(s.index, n) for s in shards] for n in variable}
            self._parts = [self._open_part(i, part) for i, part in enumerate(self.manifest.parts)]
        except (KeyError, IndexError) as error:
            raise PackError(
                f"{self.name}: the index lacks column {error}", hint="pack the source again"
            ) from None
        self._bases = np.array(bases, np.int64).reshape(len(shards), len(names))
        # Of variable-width columns: where their offsets, their data and their checksums begin.
        self._variable = {n: np.array(at, np.int64).reshape(len(shards), 3) for n, at in places.items()}
        self._index_bytes = np.array([s.index.size_bytes for s in shards], np.int64)
        # Entry-point ranges are two neighbours of an offsets column: 16 bytes wide, 8 apart.
        self._strides = np.array(
            [8 if n.endswith(".entries") else self._stored[n].itemsize for n in names], np.int64
        )
        self._check_room()

    def _check_room(self) -> None:
        """Parts of the index must be as long as their samples need: a loader would go through all of them."""
        samples = np.diff(self._starts)
        ends = [(self._bases + samples[:, None] * self._strides).max(axis=1, initial=0)]
        ends += [pairs[:, 0] + 8 * (samples + (samples > 0)) for pairs in self._variable.values()]
        for number in np.flatnonzero(np.max(ends, axis=0) > self._index_bytes).tolist():
            shard = self.manifest.shards[number]
            raise self._damage(f" is damaged: {shard.index.name} is too short for {shard.samples:,} samples")

    def _open_part(self, number: int, part: ColumnPart) -> _OpenPart:
        fields = [field for field in self.fields if field.name in part.fields]
        dtype = part_dtype(fields)
        bases = np.array([part.columns[name][0] for name in dtype.names or ()], np.int64)
        data = {f.name: part.columns[f.name][1] for f in fields if f.kind != "number"}
        return _OpenPart(2 * len(self.manifest.shards) + number, part, dtype, bases, data)

    def locate_file(self, file: PackFile) -> Path:
        """Return where a file of the pack is; what is behind an address, `store` brings."""
        if isinstance(file, Shard) and file.is_remote:
            # Never opened, but it tells shards apart.
            return self.path / "elsewhere" / file.folder / file.name
        return file_path(self.path, file)

    def _check_in_place(self) -> None:
        check_in_place(self)

    def _check_referred(self) -> None:
        check_referred(self)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def edges(self) -> I64:
        """The positions at which shards begin, and the number of samples."""
        return self._starts

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack, (self.path,)

    def close(self) -> None:
        self.files.close()
        if self.lease is not None:
            self.lease.release()

    def reopen(self) -> Pack:
        """Open the same pack once more, for another process."""
        kind, arguments = self.__reduce__()
        pack: Pack = kind(*arguments)
        return pack

    def turn_to_source(self, field: str, rows: Rows, positions: I64, statuses: I32) -> bool:
        """After a read: whether to read again, since what failed can come from elsewhere; see `store`.

        Raises:
            StorageError: what failed is the storage, not a sample.
        """
        check_values(self, field, rows, positions, statuses)
        return False

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return (shard, row in that shard) of each position."""
        shards = self._starts.searchsorted(positions, side="right") - 1
        return shards, positions - self._starts[shards]

    def rows(self, positions: I64, wanted: Collection[str] | None = None) -> tuple[Rows, I32]:
        """Return the index rows of some samples, and a `Status` each: use no row that is not OK.

        Of added columns only those of the fields `wanted` are read, None: of all; the others are 0.

        Raises:
            StorageError: a file of the index cannot be read at all.
        """
        rows, statuses = self._read_rows(positions, wanted)
        if statuses.any():
            check_rows(self, positions, statuses)
        return rows, statuses

    def _read_rows(self, positions: I64, wanted: Collection[str] | None) -> tuple[Rows, I32]:
        shards, places = self.locate(positions)
        files = (2 * shards + 1).astype(np.int32)
        stored, statuses = kernel.gather_rows(
            self.files, files, places, self._bases[shards], self._strides, self._stored
        )
        if self._is_plain:
            return stored, statuses
        rows = np.zeros(len(positions), self.dtype)
        for name in filter(self._is_stored, self.dtype.names or ()):
            rows[name] = stored[name]
        rows["number"] += self._first_numbers[shards]
        for part in self._parts:
            if wanted is None or not part.entry.fields or any(f in wanted for f in part.entry.fields):
                part.lay_over(self.files, positions, rows, statuses)
        rows[statuses != 0] = 0
        return rows, statuses

    def find_values(
        self, field: str, rows: Rows, positions: I64, *, with_entries: bool = False
    ) -> tuple[kernel.Files, Ranges, Ranges | None]:
        """Return where the bytes of a field are, and the entry points if asked for, and in which files.

        Where values are files of their own, those are opened for this call alone: there may be millions.
        """
        values = self.ranges(field, rows, positions)
        entries = self.entries(field, rows, positions) if with_entries else None
        shards, _ = self.locate(positions)
        # A text that was added later is in a part of its own, whatever the shard.
        loose = self._is_loose[shards] & (values.file == self._file_of_shard[shards])
        if not loose.any():
            return self.files, values, entries
        at = np.flatnonzero(loose)
        others = (
            values.file[~loose] if entries is None else np.concatenate([values.file[~loose], entries.file])
        )
        known = np.unique(others)
        paths: list[str | os.PathLike[str]] = [self.files.paths[number] for number in known.tolist()]
        for shard, path in zip(shards[at], self._read_paths(field, positions[at]), strict=True):
            paths.append(os.path.join(self.files.paths[2 * shard], os.fsdecode(path)))
        file = np.searchsorted(known, values.file).astype(np.int32)
        file[at] = len(known) + np.arange(len(at))
        values = replace(values, file=file)
        if entries is not None:
            entries = replace(entries, file=np.searchsorted(known, entries.file).astype(np.int32))
        return kernel.Files(paths), values, entries

    def _read_paths(self, field: str, positions: I64) -> list[bytes]:
        """Return the paths of values that are files of their own, relative to their shard's folder."""
        # A path that is damaged is empty: the folder itself, which cannot be read as a file.
        paths, _ = self._read_texts(f"{field}.path", positions)
        for path in paths:
            if path.startswith(b"/") or b".." in path.split(b"/"):
                raise PackError(f"{self.name}: the index names a file outside of the folder: {path!r}")
        return paths

    def ranges(self, field: str, rows: Rows, positions: I64) -> Ranges:
        """Return where the bytes of a field are in `files`; see `find_values` for values that are files."""
        shards, _ = self.locate(positions)
        file, offset = self._file_of_shard[shards], np.array(rows[f"{field}.offset"])
        for part in self._parts:
            if field in part.data:
                inside = part.covers(positions)
                file[inside] = part.file
                offset[inside] = part.data[field] + rows[f"{field}.offset"][inside]
        return Ranges(
            file=file,
            offset=offset,
            length=np.ascontiguousarray(rows[f"{field}.length"]),
            crc32c=np.ascontiguousarray(rows[f"{field}.crc32c"]),
        )

    def entries(self, field: str, rows: Rows, positions: I64) -> Ranges:
        """Return where the entry points of an image field are; length 0 where it has none."""
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
            PackError: the index is damaged there.
            StorageError: a file of the index cannot be read at all.
        """
        if column not in self._variable:
            return [b""] * len(positions)  # the path of an added text: it was never a file
        texts, is_good = self._read_texts(column, positions)
        if not is_good.all():
            raise self._damage(f": the index is damaged in column '{column}'")
        return self._add_prefixes(texts, positions)

    def keys(self, positions: I64) -> tuple[list[str], dict[int, str]]:
        """Return the keys of some samples, and by its place among them why one is not known."""
        texts, is_good = self._read_texts("key", positions)
        bad = dict.fromkeys(np.flatnonzero(~is_good).tolist(), "the index is damaged there")
        return [text.decode("ascii") for text in self._add_prefixes(texts, positions)], bad

    def _add_prefixes(self, texts: list[bytes], positions: I64) -> list[bytes]:
        if not any(shard.prefix for shard in self.manifest.shards):
            return texts
        prefixes = [f"{s.prefix}/".encode() if s.prefix else b"" for s in self.manifest.shards]
        shards, _ = self.locate(positions)
        return [prefixes[s] + text if text else text for s, text in zip(shards, texts, strict=True)]

    def _read_texts(self, column: str, positions: I64) -> tuple[list[bytes], Bools]:
        """Return keys or paths as they stand in the index, and which of them are good; the others are empty.

        Each is checked against its own checksum, but for those that earlier versions wrote without one.
        """
        shards, rows = self.locate(positions)
        files = (2 * shards + 1).astype(np.int32)
        offsets_at, data_at, checks_at = self._variable[column][shards].T
        pairs, _, bad = kernel.read_ranges(
            self.files, Ranges(files, offsets_at + rows * 8, np.full(len(rows), 16, np.int64))
        )
        begin, end = pairs.view("<i8").reshape(-1, 2).T
        is_good: Bools = (bad == 0) & (begin >= 0) & (begin <= end) & (end <= self._index_bytes[shards])
        lengths = np.where(is_good, end - begin, 0)
        is_good &= lengths < 2**20
        lengths[~is_good] = 0
        values, starts, bad = kernel.read_ranges(
            self.files, Ranges(files, np.where(is_good, data_at + begin, 0), lengths)
        )
        is_good &= bad == 0
        has = np.flatnonzero(checks_at >= 0)
        if has.size:
            stored, _, bad = kernel.read_ranges(
                self.files,
                Ranges(files[has], checks_at[has] + 4 * rows[has], np.full(len(has), 4, np.int64)),
            )
            is_good[has] &= (bad == 0) & (stored.view("<u4") == kernel.crc32c_texts(values, starts)[has])
        whole = values.tobytes()
        texts = [whole[a:b] for a, b in itertools.pairwise(starts.tolist())]
        if column == "key" and not whole.isascii():
            is_good &= [text.isascii() for text in texts]
        if not is_good.all():
            check_index(self, positions[~is_good])
        return [text if good else b"" for text, good in zip(texts, is_good, strict=True)], is_good

    def _damage(self, words: str) -> PackError:
        return PackError(self.name + words, hint=f"feedrate verify {shell_quote(self.name)}")

    def column(self, name: str) -> Rows:
        """Return a fixed-width column of the whole index, unchecked; an `.entries` column as start and stop.

        Raises:
            PackError: an index part cannot be read there.
        """
        dtype = self.dtype[name]
        return np.concatenate([np.zeros((0, *dtype.shape), dtype.base), *self.columns(name)])

    def columns(self, name: str) -> Iterator[Rows]:
        """Yield such a column shard by shard, so that the whole of it need not be in memory.

        Raises:
            PackError: an index part cannot be read there.
        """
        dtype = self.dtype[name]
        parts = [part.entry for part in self._parts if name in (part.dtype.names or ()) and name != "check"]
        for shard, (start, stop) in zip(
            self.manifest.shards, itertools.pairwise(self._starts.tolist()), strict=True
        ):
            added = []
            for part in parts:
                first, last = max(start, part.first), min(stop, part.stop)
                if first < last:
                    at = part.columns[name][0] + (first - part.first) * dtype.itemsize
                    path = self.locate_file(part)
                    added.append((first - start, self._read_column(path, at, dtype, last - first)))
            # Only now: the number of samples is a claim until the bytes of a part were there.
            is_stored = self._is_stored(name)
            values = self._stored_column(shard, name) if is_stored else np.zeros(shard.samples, dtype)
            if name == "number":
                values = values + shard.first_number
            values = np.array(values) if added else values
            for at, some in added:
                values[at : at + len(some)] = some
            yield values

    def _is_stored(self, name: str) -> bool:
        """Return whether index parts of shards hold a column; an added one of its name may be another."""
        return name in self._stored_names and self._stored[name] == self.dtype[name]

    def _stored_column(self, shard: Shard, name: str) -> Rows:
        dtype, is_pairs = self._stored[name], name.endswith(".entries")
        # Entry-point ranges are neighbours of an offsets column: one value more than there are samples.
        count = shard.samples + (1 if is_pairs and shard.samples else 0)
        values = self._read_column(
            self.locate_file(shard.index), shard.index.columns[name][0], dtype.base, count
        )
        pairs = np.stack([values[:-1], values[1:]], axis=1) if is_pairs and count else None
        return values.reshape(-1, *dtype.shape) if pairs is None else pairs

    def _read_column(self, path: Path, start: int, dtype: np.dtype[Any], count: int) -> Rows:
        wanted = count * dtype.itemsize
        try:
            with open(path, "rb") as file:
                is_there = start + wanted <= os.fstat(file.fileno()).st_size
                data = kernel.read_at(file.fileno(), wanted, start) if is_there else b""
            return np.frombuffer(data, dtype, count) if count else np.zeros(0, dtype)
        except (OSError, ValueError) as error:
            raise self._damage(f": {path.name} cannot be read") from error

    def checked_column(self, name: str) -> Rows:
        """Return a fixed-width column of the whole pack, for what will be written or divided by it.

        Files that were added are checked as a whole, and rows of the index each by its own checksum.

        Raises:
            PackError: a file of it cannot be read, or is not what was packed or added.
        """
        for part in self._parts:
            if name in part.entry.fields:
                path = self.locate_file(part.entry)
                try:
                    is_good = kernel.crc32c(path.read_bytes()) == part.entry.crc32c
                except OSError:
                    is_good = False
                if not is_good:
                    words = f"which holds '{name}' of its samples, is damaged or gone"
                    raise self._damage(f": {path.name}, {words}")
        for shard in self.manifest.shards if name in self._stored_names else ():
            columns = {name: self._stored_column(shard, name) for name in self._stored_names}
            rows = np.zeros(shard.samples, self._stored)
            for one, values in columns.items():
                rows[one] = values
            wrong = np.flatnonzero(rows["check"] != kernel.crc32c_rows(rows))
            if wrong.size:
                raise self._damage(f": {shard.index.name} is damaged: row {wrong[0]} fails its checksum")
        return self.column(name)

    def all_texts(self, column: str) -> Iterator[bytes]:
        """Yield a variable-width column of the whole pack, many values at a time.

        Raises:
            PackError: the index cannot be read there.
        """
        for number, shard in enumerate(self.manifest.shards):
            if column not in self._variable or not shard.samples:
                yield from (b"",) * shard.samples
                continue
            path = self.locate_file(shard.index)
            offsets_at, data_at, checks_at = self._variable[column][number].tolist()
            prefix = f"{shard.prefix}/".encode() if shard.prefix and not column.endswith(".entries") else b""
            for start in range(0, shard.samples, _TEXTS_TOGETHER):
                count = min(_TEXTS_TOGETHER, shard.samples - start)
                bounds = self._read_column(path, offsets_at + 8 * start, np.dtype("<i8"), count + 1)
                size_bytes = int(bounds[-1]) - int(bounds[0])
                is_sorted = bool((bounds[1:] >= bounds[:-1]).all())
                if bounds[0] < 0 or not is_sorted or size_bytes > shard.index.size_bytes:
                    raise self._damage(f": the index is damaged in column '{column}'")
                data = self._read_column(path, data_at + int(bounds[0]), np.dtype("u1"), size_bytes).tobytes()
                is_good = column != "key" or data.isascii()
                if checks_at >= 0:
                    checks = self._read_column(path, checks_at + 4 * start, np.dtype("<u4"), count)
                    is_good &= np.array_equal(checks, kernel.crc32c_texts(data, bounds - bounds[0]))
                if not is_good:
                    raise self._damage(f": the index is damaged in column '{column}'")
                for begin, end in itertools.pairwise((bounds - bounds[0]).tolist()):
                    yield prefix + data[begin:end] if end > begin else b""

    def describe_bad(self, position: int, field: str, row: Rows | None, reason: str) -> BadSample:
        """Return the error that names a sample which cannot be used."""
        at = np.array([position], np.int64)
        shard, _ = self.locate(at)
        try:
            (key,), unknown = self.keys(at)
        except (PackError, StorageError):
            unknown = {0: "the index cannot be read"}
        key = f"number {position}" if unknown else key
        has_offset = row is not None and f"{field}.offset" in (row.dtype.names or ())
        offset = int(row[f"{field}.offset"]) if row is not None and has_offset else 0
        entry = self.manifest.shards[int(shard[0])]
        reason += self._say_change(entry, field, at, row)
        return BadSample(key=key, shard=entry.name, offset=offset, field=field, reason=reason)

    def _say_change(self, shard: Shard, field: str, at: I64, row: Rows | None) -> str:
        """Return what to add about a file that was there before and is no longer what it was."""
        if not shard.is_in_place:
            return ""
        path, size_bytes = self.locate_file(shard), shard.size_bytes
        try:
            if shard.container == FILES:
                (name,), is_good = self._read_texts(f"{field}.path", at)
                if not is_good.all():
                    return "; its path in the index is damaged"
                path /= os.fsdecode(name)
                size_bytes = -1 if row is None else int(row[f"{field}.length"])
            found = os.stat(path)
        except (OSError, PackError, KeyError, ValueError):  # a StorageError is an OSError
            return "; it cannot be found where it was indexed"
        if found.st_size != size_bytes or (shard.mtime_ns and found.st_mtime_ns != shard.mtime_ns):
            return f"; {path} has changed since it was indexed: index it again with 'feedrate index'"
        return ""


def _place_texts(index: IndexPart, column: str) -> tuple[int, int, int]:
    """Return where offsets, data and checksums of a variable-width column begin; -1: it has no checksums."""
    places = index.columns[column]
    return places[0], places[1], index.columns.get(text_check(column), (-1,))[0]


class _OpenPart(NamedTuple):
    """A part with added columns. `data`: where the bytes of each of its texts begin."""

    file: int
    entry: ColumnPart
    dtype: np.dtype[Any]
    bases: I64
    data: Mapping[str, int]

    def covers(self, positions: I64) -> Bools:
        inside: Bools = (positions >= self.entry.first) & (positions < self.entry.stop)
        return inside

    def lay_over(self, files: kernel.Files, positions: I64, rows: Rows, statuses: I32) -> None:
        """Fill in the values of this part; a status that is good becomes that of the part's row."""
        inside = np.flatnonzero(self.covers(positions))
        if not inside.size:
            return
        names = self.dtype.names or ()
        strides = np.array([self.dtype[name].itemsize for name in names], np.int64)
        found, bad = kernel.gather_rows(
            files,
            np.full(len(inside), self.file, np.int32),
            positions[inside] - self.entry.first,
            np.tile(self.bases, (len(inside), 1)),
            strides,
            self.dtype,
        )
        for name in names[:-1]:
            rows[name][inside] = found[name]
        statuses[inside] = np.where(statuses[inside] == 0, bad, statuses[inside])
