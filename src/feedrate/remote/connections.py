# SPDX-License-Identifier: Apache-2.0
"""How a storage is asked for byte ranges: by coroutines where fsspec has them (HTTP, S3), else in threads.

A connection keeps to its number of requests in flight and tries failed ones again. Each thread has a reader
of its own: paramiko's connections must not be shared, since they take each other's answers.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from feedrate import kernel
from feedrate.errors import StorageError
from feedrate.remote.addresses import FileVersion, Place, WholeFile, find_version
from feedrate.remote.retry import EndsEarly, Outage, Refused, Retry

# OpenSSH lets in 10 connections at a time that have not said who they are.
SFTP_CONNECTIONS = 6
KEPT_OPEN = 16
STALL_S = 30.0  # a request that brings nothing for so long has failed


# A request that brings less per second, over `stall_s`, has stalled too.
SLOWEST_BYTES_PER_S = 1000
# Of storages that give all of an answer or nothing, a request that fails is made smaller, down to this.
_SMALLEST_BYTES = 64 << 10
_SFTP_BYTES = 64 << 10


class Received:
    """What has come of a range, by any number of attempts: one that breaks off is gone on with.

    All of it is of one version of the file, as far as the storage tells versions.

    Args:
        file: the version that other requests for the file meet; None: this range stands for itself.
    """

    def __init__(self, length: int, file: FileVersion | None) -> None:
        self.length, self.size_bytes, self.file = length, 0, file
        self._parts: list[bytes] = []
        self._version: str | None = None
        # A request asks for so much, and the last one for all up to this byte of the range.
        self._request_bytes, self._asked_bytes = length, 0

    @property
    def wants_more(self) -> bool:
        """Return whether to ask on: not behind an answer that was shorter than it should be."""
        return self._asked_bytes <= self.size_bytes < self.length

    def find_missing(self, offset: int) -> tuple[int, int]:
        """Return what to ask for next, of a range that begins at `offset`: its first and last byte + 1."""
        if self._asked_bytes:
            self._request_bytes *= 2
        self._asked_bytes = min(self.size_bytes + self._request_bytes, self.length)
        return offset + self.size_bytes, offset + self._asked_bytes

    def begin(self, facts: Mapping[str, Any]) -> None:
        """An answer begins, and tells its version: if it is another than what is there, it is of no use."""
        if self.file is not None:
            self.file.meet(facts)
        version = find_version(facts)
        if self._parts and version != self._version:
            self.clear()
            raise StorageError("the file was changed while it was read")
        self._version = version

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self.size_bytes += len(data)

    def fail(self, before_bytes: int) -> bool:
        """An attempt failed before which so much was there; return whether it brought something."""
        self._asked_bytes = 0
        if self.size_bytes > before_bytes:
            return True
        self._request_bytes = min(self._request_bytes, max(_SMALLEST_BYTES, self._request_bytes // 2))
        return False

    def clear(self) -> None:
        self._parts.clear()
        self.size_bytes = self._asked_bytes = 0

    def join(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class Reader(Protocol):
    """What one thread reads with."""

    def read(self, file: bytes, offset: int, received: Received) -> None:
        """Ask once for what is missing of a range that begins at `offset`; what comes is kept."""
        ...

    def close(self) -> None: ...


def open_reader(place: Place, stall_s: float = STALL_S) -> Reader:
    """Return the reader that suits a place."""
    if not place.is_remote:
        return LocalReader(place)
    if is_sftp(place.root):
        return SftpReader(place.root, stall_s)
    is_chain = "::" in place.root
    if is_chain or getattr(place.connect()[0], "async_impl", False):
        return PlaceReader(place)  # its requests go by one loop, whoever asks
    return PlaceReader(Place(place.root, {"skip_instance_cache": True}))


def is_sftp(root: str) -> bool:
    return root.lower().startswith(("sftp:", "ssh:")) and "::" not in root


class Renewed:
    """A reader that is made when it is needed, and anew after a failure."""

    def __init__(self, make_reader: Callable[[], Reader]) -> None:
        self._make_reader = make_reader
        self._reader: Reader | None = None

    def read(self, file: bytes, offset: int, received: Received) -> None:
        before_bytes = received.size_bytes
        try:
            while received.wants_more:
                if self._reader is None:
                    self._reader = self._make_reader()
                self._reader.read(file, offset, received)
        except BaseException:
            received.fail(before_bytes)
            self.close()
            raise

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class LocalReader:
    """Files of this machine's file systems; the last few stay open."""

    def __init__(self, place: Place) -> None:
        self._root = os.fsencode(place.root)
        self._open: dict[bytes, int] = {}

    def read(self, file: bytes, offset: int, received: Received) -> None:
        path = os.path.join(self._root, file)
        if received.file is not None:
            info = os.stat(path)
            version = f"{info.st_ino} {info.st_size} {info.st_mtime_ns}"
            received.begin({"ETag": version, "mtime_ns": info.st_mtime_ns})
        fd = self._open.pop(file, -1)
        if fd < 0:
            if len(self._open) >= KEPT_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open[file] = fd  # the latest comes last
        start, stop = received.find_missing(offset)
        received.add(kernel.read_at(fd, stop - start, start))

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class PlaceReader:
    """Any other storage of fsspec."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, file: bytes, offset: int, received: Received) -> None:
        fs, path = self._place.connect(file)
        if _is_http(fs) or _is_s3(fs):
            from fsspec.asyn import sync

            sync(fs.loop, read_async, fs, path, offset, received, STALL_S)
        else:
            if received.file is not None:
                received.begin(_see(fs, path))
            start, stop = received.find_missing(offset)
            received.add(bytes(fs.cat_file(path, start=start, end=stop)))

    def close(self) -> None:
        pass


def _see(fs: Any, path: str) -> Mapping[str, Any]:
    """Return what a storage says about a file; not what it remembers."""
    fs.invalidate_cache(path)
    found: Mapping[str, Any] = fs.info(path)
    return found


def _is_http(fs: Any) -> bool:
    return hasattr(fs, "encode_url") and hasattr(fs, "set_session")


def _is_s3(fs: Any) -> bool:
    return hasattr(fs, "_call_s3")


async def read_async(fs: Any, path: str, offset: int, received: Received, stall_s: float) -> None:
    """Ask for what is missing of a range, on fsspec's loop; from HTTP and S3 it is kept as it comes.

    Raises:
        WholeFile: the server sends whole files.
    """
    start, stop = received.find_missing(offset)
    if _is_http(fs):
        import aiohttp

        options = dict(fs.kwargs)
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
        headers["Accept-Encoding"] = "identity"
        if "timeout" not in fs.client_kwargs:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s)
            options.setdefault("timeout", limits)
        session = await fs.set_session()
        async with session.get(fs.encode_url(path), headers=headers, **options) as answer:
            fs._raise_not_found_for_status(answer, path)
            received.begin(answer.headers)
            length = answer.content_length or 0
            if answer.status != 206 and (start > 0 or length > stop - start):
                raise WholeFile(path)  # before any of it is read
            await _receive(answer.content.readany, received, stall_s)
    elif _is_s3(fs):
        bucket, key, version = fs.split_path(path)
        options = {"VersionId": version} if version else {}
        answer = await fs._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **options
        )
        try:
            received.begin(answer)
            await _receive(lambda: answer["Body"].read(1 << 20), received, stall_s)
        finally:
            answer["Body"].close()
    else:
        if received.file is not None:
            fs.invalidate_cache(path)
            received.begin(await fs._info(path))
        received.add(bytes(await fs._cat_file(path, start=start, end=stop)))


async def _receive(read: Callable[[], Awaitable[bytes]], received: Received, stall_s: float) -> None:
    began, before_bytes = time.monotonic(), received.size_bytes
    while received.size_bytes <= received.length and (data := await read()):
        received.add(data)
        spent_s, came_bytes = time.monotonic() - began, received.size_bytes - before_bytes
        if spent_s > stall_s and came_bytes < spent_s * SLOWEST_BYTES_PER_S:
            raise TimeoutError(f"{came_bytes:,} bytes came in {spent_s:.0f} s")


class SftpReader:
    """SFTP: the parts of a range are asked for at once, since one at a time reaches a few MB/s."""

    def __init__(self, root: str, stall_s: float) -> None:
        limits = {"timeout": stall_s, "banner_timeout": stall_s, "auth_timeout": stall_s}
        self._place = Place(root, {**limits, "skip_instance_cache": True})
        self._fs, _ = self._place.connect()
        self._fs.ftp.get_channel().settimeout(stall_s)
        self._open: dict[bytes, tuple[Any, int]] = {}  # a handle, and the file's size

    def read(self, file: bytes, offset: int, received: Received) -> None:
        if received.file is not None:  # before it is opened: what is open may be what was replaced
            received.begin({"mtime": self._fs.ftp.stat(self._place.connect(file)[1]).st_mtime})
        start, stop = received.find_missing(offset)
        opened = self._open.pop(file, None)
        if opened is None:
            if len(self._open) >= KEPT_OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            handle = self._fs.ftp.open(self._place.connect(file)[1], "rb")
            size_bytes = handle.stat().st_size
            opened = handle, sys.maxsize if size_bytes is None else int(size_bytes)
        self._open[file] = opened
        handle, size_bytes = opened
        # Parts are planned for the whole length: a stranger's index may claim any.
        stop = min(stop, size_bytes)
        ranges = [(at, min(_SFTP_BYTES, stop - at)) for at in range(start, stop, _SFTP_BYTES)]
        for (_, length), data in zip(ranges, handle.readv(ranges), strict=True):
            received.add(data)
            if len(data) < length:  # the file ends
                break

    def close(self) -> None:
        # Not the handles one by one: a server that is gone would be waited for.
        self._open.clear()
        self._fs.client.close()


THREADS = 16


def open_connection(place: Place, in_flight: int, outage: Outage) -> AsyncConnection | ThreadConnection:
    """Return the connection that suits a place."""
    stall_s, most = outage.policy.stall_s, THREADS
    if is_sftp(place.root):
        most = SFTP_CONNECTIONS
    elif place.is_remote:
        own = Place(place.root, _choose_options(place.root, in_flight, stall_s), asks_once=True)
        if getattr(own.connect()[0], "async_impl", False):
            return AsyncConnection(own, in_flight, outage)
        # Chains (a file inside of a file) are not known to stand several readers.
        most = 1 if "::" in place.root else THREADS
    return ThreadConnection(lambda: open_reader(place, stall_s), min(most, in_flight), place, outage)


def _choose_options(root: str, in_flight: int, stall_s: float) -> dict[str, Any]:
    """Return options for a storage: many requests at a time, and an error when nothing comes."""
    options: dict[str, Any] = {"skip_instance_cache": True}
    scheme = root.partition(":")[0].lower()
    if "::" in root:
        return {}
    if scheme in ("http", "https"):

        async def make_session(**given: Any) -> Any:
            import aiohttp

            connector = given.pop("connector", None) or aiohttp.TCPConnector(limit=in_flight)
            return aiohttp.ClientSession(connector=connector, **given)

        options["get_client"] = make_session
    elif scheme in ("s3", "s3a"):
        config = {"max_pool_connections": in_flight, "connect_timeout": stall_s, "read_timeout": stall_s}
        options["config_kwargs"] = config
    return options


def check(place: Place, file: bytes, offset: int, received: Received) -> bytes:
    """Return what was received if it is what was asked for."""
    if received.size_bytes == received.length:
        return received.join()
    if received.size_bytes > received.length:
        raise WholeFile(place.address(file))
    stop = offset + received.size_bytes
    received.clear()
    raise EndsEarly(
        f"{place.address(file)} ends at byte {stop:,}; "
        f"the pack has samples up to byte {offset + received.length:,}",
        hint="the source is damaged, or is not the pack it was",
    )


class AsyncConnection:
    """Requests as coroutines on fsspec's own loop. Loaded for these alone: asyncio takes a while."""

    def __init__(self, place: Place, in_flight: int, outage: Outage) -> None:
        import asyncio

        self.in_flight = in_flight
        self._place, self._outage = place, outage
        self._fs, _ = place.connect()
        self._gate = asyncio.Semaphore(in_flight)
        self._is_closed = False

    def ask(self, file: bytes, offset: int, length: int, version: FileVersion | None = None) -> Future[bytes]:
        import asyncio

        received = Received(length, version)
        return asyncio.run_coroutine_threadsafe(self._read(file, offset, received), self._fs.loop)

    async def _read(self, file: bytes, offset: int, received: Received) -> bytes:
        import asyncio

        task = asyncio.current_task()
        assert task is not None
        # Whoever has asked may be gone when this fails; asyncio logs an error that nobody has looked at.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        attempts = Retry(self._outage, self._place.address(file))
        fs, path = self._place.connect(file)
        stall_s = self._outage.policy.stall_s
        # A backstop for storages that do not know of `stall_s`; a slow link may take long for 8 MB.
        limit_s = 10 * stall_s
        async with self._gate:
            while not self._is_closed:
                before_bytes = received.size_bytes
                try:
                    while received.wants_more:
                        await asyncio.wait_for(read_async(fs, path, offset, received, stall_s), limit_s)
                    self._outage.is_over()
                    return check(self._place, file, offset, received)
                except Exception as error:
                    if self._is_closed:  # and so is the session: that is no outage
                        raise asyncio.CancelledError from error
                    wait_s = attempts.failed(error, has_brought=received.fail(before_bytes))
                limit_s = min(limit_s, max(stall_s, attempts.left_s))
                await asyncio.sleep(wait_s)
            raise asyncio.CancelledError

    def close(self) -> None:
        # The session ends with the file system object: fsspec's finaliser closes it.
        self._is_closed = True


