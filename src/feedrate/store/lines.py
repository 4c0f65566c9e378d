# SPDX-License-Identifier: Apache-2.0
"""How a storage is asked for byte ranges: by coroutines where fsspec has them (HTTP, S3), else in threads.

A line keeps to its number of requests in flight and tries failed ones again. Each thread has a connection of
its own: paramiko's must not be shared.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from feedrate.errors import SourceError
from feedrate.store.patience import Attempts, EndsEarly, Trouble
from feedrate.store.place import Place

# OpenSSH lets in 10 connections at a time that have not said who they are.
SFTP_CONNECTIONS = 6
THREADS = 16
KEPT_OPEN = 16


class Line(Protocol):
    """A way to a storage."""

    in_flight: int

    def ask(self, file: bytes, offset: int, length: int) -> Future[bytes]: ...

    def close(self) -> None: ...


def open_line(place: Place, in_flight: int, trouble: Trouble) -> Line:
    """Return the line that suits a place."""
    scheme = place.root.partition(":")[0].lower() if place.is_remote else ""
    if not scheme:
        return ThreadLine(lambda: LocalReader(place), min(THREADS, in_flight), place, trouble)
    is_chain = "::" in place.root
    options = {} if is_chain else _options(scheme, in_flight, trouble.patience.stall_s)
    if scheme in ("sftp", "ssh") and not is_chain:
        threads = min(SFTP_CONNECTIONS, in_flight)
        stall_s = trouble.patience.stall_s
        return ThreadLine(lambda: SftpReader(place.root, options, stall_s), threads, place, trouble)
    own_options = {} if is_chain else {**options, "skip_instance_cache": True}
    own = Place(place.root, own_options, asks_once=True)
    fs, _ = own.connect()
    if getattr(fs, "async_impl", False):
        return AsyncLine(own, in_flight, trouble)
    # Chains (a file inside of a file) are not known to stand several readers.
    threads = 1 if is_chain else min(THREADS, in_flight)
    return ThreadLine(lambda: PlaceReader(place.root, is_chain), threads, place, trouble)


def _options(scheme: str, in_flight: int, stall_s: float) -> dict[str, Any]:
    """Return what to tell a storage, so that it allows many requests and notices when nothing comes."""
    if scheme in ("http", "https"):

        async def make_session(**given: Any) -> Any:
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s)
            connector = given.pop("connector", None) or aiohttp.TCPConnector(limit=in_flight)
            return aiohttp.ClientSession(connector=connector, timeout=given.pop("timeout", limits), **given)

        return {"get_client": make_session}
    if scheme in ("s3", "s3a"):
        config = {
            "max_pool_connections": in_flight,
            "connect_timeout": stall_s,
            "read_timeout": stall_s,
        }
        return {"config_kwargs": config}
    if scheme in ("sftp", "ssh"):
        return {"timeout": stall_s, "banner_timeout": stall_s, "auth_timeout": stall_s}
    return {}


def check(place: Place, file: bytes, offset: int, length: int, data: bytes) -> bytes:
    """Return `data` if it is what was asked for."""
    if len(data) == length:
        return data
    if len(data) > length:
        raise SourceError(
            f"the server of {place.address(file)} sends whole files instead of the bytes asked for",
            hint="its files cannot be read in part: download the pack, or use another server",
        )
    raise EndsEarly(
        f"{place.address(file)} ends at byte {offset + len(data):,}; "
        f"the pack has samples up to byte {offset + length:,}",
        hint="the source is damaged, or is not the pack it was",
    )


class AsyncLine:
    """Requests as coroutines on fsspec's own loop."""

    def __init__(self, place: Place, in_flight: int, trouble: Trouble) -> None:
        self.in_flight = in_flight
        self._place, self._trouble = place, trouble
        self._fs, _ = place.connect()
        self._gate = asyncio.Semaphore(in_flight)
        # A backstop for storages that do not know of `stall_s`; a slow link may take long for 8 MB.
        self._limit_s = 10 * trouble.patience.stall_s

    def ask(self, file: bytes, offset: int, length: int) -> Future[bytes]:
        return asyncio.run_coroutine_threadsafe(self._read(file, offset, length), self._fs.loop)

    async def _read(self, file: bytes, offset: int, length: int) -> bytes:
        attempts = Attempts(self._trouble, self._place.address(file))
        _, path = self._place.connect(file)
        async with self._gate:
            while True:
                try:
                    reading = self._fs._cat_file(path, start=offset, end=offset + length)
                    data = bytes(await asyncio.wait_for(reading, self._limit_s))
                    self._trouble.is_over()
                    return check(self._place, file, offset, length, data)
                except Exception as error:
                    wait_s = attempts.failed(error)
                await asyncio.sleep(wait_s)

    def close(self) -> None:
        # The session ends with the file system object: fsspec's finaliser closes it.
        self._fs = None


