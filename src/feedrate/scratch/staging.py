# SPDX-License-Identifier: Apache-2.0
"""Bring a source to scratch: once per node, whoever else wants it too, and however often it is interrupted.

    open       source and scratch were looked at, there is room, the copy is there, a lease is held
    writing    this process holds the writer's lock, and brings what is missing
    joining    another process does; when the lock is free, it has finished or died, and this one looks again
    complete   every file has landed
    closed     the lease was given back; the copy stays

`run` goes from open to complete; `stop`, called by another thread, lets it end soon, and what is on its way
stays, to be gone on with. `close` comes when `run` has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feedrate.errors import FeedrateError, StorageError, UsageError
from feedrate.files.atomic import explain_write_error, sync_folder
from feedrate.files.lock import Gone
from feedrate.machine.describe import find_node
from feedrate.machine.process import read_stat
from feedrate.progress import Tick
from feedrate.remote.addresses import FileVersion, is_url
from feedrate.remote.copier import Incoming
from feedrate.remote.retry import Retry
from feedrate.remote.transfer import RateLimit, Stopped, Told, Transfer, choose_streams
from feedrate.scratch.clearing import find_limit, make_room
from feedrate.scratch.contents import Contents, read_contents
from feedrate.scratch.copy import DATA, Copy
from feedrate.scratch.folder import Scratch, check_room, find_scratch, owner_of
from feedrate.scratch.listing import remember_copy, survey
from feedrate.scratch.marker import Lease
from feedrate.scratch.source_check import checksum_file
from feedrate.units import format_bytes

DEFAULT_KEEP_S = 7 * 86400.0
_POLL_S, _SELDOM_S = 0.1, 1.0  # who trains meanwhile looks seldom: for each file, in each rank
# Up to so many files, who waits for another process looks whether all have landed; else only at its lock.
_FEW_FILES = 1024
# Small files land so many at a time: each time, all that was written to the disk is waited for.
_TOGETHER, _TOGETHER_BYTES = 2048, 128 << 20


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """How to bring it.

    Attributes:
        streams: reads in flight; None: 8, and 16 behind an address.
        rate_limit: bytes per second; None: as fast as it goes.
        keep_s: how long the copy stays when nobody uses it; None: until it is deleted.
        allow_network: let scratch be a file system that other machines serve.
        check: read what has landed before, and bring anew what is not as it was copied.
        allow_addresses: where files may be that a pack names and that this user did not index.
    """

    streams: int | None = None
    rate_limit: float | None = None
    keep_s: float | None = DEFAULT_KEEP_S
    allow_network: bool = False
    check: bool = False
    allow_addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.streams is not None and self.streams < 1:
            raise UsageError(f"streams must be at least 1, got {self.streams}")
        if self.rate_limit is not None and self.rate_limit <= 0:
            raise UsageError(f"rate_limit must be above 0 bytes per second, got {self.rate_limit:g}")
        if self.keep_s is not None and self.keep_s < 0:
            raise UsageError(f"keep_s must not be negative, got {self.keep_s:g}")


class Staging:
    """A source on its way to scratch. Make it with `open_staging`."""

    def __init__(
        self,
        contents: Contents,
        scratch: Scratch,
        copy: Copy,
        lease: Lease,
        options: StagingOptions,
        watch: Callable[[Tick], None],
        say: Callable[[str], None],
    ) -> None:
        self.contents, self.scratch, self.copy, self.options = contents, scratch, copy, options
        self.copied_files = self.copied_bytes = self.resumed_bytes = 0
        self.is_joined = False  # another process copied while this one waited
        self._lease: Lease | None = lease
        self._watch, self._say = watch, say
        self._said: set[str] = set()
        self._stop = threading.Event()
        self._transfer: Transfer | None = None
        self._lock = threading.Lock()  # of the counts below, and of those above
        self._landed_files = self._done_bytes = 0
        self._total_bytes = copy.marker.size_bytes
        self._listed = {file.name: file for file in contents.marker.files}  # as they are now
        self._crcs: dict[str, int] = {}
        self._together: list[str] = []  # small files that are whole, and wait for others to land with
        self._together_bytes = 0

    def run(self, order: Sequence[str] = ()) -> None:
        """Bring everything; the files in `order` first, in that order.

        Raises:
            NotFound, StorageError: the source errs, or the disk is full.
            Stopped: `stop` was called.
        """
        self.bring(dict.fromkeys([*self.contents.small, *order, *self.copy.files]))

    def bring(self, names: Iterable[str], how: Transfer | None = None) -> None:
        """Bring some files, or wait until another process has brought them. `how`: or as the options say."""
        wanted = list(names)
        while not self._stop.is_set():
            if not self.copy.is_ours:  # a finished one of root's
                return
            is_done = len(wanted) <= _FEW_FILES and all(map(self.copy.has_landed, wanted))
            is_known = all(self.copy.files[name].crc32c is not None for name in wanted)
            if is_done and is_known and not self.options.check:
                self._look()
                return
            try:
                writer = self.copy.take_writer()
            except Gone:
                raise self._gone() from None
            if writer is not None:
                with writer:
                    self._write(wanted, how or self._choose_transfer(wanted))
                return
            self._look()
            if is_done and not self.options.check:
                return  # who writes its checksums down need not be waited for
            self.is_joined = True
            self._say_writer()
            self._stop.wait(_POLL_S if how is None else _SELDOM_S)
        raise Stopped

    def stop(self) -> None:
        """Let `run` end soon; what is on its way stays, to be gone on with."""
        self._stop.set()
        if self._transfer is not None:
            self._transfer.stop.set()

    def close(self) -> None:
        """Give the lease back; the copy stays. May be called twice."""
        self.stop()
        self._transfer = None  # it knows this object: nothing should keep the copy's folder open by that
        if self._lease is not None:
            self._lease.release()

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def detach(self) -> Lease:
        """Give the lease to who uses the copy from now on; `close` then leaves it alone."""
        lease, self._lease = self._lease, None
        assert lease is not None
        return lease

    def _choose_transfer(self, wanted: Sequence[str]) -> Transfer:
        limit = None if self.options.rate_limit is None else RateLimit(self.options.rate_limit)
        roots = {self.contents.locate(self.copy.files[name])[0].root for name in wanted}
        far = [root for root in roots if is_url(root)] or [self.contents.marker.source]
        streams = min(choose_streams(root, self.options.streams) for root in far)
        # Its own: a transfer that fails stops its threads by it, and this may be tried again.
        return Transfer(streams, limit, self._say)

    def _write(self, wanted: Sequence[str], transfer: Transfer) -> None:
        self._transfer, transfer.count = transfer, self._count
        missing, unknown = [], []
        self.copy.reload()
        there = survey(self.copy)
        with self._lock:
            self._landed_files, self._done_bytes = len(there.landed), there.landed_bytes
        for name in wanted:
            file = self.copy.files[name]
            if name not in there.landed:
                missing.append(name)
                there_bytes = there.partial.get(name, 0)
                is_kept = there_bytes == file.size_bytes or not transfer.is_small(file.size_bytes)
                if is_kept and self._can_go_on(name):
                    self.resumed_bytes += there_bytes
                    self._done_bytes += there_bytes
            elif self.options.check and self._is_damaged(name):
                missing.append(name)
                self._done_bytes -= file.size_bytes
            elif file.crc32c is None:
                unknown.append(name)
        self._tell()
        if not missing and not unknown:
            return
        if self._stop.is_set():
            raise Stopped
        try:
            self._bring_missing(missing, transfer)
            self._read_checksums(unknown)
            self._note_checksums()
        except Gone:
            raise self._gone() from None
        except OSError as error:
            if isinstance(error, FeedrateError):
                raise
            if not self.copy.data.is_dir():
                raise self._gone() from error
            missing_bytes = sum(self.copy.files[one].size_bytes for one in missing)
            name = (missing or unknown)[0]
            raise explain_write_error(error, self.copy.data / name, missing_bytes) from error

    def _bring_missing(self, missing: Sequence[str], transfer: Transfer) -> None:
        if not missing:
            return
        self._together, self._together_bytes = [], 0
        try:
            land = partial(self._land, transfer)
            transfer.carry(map(self._describe, missing), self._open_part, land)
            self._land_together(self._take_together())
            sync_folder(self.copy.data)
        except BaseException:
            # What has landed is not read again by who goes on: its checksums are known only here.
            self._crcs = {name: crc for name, crc in self._crcs.items() if self.copy.has_landed(name)}
            with contextlib.suppress(Gone, OSError):
                self._note_checksums()
            raise

    def _read_checksums(self, names: Iterable[str]) -> None:
        """Read files that a process brought which was killed before it wrote their checksums down."""
        for name in names:
            if self._stop.is_set():
                raise Stopped
            self._crcs[name] = checksum_file(self.copy.data / name)

    def _is_damaged(self, name: str) -> bool:
        """Read a file that has landed, once; of one without a checksum nothing is known."""
        expected = self.copy.files[name].crc32c
        if expected is None:
            return True
        if name not in self._crcs:
            crc32c = checksum_file(self.copy.data / name)
            if crc32c != expected:
                self._say(f"{self.copy.folder / DATA / name} is not as it was copied: it is brought anew")
                return True
            self._crcs[name] = crc32c
        return False

    def _describe(self, name: str) -> Incoming:
        """Return a file that is to be brought; one without a checksum has to be one version of it."""
        file = self.copy.files[name]
        place, source = self.contents.locate(file)
        known = self.contents.known.get(name)
        version = None
        # A file of this machine is looked at once more when it was read, by its time of change.
        if file.crc32c is None and known is None and place.is_remote:
            mtime_ns = self._listed.get(name, file).mtime_ns
            version = FileVersion(place.address(source), self.contents.versions.get(name), mtime_ns)
        return Incoming(name, place, source, file.size_bytes, file.crc32c, known, file.mtime_ns, version)

    def _can_go_on(self, name: str) -> bool:
        """Return whether what is there of a file is a beginning of what the source has now."""
        before = self.copy.files[name]
        now = self._listed.get(name, before)
        is_same = now.mtime_ns == before.mtime_ns and (now.mtime_ns or name in self.contents.versions)
        return before.crc32c is not None or bool(is_same)

    def _open_part(self, file: Incoming) -> int:
        """Open the part of a file, to be continued where it ends. Only for who holds the writer's lock."""
        fd = self.copy.open_part(file.name)
        if not self._can_go_on(file.name):
            os.ftruncate(fd, 0)
        return fd

    def _land(self, transfer: Transfer, file: Incoming, fd: int, crc32c: int) -> None:
        is_small = transfer.is_small(file.size_bytes)
        try:
            (self.copy.set_attributes if is_small else self.copy.land)(file.name, fd)
        finally:
            os.close(fd)
        with self._lock:
            self._crcs[file.name] = crc32c
            if is_small:
                self._together.append(file.name)
                self._together_bytes += file.size_bytes
            is_enough = len(self._together) >= _TOGETHER or self._together_bytes >= _TOGETHER_BYTES
            # Under the same lock: else another thread's next file would be synced alone.
            names = self._take_together() if is_enough else []
        if not is_small:
            self._note_landed(1)
        self._land_together(names)

    def _take_together(self) -> list[str]:
        names, self._together, self._together_bytes = self._together, [], 0
        return names

    def _land_together(self, names: Sequence[str]) -> None:
        """Small files land many at a time: one sync for all is far cheaper than one for each."""
        if names:
            self.copy.land_together(names)
            self._note_landed(len(names))

    def _note_landed(self, count: int) -> None:
        with self._lock:
            self._landed_files += count
            self.copied_files += count
        self._tell()

    def _note_checksums(self) -> None:
        """Write down the checksums that nobody knew before the files were read."""
        unknown = {file.name for file in self.copy.marker.files if file.crc32c is None}
        if unknown & self._crcs.keys():
            files = tuple(
                dataclasses.replace(file, crc32c=self._crcs.get(file.name, file.crc32c))
                for file in self.copy.marker.files
            )
            self.copy.update(dataclasses.replace(self.copy.marker, files=files))

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            self.copied_bytes += max(size_bytes, 0)
        self._tell()

    def _look(self) -> None:
        """See how far another process is."""
        if len(self.copy.files) <= _FEW_FILES:
            there = [self.copy.find_available(name)[1] for name in self.copy.files]
            with self._lock:
                self._done_bytes = sum(there)
                self._landed_files = sum(map(self.copy.has_landed, self.copy.files))
            self._tell()

    def _say_writer(self) -> None:
        """Say whom this process waits for, once, and once more where that one is found stopped."""
        writer = self.copy.read_writer()
        if not writer.pid:
            return
        on = time.strftime("%H:%M:%S on %Y-%m-%d", time.localtime(writer.since))
        sentence = f"waiting: process {writer.pid} of {writer.user} on {writer.node} copies it, since {on}"
        state = read_stat(writer.pid) if writer.node == find_node() else None
        if state is not None and state.state in ("T", "t"):
            sentence += (
                f"; it is stopped: let it go on (kill -CONT {writer.pid}), or end it, and this process does"
            )
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)

    def _tell(self) -> None:
        files = len(self.copy.files)
        self._watch(Tick("staging", self._landed_files, files, self._done_bytes, self._total_bytes))

    def _gone(self) -> StorageError:
        return StorageError(
            f"the copy {self.copy.folder} was deleted while it was made", hint="run the same command again"
        )


