# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a pack whose files are in several places: its own, and the addresses that it names."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from feedrate import kernel
from feedrate.errors import FeedrateError, PackError, UsageError
from feedrate.files.permissions import ROOT, find_distrust
from feedrate.format.file_checks import check_change
from feedrate.format.manifest import FILE_NAME, Manifest, Shard, parse_manifest
from feedrate.remote.addresses import FileVersion, Place, is_address, is_url, split_source
from feedrate.remote.fetch import IN_FLIGHT, Piece, RangeReader, find_patiently
from feedrate.remote.index_files import origin
from feedrate.remote.retry import OPENING, RetryPolicy
from feedrate.units import printable, shell_quote

# So many of the files that were indexed elsewhere are asked for their sizes when a pack is opened.
_LOOKED_AT = 16
_WRITABLE = "others may write to"


class MultiSourceReader(RangeReader):
    """Reads pieces of a place's files, and of files that are called by an address of their own."""

    def __init__(
        self, place: Place, *, in_flight: int = IN_FLIGHT, patience: RetryPolicy | None = None
    ) -> None:
        super().__init__(place, in_flight=in_flight, patience=patience)
        self._each_in_flight = in_flight
        self._others: dict[str, RangeReader] = {}
        self._known: dict[bytes, tuple[RangeReader, bytes]] = {}
        self._making = threading.Lock()

    def read(self, piece: Piece, version: FileVersion | None = None) -> Future[bytes]:
        if not is_address(os.fsdecode(piece.file)):
            return super().read(piece, version)
        reader, name = self._find(piece.file)
        return reader.read(Piece(name, piece.offset, piece.length), version)

    def find(self, file: bytes) -> tuple[Place, bytes]:
        """Return the place that a file is in, and its name there."""
        if not is_address(os.fsdecode(file)):
            return self.place, file
        reader, name = self._find(file)
        return reader.place, name

    def measure(self, file: bytes) -> int:
        """Ask for a file's size; -1: it is a folder.

        Raises:
            NotFound, StorageError: it is not there, or nobody answers.
        """
        reader, name = self._find(file) if is_address(os.fsdecode(file)) else (self, file)
        found = find_patiently(reader.place, name, OPENING, reader.trouble)
        return -1 if found is None else found.size_bytes

    def readers(self) -> list[RangeReader]:
        """Return this and those of other places, each with its own counts."""
        with self._making:
            return [self, *self._others.values()]

    def _find(self, file: bytes) -> tuple[RangeReader, bytes]:
        known = self._known.get(file)
        if known is None:
            root, name = split_source(os.fsdecode(file))
            with self._making:
                reader = self._others.get(root)
                if reader is None:
                    reader = RangeReader(Place(root), in_flight=self._each_in_flight, patience=self.patience)
                    self._others[root] = reader
                    if self._closed:
                        reader.close()
            known = self._known[file] = (reader, name)
        return known

    def close(self) -> None:
        super().close()
        for reader in self.readers()[1:]:
            reader.close()