class Reader(Protocol):
    """What one thread reads with; a new one is made after a failure."""

    def read(self, file: bytes, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class ThreadLine:
    """Requests in threads, each with a reader of its own."""

    def __init__(
        self, make_reader: Callable[[], Reader], threads: int, place: Place, trouble: Trouble
    ) -> None:
        self.in_flight = threads
        self._make_reader, self._place, self._trouble = make_reader, place, trouble
        self._asked: queue.SimpleQueue[tuple[Future[bytes], bytes, int, int] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def ask(self, file: bytes, offset: int, length: int) -> Future[bytes]:
        future: Future[bytes] = Future()
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self.in_flight:
                # A daemon: a read that hangs must not hold up the end.
                thread = threading.Thread(target=self._run, name="feedrate-range", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._asked.put((future, file, offset, length))
        return future

    def _run(self) -> None:
        reader: Reader | None = None
        while (asked := self._asked.get()) is not None:
            future, file, offset, length = asked
            if future.set_running_or_notify_cancel():
                try:
                    reader, data = self._read(reader, file, offset, length)
                except BaseException as error:
                    reader = None
                    future.set_exception(error)
                else:
                    future.set_result(data)
            del future, asked
            with self._lock:
                self._busy -= 1
        if reader is not None:
            reader.close()

    def _read(self, reader: Reader | None, file: bytes, offset: int, length: int) -> tuple[Reader, bytes]:
        attempts = Attempts(self._trouble, self._place.address(file))
        while True:
            try:
                reader = reader or self._make_reader()
                data = check(self._place, file, offset, length, reader.read(file, offset, length))
            except Exception as error:
                if reader is not None:
                    reader.close()
                    reader = None
                if self._closing.is_set():
                    raise
                wait_s = attempts.failed(error)
            else:
                self._trouble.is_over()
                return reader, data
            self._closing.wait(wait_s)

    def close(self) -> None:
        self._closing.set()
        for _ in self._threads:
            self._asked.put(None)


class LocalReader:
    """Files of this machine's file systems; the last few stay open."""

    def __init__(self, place: Place) -> None:
        self._root = os.fsencode(place.root)
        self._open: dict[bytes, int] = {}

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        fd = self._open.pop(file, -1)
        if fd < 0:
            if len(self._open) >= KEPT_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            fd = os.open(os.path.join(self._root, file), os.O_RDONLY | os.O_CLOEXEC)
        self._open[file] = fd  # the latest comes last
        parts = []
        while length > 0 and (part := os.pread(fd, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class PlaceReader:
    """Any storage of fsspec without coroutines."""

    def __init__(self, root: str, is_chain: bool) -> None:
        self._place = Place(root, {} if is_chain else {"skip_instance_cache": True})

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        fs, path = self._place.connect(file)
        return bytes(fs.cat_file(path, start=offset, end=offset + length)) if length else b""

    def close(self) -> None:
        pass


class SftpReader:
    """SFTP: the parts of a range are asked for at once, since one at a time reaches a few MB/s."""

    def __init__(self, root: str, options: dict[str, Any], stall_s: float) -> None:
        self._place = Place(root, {**options, "skip_instance_cache": True})
        self._fs, _ = self._place.connect()
        self._fs.ftp.get_channel().settimeout(stall_s)
        self._open: dict[bytes, Any] = {}

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        if not length:
            return b""
        handle = self._open.pop(file, None)
        if handle is None:
            if len(self._open) >= KEPT_OPEN:
                self._open.pop(next(iter(self._open))).close()
            handle = self._fs.ftp.open(self._place.connect(file)[1], "rb")
        self._open[file] = handle
        return b"".join(handle.readv([(offset, length)]))

    def close(self) -> None:
        # Not the handles one by one: a server that is gone would be waited for.
        self._open.clear()
        self._fs.client.close()
