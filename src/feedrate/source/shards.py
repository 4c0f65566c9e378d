# SPDX-License-Identifier: Apache-2.0
"""Shards behind an address, each of which can be read by itself once all agree on their fields."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedrate.errors import FeedrateError, SourceError, StorageError, UsageError
from feedrate.format.addresses import find_address_problem
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.remote.retry import OPENING, Outage, Retry
from feedrate.source.archives import Archive, strip_suffix
from feedrate.source.detect import SourceKind
from feedrate.source.example_reader import ExampleReader
from feedrate.source.opening import open_reader
from feedrate.source.options import SourceOptions
from feedrate.source.record import Reader
from feedrate.source.spool import Spool
from feedrate.source.webdataset import ShardReader

_PACK_IT = "it can be packed: feedrate pack SOURCE PACK"


@dataclass(frozen=True, slots=True)
class Shards:
    """What one address names: small and picklable.

    Attributes:
        root: the address that the files are relative to.
        is_tar: WebDataset's tars; else TFRecord files.
        chosen: what the reader of that kind chose as fields.
        is_single: there is one shard alone, so that its name need not tell it from others.
    """

    root: str
    files: tuple[PlacedFile, ...]
    is_tar: bool
    chosen: Mapping[str, Any]
    is_single: bool

    def pick(self, number: int) -> Shards:
        """Return one of them, which is still one of many."""
        return dataclasses.replace(self, files=(self.files[number],))

    def address(self, file: PlacedFile) -> str:
        return f"{self.root.rstrip('/')}/{os.fsdecode(file.path)}"

    def top(self, file: PlacedFile) -> bytes:
        """Return what is put in front of a tar's keys, to tell shards apart."""
        return b"" if self.is_single else strip_suffix(file.path) + b"/"

    def open(self, place: Place, file: PlacedFile, spool: Spool) -> Reader:
        """Return the reader of one shard, which lies in `place` now."""
        if self.is_tar:
            archive = Archive(place, file, spool, self.top(file), SourceKind.TAR)
            return ShardReader(place, [archive], spool, self.chosen)
        return ExampleReader(place, [file], spool, self.chosen)


def find_shards(source: str, options: SourceOptions) -> Shards:
    """Look at an address, and at the first samples there.

    Raises:
        NotFound: there is nothing of that name.
        UsageError: the address holds a secret, or is one that pack.json cannot have.
        SourceError: what is there cannot be indexed from afar.
        StorageError: it does not answer.
    """
    check_secrets(source)
    if options != SourceOptions():
        raise UsageError("--labels goes with a folder of images on this machine", hint=_PACK_IT)
    attempts = Retry(Outage(source, OPENING), source)
    while True:
        try:
            return _look(source)
        except StorageError as error:
            try:
                wait_s = attempts.failed(error)
            except FeedrateError:
                raise error from None
            time.sleep(wait_s)


def check_secrets(source: str) -> None:
    """Refuse an address that must not be written down; the sentence does not repeat what is secret."""
    scheme, _, rest = source.partition("://")
    host = rest.partition("/")[0]
    shown = f"{scheme}://{host.rpartition('@')[2]}/..."
    if ":" in host.rpartition("@")[0]:
        raise UsageError(
            f"the address {shown} has a password in it, and pack.json would keep it",
            hint="leave it out, and give it to fsspec: in its configuration or the environment",
        )
    if scheme.lower() in ("http", "https") and ("?" in rest or "#" in rest):
        raise UsageError(
            f"the address {shown} has a query behind '?', as signed addresses have; they end, and "
            "pack.json would keep it",
            hint="use an address without one (s3:// and its credentials), or pack it: feedrate pack",
        )
    if "::" in source:
        raise UsageError(f"{source} lies inside of another file: it cannot be indexed there", hint=_PACK_IT)


def _look(source: str) -> Shards:
    reader = open_reader(source)
    if not isinstance(reader, (ShardReader, ExampleReader)):
        raise SourceError(
            f"{source} holds neither WebDataset shards nor TFRecord files: only these are indexed where they"
            " lie behind an address",
            hint=_PACK_IT,
        )
    place, files = Place(reader.root), reader.files
    is_tar = isinstance(reader, ShardReader)
    if place.read(files[0].path, 0, 2) in (b"\x1f\x8b", b"BZ", b"\xfd7"):
        raise SourceError(
            f"{place.address(files[0].path)} is compressed: samples do not lie there as they are",
            hint=_PACK_IT,
        )
    shards = Shards(reader.root, tuple(files), is_tar, dict(reader.choose()), len(files) == 1)
    for file in files:
        folder = shards.address(file).rpartition("/")[0]
        problem = find_address_problem(folder)
        if problem is not None:
            raise UsageError(f"cannot index shards in {folder}: the address {problem}", hint=_PACK_IT)
    tops = {shards.top(file) for file in files}
    if is_tar and len(tops) < len(files):
        raise SourceError(
            f"two shards in {reader.root} differ only in their suffix", hint="rename one of them"
        )
    return shards
