# SPDX-License-Identifier: Apache-2.0
"""Shards as WebDataset has them: neighbours whose names agree up to the first dot are one sample."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile, explained
from feedrate.source.archives import Archive, Member
from feedrate.source.bytes import Bytes
from feedrate.source.labels import NumberColumn
from feedrate.source.names import Repeats, is_hidden, is_mask_name, kind_of_suffix, safe_field
from feedrate.source.record import Record, Value
from feedrate.source.spool import Spool, SpooledReader
from feedrate.source.values import UnusableValue
from feedrate.units import printable

_PEEK_SAMPLES = 100
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


class ShardReader(SpooledReader):
    """A sample per key. Which fields there are, the first samples say: what at least half of them have.

    Args:
        chosen: what `choose` returned for all shards, where these are only some of them.

    Raises, when iterated:
        SourceError: a shard is refused, or there are no samples.
    """

    def __init__(
        self, place: Place, archives: list[Archive], spool: Spool, chosen: Mapping[str, Kind] | None = None
    ) -> None:
        self.root = place.root
        self._chosen = chosen
        self.ignored: dict[str, int] = {}
        self._archives, self._spool = archives, spool
        self._fields: dict[str, Kind] = {}
        self._numbers: dict[str, NumberColumn] = {}

    def _read(self) -> Iterator[Record | Rejection]:
        others: Counter[str] = Counter()
        groups = self._groups()
        first = list(itertools.islice(groups, _PEEK_SAMPLES)) if self._chosen is None else []
        self._set_fields(self._choose_fields(first) if self._chosen is None else self._chosen)
        with contextlib.closing(Bytes(self.root, self._spool.folder)) as bytes_of:
            for group in itertools.chain(first, groups):
                yield self._read_group(group, bytes_of, others)
        self.ignored = dict(sorted(others.items()))

    def fields(self) -> tuple[Field, ...]:
        return tuple(
            self._numbers[name].field() if kind is Kind.NUMBER else Field(name, kind)
            for name, kind in self._fields.items()
        )

    def _groups(self) -> Generator[_Group]:
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

    @property
    def files(self) -> list[PlacedFile]:
        return [archive.file for archive in self._archives]

    def choose(self) -> Mapping[str, Kind]:
        """Return which fields there are; reads the first samples only."""
        with explained(self.root), self._spool, contextlib.closing(self._groups()) as groups:
            return self._choose_fields(list(itertools.islice(groups, _PEEK_SAMPLES)))

    def _choose_fields(self, first: list[_Group]) -> Mapping[str, Kind]:
        if not first:
            where = self._archives[0].address if self._archives else self.root
            raise SourceError(f"no samples in {where}")
        counts: Counter[tuple[str, Kind]] = Counter()
        for group in first:
            counts.update(_fields_of(group).keys())
        wanted = {name: kind for (name, kind), count in counts.items() if count * 2 >= len(first)}
        order = sorted(wanted, key=lambda name: (name != "image", name != "label"))
        return {name: wanted[name] for name in order}

    def _set_fields(self, fields: Mapping[str, Kind]) -> None:
        self._fields = dict(fields)
        self._numbers = {name: NumberColumn(name) for name, kind in fields.items() if kind is Kind.NUMBER}

    def _read_group(self, group: _Group, bytes_of: Bytes, others: Counter[str]) -> Record | Rejection:
        found = _fields_of(group)
        values: dict[str, Value] = {}
        name = "image"
        try:
            for name, kind in self._fields.items():
                if (name, kind) not in found:
                    return _missing(group, name)
                value = group.members[found.pop((name, kind))].value
                values[name] = value
                if kind is Kind.NUMBER:
                    self._spool.flush()
                    values[name] = self._number(name, bytes_of.read(value))
        except (UnusableValue, ValueError) as error:
            return Rejection(printable(group.top + group.key), name, str(error))
        others.update(f".{extension}" for extension in found.values())
        return Record(group.top + group.key, values)

    def _number(self, name: str, data: bytes) -> Value:
        text = data[:_LONGEST_NUMBER].decode("utf-8", "strict").strip()
        if not text or len(data) > _LONGEST_NUMBER:
            raise UnusableValue(f"holds {len(data):,} bytes, which is no label")
        for kind in (int, float):
            try:
                return self._numbers[name].add(kind(text))
            except ValueError:
                continue
        return self._numbers[name].add(text)


def _missing(group: _Group, name: str) -> Rejection:
    return Rejection(
        printable(group.top + group.key), name, "the sample has no such member, and the first ones had"
    )


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
