# SPDX-License-Identifier: Apache-2.0
"""Shards as WebDataset has them: neighbours whose names agree up to the first dot are one sample."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from feedrate.errors import SourceError
from feedrate.format.fields import Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place
from feedrate.source.archives import Archive, Member
from feedrate.source.bytes import Bytes
from feedrate.source.columns import Columns, PeekingReader
from feedrate.source.names import Repeats, is_hidden, is_mask_name, kind_of_suffix, safe_field
from feedrate.source.record import Record, Spool, UnusableValue, Value
from feedrate.units import printable

_MOST_MEMBERS = 1000  # of one sample
_LONGEST_NUMBER = 1000  # characters
_LABEL_SUFFIXES = frozenset(("cls", "class"))
_MASK_NAMES = frozenset(("mask", "seg", "segmentation", "label", "gt"))  # in front of an image's suffix
_USUAL_NAMES = {"txt": "text", "npy": "array", "jsn": "json"}


@dataclass(slots=True)
class _Group:
    key: bytes
    members: dict[str, Member] = field(default_factory=dict)  # extension -> member
    top: bytes = b""


class ShardReader(PeekingReader[_Group]):
    """A sample per key.

    Raises, when iterated:
        SourceError: a shard is refused, or there are no samples.
    """

    def __init__(
        self, place: Place, archives: list[Archive], spool: Spool, chosen: Mapping[str, Kind] | None = None
    ) -> None:
        super().__init__(place, [archive.file for archive in archives], spool, chosen)
        self._archives = archives

    def _samples(self) -> Generator[_Group]:
        for archive in self._archives:
            group = _Group(b"")
            keys = Repeats()
            for member in archive.members():
                if is_hidden(member.name) or member.name.startswith(b"__"):
                    continue
                key, extension = split_name(member.name)
                if not extension:
                    raise SourceError(
                        f"{archive.address}: '{printable(member.name)}' has no extension; "
                        "WebDataset's names are KEY.EXTENSION"
                    )
                if key != group.key or not group.members:
                    if group.members:
                        yield group
                    keys.add(key)
                    group = _Group(key, top=archive.top)
                if len(group.members) >= _MOST_MEMBERS:
                    raise SourceError(
                        f"{archive.address}: '{printable(key)}' has over {_MOST_MEMBERS:,} members: refused"
                    )
                group.members[extension] = member
            if group.members:
                yield group
            twice = keys.find(_keys(archive))
            if twice is not None:
                raise SourceError(
                    f"{archive.address}: members of '{printable(twice)}' do not stand together: refused",
                    hint="WebDataset needs a sample's files one behind the other: tar --sort=name does that",
                )

    def _choose(self, first: Sequence[_Group]) -> Mapping[str, Kind]:
        if not first:
            where = self._archives[0].address if self._archives else self.root
            raise SourceError(f"no samples in {where}")
        counts: Counter[tuple[str, Kind]] = Counter()
        for group in first:
            counts.update(_fields_of(group).keys())
        wanted = {name: kind for (name, kind), count in counts.items() if count * 2 >= len(first)}
        return {name: wanted[name] for name in Columns(wanted, {name: name for name in wanted}).names}

    def _use(self, chosen: Mapping[str, Kind]) -> None:
        self._columns = Columns(chosen, {name: name for name in chosen})

    def _read_samples(self, samples: Iterable[_Group], others: Counter[str]) -> Iterator[Record | Rejection]:
        with contextlib.closing(Bytes(self.root, self._spool.folder)) as bytes_of:
            for group in samples:
                found = _fields_of(group)
                sample = self._read_group(group, found, bytes_of)
                if isinstance(sample, Record):
                    used = self._columns.kinds.items()
                    others.update(f".{extension}" for field, extension in found.items() if field not in used)
                yield sample

    def _read_group(
        self, group: _Group, found: Mapping[tuple[str, Kind], str], bytes_of: Bytes
    ) -> Record | Rejection:
        def read(name: str, _: bytes) -> Value:
            kind = self._columns.kinds[name]
            if (name, kind) not in found:
                raise UnusableValue("the sample has no such member, and the first ones had", "incomplete")
            value = group.members[found[name, kind]].value
            if kind is not Kind.NUMBER:
                return value
            self._spool.flush()
            return self._number(name, bytes_of.read(value))

        return self._columns.read(group.top + group.key, read)

    def _number(self, name: str, data: bytes) -> Value:
        text = data[:_LONGEST_NUMBER].decode("utf-8", "strict").strip()
        if not text or len(data) > _LONGEST_NUMBER:
            raise UnusableValue(f"holds {len(data):,} bytes, which is no label")
        numbers = self._columns.numbers[name]
        for kind in (int, float):
            try:
                return numbers.add(kind(text))
            except ValueError:
                continue
        return numbers.add(text)


def split_name(name: bytes) -> tuple[bytes, str]:
    """Return key and extension as WebDataset cuts them: at the first dot behind the last folder."""
    folder, slash, base = name.rpartition(b"/")
    stem, _, extension = base.partition(b".")
    return folder + slash + stem, extension.decode("utf-8", "replace").lower()


def looks_like_shards(names: Iterator[bytes]) -> bool:
    """Return whether the first members of a tar are samples of several files, as WebDataset has them."""
    keys: Counter[bytes] = Counter()
    labels = 0
    for name in itertools.islice((n for n in names if not is_hidden(n)), 100):
        key, extension = split_name(name)
        keys[key] += 1
        labels += kind_of_suffix(extension.rpartition(".")[2]) not in (Kind.IMAGE, Kind.BYTES)
    return any(count > 1 for count in keys.values()) and labels > 0


def _keys(archive: Archive) -> Iterator[bytes]:
    plain = (name for name in archive.names() if not is_hidden(name) and not name.startswith(b"__"))
    return (key for key, _ in itertools.groupby(split_name(name)[0] for name in plain))


def _fields_of(group: _Group) -> dict[tuple[str, Kind], str]:
    """Return the fields that a sample's members make, each with its extension."""
    fields: dict[tuple[str, Kind], str] = {}
    names = set()
    for extension in group.members:
        name, kind = _field_of(extension)
        if name in names:  # KEY.jpg and KEY.png: the second is no longer *the* image
            name = safe_field(extension)
        names.add(name)
        fields[name, kind] = extension
    return fields


def _field_of(extension: str) -> tuple[str, Kind]:
    name, _, suffix = extension.rpartition(".")
    kind = kind_of_suffix(suffix)
    if kind is Kind.IMAGE:
        if name in _MASK_NAMES:
            return "mask", Kind.MASK
        return safe_field(name or "image"), Kind.MASK if is_mask_name(name) else Kind.IMAGE
    if kind is Kind.NUMBER and not name and suffix in _LABEL_SUFFIXES:
        return "label", kind
    if kind is Kind.BYTES:
        name = "" if suffix == "bin" and not name else name or suffix
        return safe_field(name or "bytes"), kind
    return safe_field(name or _USUAL_NAMES.get(suffix, suffix)), kind
