# SPDX-License-Identifier: Apache-2.0
"""The one copier: files grow from their beginning, block by block, while later blocks are on their way.

Blocks are asked for ahead and appended in order, so a file that is on its way is always a beginning of the
whole: an interrupted one goes on where it ends, and its beginning can be read meanwhile. When the last block
of a file is there, its checksum is compared and the file is handed over. Who reads the blocks, and what
becomes of whole files, is the caller's business: `fetch` below brings a part of one file, remote/transfer is
`feedrate stage`, also while the pack is read.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate import kernel
from feedrate.files.atomic import write_all, writing
from feedrate.remote.addresses import Changed, FileVersion, Place, explain
from feedrate.remote.fetch import Piece, RangeReader

# Small enough that the end, when fewer and fewer are in flight, is short.
BLOCK_BYTES = 4 << 20
_FETCH_STREAMS = 8


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file that is to be brought.

    Attributes:
        name: what it is called in messages, and to who gets it.
        place, source: where it is read.
        crc32c: what it must be; None: not known.
        known: its bytes, where they are known already.
        mtime_ns: when it changed last, as it was listed; 0: unknown. Another time now: it is not that file.
        version: which one comes, of a file without a checksum behind an address.
        first: the byte that is brought first; what is before it is a hole.
    """

    name: str
    place: Place
    source: bytes
    size_bytes: int
    crc32c: int | None = None
    known: bytes | None = None
    mtime_ns: int = 0
    version: FileVersion | None = None
    first: int = 0

    @property
    def address(self) -> str:
        return self.place.address(self.source)

    def check_unchanged(self, crc32c: int, read: Callable[[int, int], bytes]) -> None:
        """A file without a checksum may have been written to while it was read.

        Args:
            crc32c: of what came.
            read: asks for a range, by offset and length.

        Raises:
            Changed: it was.
        """
        if self.version is not None:
            self.version.confirm(range(self.first, self.size_bytes), crc32c, read)
        elif self.crc32c is None and not self.place.is_remote and self.mtime_ns:
            try:
                found = os.stat(os.path.join(os.fsencode(self.place.root), self.source))
            except OSError as error:
                raise explain(error, self.address) from error
            if (found.st_size, found.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
                raise Changed(
                    f"{self.address} was changed while it was copied",
                    hint="wait until it is finished, then run the same command again",
                )


class Part:
    """What is there of a file, and its checksum so far. Others may read `size_bytes` while it grows.

    Args:
        fd: open for reading and writing; it is this object's from now on.
        is_stopped: asked while what is there is read.
    """

    def __init__(self, file: Incoming, fd: int, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.file, self.size_bytes, self.crc32c = file, file.first, 0
        self._fd: int | None = fd
        try:
            there_bytes = os.fstat(fd).st_size
            if there_bytes > file.size_bytes:  # none of it
                os.ftruncate(fd, 0)
            while self.size_bytes < there_bytes and not is_stopped():
                data = os.pread(fd, BLOCK_BYTES, self.size_bytes)
                if not data:
                    break
                self._count(data)
        except BaseException:
            self.close()
            raise

    @property
    def is_closed(self) -> bool:
        return self._fd is None

    @property
    def fd(self) -> int:
        assert self._fd is not None
        return self._fd

    def append(self, data: bytes) -> None:
        write_all(self.fd, data, self.size_bytes)
        self._count(data)

    def clear(self) -> None:
        """Forget what is there: it is not what it should be."""
        os.ftruncate(self.fd, 0)
        self.close()

    def release(self) -> int:
        """Give the descriptor away."""
        fd, self._fd = self.fd, None
        return fd

    def close(self) -> None:
        """What is there stays, to be gone on with. May be called twice."""
        if self._fd is not None:
            os.close(self.release())

    def _count(self, data: bytes) -> None:
        self.crc32c = kernel.crc32c(data, self.crc32c)
        self.size_bytes += len(data)


Read = Callable[[Incoming, int, int], "Future[bytes]"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A block that was asked for; `future` None: nothing comes any more, the file is whole.

    Without a part: small files that a thread brings; the future ends with those of a wrong checksum.
    """

    part: Part | None
    future: Future[bytes] | Future[list[Incoming]] | None


class Copier:
    """Takes blocks in the order in which they are asked for, several in flight.

    Args:
        read: asks for a range of a file.
        finish: gets a part that is whole and has the right checksum.
        refuse: gets a file of which nothing is left, and why; None: it came with a wrong checksum.
        count: told of bytes that have arrived.
    """

    def __init__(
        self,
        read: Read,
        in_flight: int,
        *,
        finish: Callable[[Part], None],
        refuse: Callable[[Incoming, Changed | None], None],
        count: Callable[[int], None],
        block_bytes: int = 0,
    ) -> None:
        self._read, self._in_flight, self._block_bytes = read, in_flight, block_bytes or BLOCK_BYTES
        self._finish, self._refuse, self._count = finish, refuse, count

    def ask(self, parts: Iterable[Part]) -> Iterator[Asked]:
        """Ask for what parts lack, block by block; of several parts, side by side."""
        offsets: dict[Part, int] = {}
        try:
            for part in parts:
                offsets[part] = part.size_bytes
            while offsets:
                for part, offset in list(offsets.items()):
                    length = min(self._block_bytes, part.file.size_bytes - offset)
                    if length > 0 and not part.is_closed:
                        offsets[part] += length
                        yield Asked(part, self._read(part.file, offset, length))
                    if part.is_closed or offsets[part] >= part.file.size_bytes:
                        del offsets[part]
                        yield Asked(part, None)
        finally:
            for part in offsets:
                part.close()

    def run(self, asked: Iterable[Asked]) -> None:
        """Take what is asked for, and close all parts when that fails."""
        waiting: deque[Asked] = deque()
        in_flight = 0
        try:
            for one in asked:
                waiting.append(one)
                in_flight += one.future is not None
                while in_flight >= self._in_flight:
                    in_flight -= waiting[0].future is not None
                    self._take(waiting.popleft())
            while waiting:
                self._take(waiting.popleft())
        finally:
            for one in waiting:
                if one.part is not None:
                    one.part.close()

    def _take(self, one: Asked) -> None:
        part = one.part
        if part is None:
            assert one.future is not None
            for file in one.future.result():
                assert isinstance(file, Incoming)
                self._refuse(file, None)
        elif not part.is_closed:  # else it was refused since
            try:
                self._grow(part, one.future)
            except Changed as error:  # of this file, or of one that was handed over before it
                if not part.is_closed:
                    part.clear()  # it must not be gone on with
                self._refuse(part.file, error)
            except BaseException:
                part.close()
                raise

    def _grow(self, part: Part, future: Future[Any] | None) -> None:
        if future is not None:
            data = future.result()
            part.append(data)
            self._count(len(data))
        elif part.file.crc32c in (None, part.crc32c):
            self._finish(part)
        else:
            part.clear()
            self._count(-part.file.size_bytes)
            self._refuse(part.file, None)


def fetch(
    place: Place, file: bytes, span: range, target: Path, told: Callable[[int], None] = lambda _: None
) -> None:
    """Bring the bytes of `span`, of one version of the file; what is before them is a hole.

    Errors of the source are tried again.

    Args:
        told: called in this thread with the number of bytes that have come; what it raises ends the fetch.

    Raises:
        StorageError: the source fails for too long, ends early, is changed meanwhile, or the disk is full.
    """
    reader = RangeReader(place, in_flight=_FETCH_STREAMS)

    def read(file: Incoming, offset: int, length: int) -> Future[bytes]:
        return reader.read(Piece(file.source, offset, length), file.version)

    def finish(part: Part) -> None:
        wanted.check_unchanged(part.crc32c, lambda *at: read(wanted, *at).result())

    version = FileVersion(place.address(file))
    wanted = Incoming(target.name, place, file, span.stop, version=version, first=span.start)
    copier = Copier(read, _FETCH_STREAMS, finish=finish, refuse=_raise, count=told)
    with contextlib.closing(reader), writing(target, len(span)):
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with contextlib.closing(Part(wanted, os.open(target, flags, 0o666))) as part:
            copier.run(copier.ask([part]))


def _raise(_: Incoming, error: Changed | None) -> None:
    assert error is not None
    raise error