_OWN_FILES = 5  # copy.json, gate, writer, used, a lease


def open_staging(
    source: str | os.PathLike[str],
    scratch: str | os.PathLike[str] | None = None,
    *,
    options: StagingOptions | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    attempts: Retry | None = None,
) -> Staging:
    """Look at a source and at scratch, and take a lease on the copy; nothing is brought yet.

    Args:
        scratch: a folder; None or "auto": the best of this node.
        watch: told how far it is. say: told what the user should know, a sentence at a time.
        attempts: how often the source is asked what it holds, and who is told that it errs.

    Raises:
        NotFound: there is no such source, or no scratch.
        SourceError, PackError: the source cannot be copied as it is.
        StorageError: there is no room, or scratch is no place for a copy.
    """
    options = options or StagingOptions()
    attempts = attempts or Retry(Told(say), os.fspath(source))
    contents = read_contents(source, attempts, options.allow_addresses)
    place = find_scratch(scratch, allow_network=options.allow_network)
    _check_nesting(contents, place)
    marker = dataclasses.replace(contents.marker, keep_s=options.keep_s)
    is_repaired = False
    while True:
        found = Copy.find(place.path, marker)
        is_repaired |= found is not None and found.is_repaired
        size_bytes, count = _missing(found, contents)
        if count:
            _make_room(place, found, size_bytes, say)
            check_room(place, size_bytes, count + _OWN_FILES)
        copy = Copy.create(place.path, marker)
        try:
            lease = copy.lease()
        except Gone:
            continue  # deleted in between
        kept_s = copy.marker.keep_s
        if copy.is_ours and kept_s is not None and (options.keep_s is None or options.keep_s > kept_s):
            copy.update(dataclasses.replace(copy.marker, keep_s=options.keep_s))
        if copy.is_ours:
            remember_copy(copy, place.path)
        if is_repaired or copy.is_repaired:
            options = dataclasses.replace(options, check=True)
        return Staging(contents, place, copy, lease, options, watch, say)