class ThreadConnection:
    """Requests in threads, each with a reader of its own."""

    def __init__(self, make_reader: Callable[[], Reader], threads: int, place: Place, outage: Outage) -> None:
        self.in_flight = threads
        self._make_reader, self._place, self._outage = make_reader, place, outage
        self._asked: queue.SimpleQueue[tuple[Future[bytes], bytes, int, Received] | None] = (
            queue.SimpleQueue()
        )
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def ask(self, file: bytes, offset: int, length: int, version: FileVersion | None = None) -> Future[bytes]:
        future: Future[bytes] = Future()
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self.in_flight:
                # A daemon: a read that hangs must not hold up the end.
                thread = threading.Thread(target=self._run, name="feedrate-range", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._asked.put((future, file, offset, Received(length, version)))
        if self._closing.is_set():  # since: nobody may be left to answer
            future.cancel()
        return future

    def _run(self) -> None:
        reader = Renewed(self._make_reader)
        while (asked := self._asked.get()) is not None:
            future, file, offset, received = asked
            if future.set_running_or_notify_cancel():
                try:
                    data = self._read(reader, file, offset, received)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(data)
            del future, asked, received
            with self._lock:
                self._busy -= 1
        reader.close()

    def _read(self, reader: Reader, file: bytes, offset: int, received: Received) -> bytes:
        def read() -> bytes:
            try:
                reader.read(file, offset, received)
                return check(self._place, file, offset, received)
            except Exception as error:
                reader.close()  # what stays open may be a file that was replaced
                if self._closing.is_set():
                    raise Refused("nobody wants it any more") from error
                raise

        attempts = Retry(self._outage, self._place.address(file))
        return attempts.run(read, self._closing.wait, lambda: received.size_bytes)

    def close(self) -> None:
        self._closing.set()
        for _ in self._threads:
            self._asked.put(None)
