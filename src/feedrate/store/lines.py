# SPDX-License-Identifier: Apache-2.0
"""How a storage is asked for byte ranges: by coroutines where fsspec has them (HTTP, S3), else in threads.

A line keeps to its number of requests in flight and tries failed ones again; each thread has its own reader.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from feedrate.store.patience import Attempts, EndsEarly, Refused, Trouble
from feedrate.store.place import Place, WholeFile
from feedrate.store.readers import (
    SFTP_CONNECTIONS,
    LocalReader,
    PlaceReader,
    Reader,
    Received,
    Renewed,
    SftpReader,
    is_sftp,
    read_async,
)
from feedrate.store.versions import FileVersion

THREADS = 16


class Line(Protocol):
    """A way to a storage."""

    in_flight: int

    def ask(
        self, file: bytes, offset: int, length: int, version: FileVersion | None = None
    ) -> Future[bytes]: ...

    def close(self) -> None: ...


def open_line(place: Place, in_flight: int, trouble: Trouble) -> Line:
    """Return the line that suits a place."""
    if not place.is_remote:
        return ThreadLine(lambda: LocalReader(place), min(THREADS, in_flight), place, trouble)
    stall_s = trouble.patience.stall_s
    if is_sftp(place.root):
        threads = min(SFTP_CONNECTIONS, in_flight)
        return ThreadLine(lambda: SftpReader(place.root, stall_s), threads, place, trouble)
    is_chain = "::" in place.root
    scheme = place.root.partition(":")[0].lower()
    options = {} if is_chain else {**_options(scheme, in_flight, stall_s), "skip_instance_cache": True}
    own = Place(place.root, options, asks_once=True)
    fs, _ = own.connect()
    if getattr(fs, "async_impl", False):
        return AsyncLine(own, in_flight, trouble)
    # Chains (a file inside of a file) are not known to stand several readers.
    threads = 1 if is_chain else min(THREADS, in_flight)
    return ThreadLine(lambda: PlaceReader(Place(place.root, options)), threads, place, trouble)


def _options(scheme: str, in_flight: int, stall_s: float) -> dict[str, Any]:
    """Return what to tell a storage, so that it allows many requests and notices when nothing comes."""
    if scheme in ("http", "https"):

        async def make_session(**given: Any) -> Any:
            import aiohttp

            connector = given.pop("connector", None) or aiohttp.TCPConnector(limit=in_flight)
            return aiohttp.ClientSession(connector=connector, **given)

        return {"get_client": make_session}
    if scheme in ("s3", "s3a"):
        config = {
            "max_pool_connections": in_flight,
            "connect_timeout": stall_s,
            "read_timeout": stall_s,
        }
        return {"config_kwargs": config}
    return {}


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


class AsyncLine:
    """Requests as coroutines on fsspec's own loop."""

    def __init__(self, place: Place, in_flight: int, trouble: Trouble) -> None:
        self.in_flight = in_flight
        self._place, self._trouble = place, trouble
        self._fs, _ = place.connect()
        self._gate = asyncio.Semaphore(in_flight)
        self._is_closed = False

    def ask(self, file: bytes, offset: int, length: int, version: FileVersion | None = None) -> Future[bytes]:
        received = Received(length, version)
        return asyncio.run_coroutine_threadsafe(self._read(file, offset, received), self._fs.loop)

    async def _read(self, file: bytes, offset: int, received: Received) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        # Whoever has asked may be gone when this fails; asyncio logs an error that nobody has looked at.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        attempts = Attempts(self._trouble, self._place.address(file))
        fs, path = self._place.connect(file)
        stall_s = self._trouble.patience.stall_s
        # A backstop for storages that do not know of `stall_s`; a slow link may take long for 8 MB.
        limit_s = 10 * stall_s
        async with self._gate:
            while not self._is_closed:
                before_bytes = received.size_bytes
                try:
                    while received.wants_more:
                        await asyncio.wait_for(read_async(fs, path, offset, received, stall_s), limit_s)
                    self._trouble.is_over()
                    return check(self._place, file, offset, received)
                except Exception as error:
                    wait_s = attempts.failed(error, has_brought=received.fail(before_bytes))
                limit_s = min(limit_s, max(stall_s, attempts.left_s))
                await asyncio.sleep(wait_s)
            raise asyncio.CancelledError

    def close(self) -> None:
        # The session ends with the file system object: fsspec's finaliser closes it.
        self._is_closed = True


class ThreadLine:
    """Requests in threads, each with a reader of its own."""

    def __init__(
        self, make_reader: Callable[[], Reader], threads: int, place: Place, trouble: Trouble
    ) -> None:
        self.in_flight = threads
        self._make_reader, self._place, self._trouble = make_reader, place, trouble
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
                    reader.close()
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

        attempts = Attempts(self._trouble, self._place.address(file))
        return attempts.run(read, self._closing.wait, lambda: received.size_bytes)

    def close(self) -> None:
        self._closing.set()
        for _ in self._threads:
            self._asked.put(None)