def _missing(copy: Copy | None, contents: Contents) -> tuple[int, int]:
    """Return how many bytes and files a copy lacks."""
    size_bytes, count = contents.marker.size_bytes, len(contents.marker.files)
    if copy is not None:
        there = survey(copy)
        size_bytes -= there.landed_bytes + sum(there.partial.values())
        count -= len(there.landed)
    return size_bytes, count


def _make_room(scratch: Scratch, copy: Copy | None, size_bytes: int, say: Callable[[str], None]) -> None:
    """Delete what need not stay where there is no room, or no more is allowed."""
    spare = "" if copy is None else str(copy.folder)
    limit_bytes = find_limit()
    cleared = make_room(scratch.path, size_bytes, limit_bytes=limit_bytes, spare=spare, say=say)
    for gone in cleared.removed:
        say(f"deleted {gone.path}, {format_bytes(gone.size_bytes)}: {gone.why}")
    for kept in cleared.kept:
        if kept.is_only_copy:
            say(f"kept {kept.path}, {format_bytes(kept.size_bytes)}: {kept.why}")
    if limit_bytes is not None and cleared.used_bytes + size_bytes > limit_bytes:
        raise StorageError(
            f"the copy needs {format_bytes(size_bytes)} on {scratch.path}, where your copies take"
            f" {format_bytes(cleared.used_bytes)} and may take {format_bytes(limit_bytes)}",
            hint="raise FEEDRATE_SCRATCH_LIMIT, or see what is in use: feedrate scratch ls",
        )


def _check_nesting(contents: Contents, scratch: Scratch) -> None:
    source = contents.marker.source
    if is_url(source):
        return
    inner, outer = os.path.realpath(scratch.path), os.path.realpath(source)
    if not contents.marker.entry and (inner == outer or inner.startswith(outer.rstrip("/") + "/")):
        raise UsageError(
            f"the scratch folder {scratch.path} lies in the source {source}",
            hint="name a folder outside of it: --scratch DIR",
        )
    between = [one for one in Path(outer).parents if one != Path(inner) and one.is_relative_to(inner)]
    if any(owner_of(one) is not None for one in between):
        raise UsageError(f"{source} is a copy on scratch already", hint="use it as it is")