def read_addresses(allowed: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that the user allows.

    Raises:
        UsageError: one is no address.
    """
    found = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    for address in found:
        if not isinstance(address, str) or not is_address(address) or not _split_address(address)[1]:
            raise UsageError(
                f"allow_addresses takes addresses like SCHEME://PLACE, got {address!r}",
                hint='for example allow_addresses=["s3://bucket"]',
            )
    return found


def check_addresses(pack: str, manifest: Manifest, allowed: str | Sequence[str] = ()) -> None:
    """Refuse a pack that names files of other hosts, unless it can be trusted: reading it contacts them.

    A pack behind an address may name files of its own scheme and host; one of this machine, those that stand
    in a pack.json which nobody but this user and root can have written; any, those that the user allows.

    Raises:
        PackError: it names others.
        UsageError: what is allowed is no address.
    """
    allowed = read_addresses(allowed)
    pack = pack.removeprefix("file://").removeprefix("local://")
    is_remote = is_url(pack)
    folders = {folder for shard in manifest.shards for folder in (shard.folder, shard.index.folder)}
    folders |= {part.folder for part in manifest.parts}
    if is_remote and "::" not in pack:
        path = _split_address(pack)[2]
        depth = len(path.split("/")) if path else 0
        for folder in folders:
            # Storages know no '..': it would end in the name of another host, or bucket.
            if folder.split("/").count("..") > depth and not is_address(folder):
                raise PackError(f"{pack} names files outside of its address: {folder!r}")
    named = {folder for folder in folders if is_address(folder)}
    named = {folder for folder in named if not any(_is_below(folder, one) for one in allowed)}
    if not named:
        return
    if is_remote:
        scheme, host, _ = own = _split_address(pack.rpartition("::")[2])
        named = {folder for folder in named if not host or _split_address(folder)[:2] != own[:2]}
        why = f"a pack at {scheme}://{host} may name files there alone"
    else:
        why = _find_distrust(pack, named)
    if named and why:
        found = {"{}://{}".format(*_split_address(folder)) for folder in named}
        hosts = sorted(printable(os.fsencode(host)) for host in found)
        options = " ".join(f"--allow-address {shell_quote(host)}" for host in hosts)
        listed = ", ".join(f'"{host}"' for host in hosts)
        mend = f", or chmod go-w {shell_quote(pack)} {shell_quote(os.path.join(pack, FILE_NAME))}"
        raise PackError(
            f"{pack} names files at {', '.join(hosts)}, and {why}",
            hint=f"if you trust it: allow_addresses=[{listed}] in Python, {options} on the command line"
            + (mend if why.startswith(_WRITABLE) else ""),
        )


def _split_address(address: str) -> tuple[str, str, str]:
    """Return scheme, host (with its port, without a user) and path."""
    scheme, _, rest = address.partition("://")
    host, _, path = rest.partition("/")
    return scheme.lower(), host.rpartition("@")[2].lower(), path.strip("/")


def _is_below(address: str, allowed: str) -> bool:
    (*place, path), (*may_place, may_path) = _split_address(address), _split_address(allowed)
    return place == may_place and (not may_path or f"{path}/".startswith(f"{may_path}/"))


def _find_distrust(pack: str, named: set[str]) -> str:
    """Return why these addresses may be another user's choice; "": they are this user's, or root's."""
    # By descriptor: whoever could move folders about could show one pack here and another to who reads it.
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(pack, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            file = os.open(FILE_NAME, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            stream = stack.enter_context(open(file, "rb"))
            for fd, name in ((folder, "it"), (file, f"its {FILE_NAME}")):
                info = os.fstat(fd)
                if why := find_distrust(info, ROOT, forbidden=0):
                    return f"{name} {why}"
                if info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and not _is_alone(info)):
                    return f"{_WRITABLE} {name}"
            there = parse_manifest(stream.read())
        except OSError as error:
            return f"it cannot be looked at ({error.strerror})"
    return "" if named <= {shard.folder for shard in there.shards} else "it was just changed"


def _is_alone(info: os.stat_result) -> bool:
    """Return whether a file's group is its owner's own, which has no other members."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    is_own = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return is_own and set(group.gr_mem) <= {owner.pw_name}


def check_sizes(reader: MultiSourceReader, shards: Sequence[Shard]) -> None:
    """Ask some of the shards that are elsewhere for their sizes: all would take long.

    Raises:
        PackError: one has changed since it was indexed.
        NotFound, StorageError: one is not there, or nobody answers.
    """
    named = {origin(shard): shard for shard in shards if is_address(shard.folder)}
    if not named:
        return
    some = list(named)[:: -(-len(named) // _LOOKED_AT)]
    # A connection by SSH mixes up the answers of threads that share it.
    at_once = 1 if any(file.startswith((b"sftp:", b"ssh:")) for file in some) else len(some)
    with ThreadPoolExecutor(at_once) as threads:
        for file, size_bytes in zip(some, threads.map(reader.measure, some), strict=True):
            check_change(named[file], os.fsdecode(file), size_bytes)


def describe_change(reader: MultiSourceReader, shard: Shard, offset: int, length: int, crc32c: int) -> str:
    """Return what to add about a shard that is no longer what it was; "": it is, as far as these bytes go."""
    file = origin(shard)
    place, name = reader.find(file)
    try:
        is_same = reader.measure(file) == shard.size_bytes
        if is_same and length:
            is_same = kernel.crc32c(reader.read(Piece(file, offset, length)).result()) == crc32c
    except FeedrateError:
        return f"; {place.address(name)} cannot be found where it was indexed"
    if is_same:
        return ""
    address = place.address(name)
    return f"; {address} has changed since it was indexed: index it again with 'feedrate index'"
