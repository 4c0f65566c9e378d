# SPDX-License-Identifier: Apache-2.0
"""A long line in front of a server on loopback: bytes arrive late and at a rate, and connections get lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CHUNK_BYTES, MOST_FLYING = 16_384, 64
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

# What is on its way: when it arrives, and the bytes; no bytes: the end.
Flying = asyncio.Queue[tuple[float, bytes]]


@dataclass
class Way:
    """One direction of the line: late by `one_way_s`, and all connections together at `bytes_per_s`."""

    one_way_s: float
    bytes_per_s: float
    free_at: float = 0.0

    def find_arrival(self, size_bytes: int, now: float) -> float:
        self.free_at = max(self.free_at, now) + size_bytes / self.bytes_per_s
        return self.free_at + self.one_way_s


class DelayLine:
    """Carries TCP connections from `port` to a server's port of this machine, in a thread of its own.

    What a server sent before it was killed still arrives. Connections to one that is not there are cut.
    """

    def __init__(self, server_port: int, one_way_s: float, bytes_per_s: float) -> None:
        self.server_port, self.one_way_s = server_port, one_way_s
        self.port = 0
        self.cuts = 0
        self.break_bytes = 0  # a connection is lost after so many bytes from the server; 0: never
        self._cuts_asked = 0
        self._there, self._back = (Way(one_way_s, bytes_per_s) for _ in range(2))
        self._ends: set[asyncio.StreamWriter] = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="delay-line")

    def start(self) -> None:
        self._thread.start()
        self._is_ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def cut_next_answer(self) -> None:
        """Of what the server sends next let half arrive, then reset all connections."""
        self._cuts_asked += 1

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self._stopped.wait()
        server.close()
        self._reset_all()

    def _reset_all(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            end.transport.abort()

    async def _carry(self, asked: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Carry one connection until the server ends it."""
        ends = {client}
        self._ends |= ends
        try:
            await asyncio.sleep(2 * self.one_way_s)  # to set a connection up takes a round trip
            answered, server = await asyncio.open_connection("127.0.0.1", self.server_port)
            ends.add(server)
            self._ends |= ends
            asking = asyncio.create_task(self._pump(asked, server, self._there))
            try:
                await self._pump(answered, client, self._back)
            finally:
                asking.cancel()
        except (OSError, asyncio.CancelledError):  # nobody listens; or the line is being taken away
            client.transport.abort()
        finally:
            self._ends -= ends
            for end in ends:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: Way) -> None:
        flying = Flying(MOST_FLYING)
        arriving = asyncio.create_task(self._arrive(flying, target, way))
        try:
            data = b"begin"
            while data:
                try:
                    data = await source.read(CHUNK_BYTES)
                except OSError:
                    data = b""
                await flying.put((way.find_arrival(len(data), self._loop.time()), data))
            await arriving
        finally:
            arriving.cancel()

    async def _arrive(self, flying: Flying, target: asyncio.StreamWriter, way: Way) -> None:
        data, sent_bytes = b"begin", 0
        while data:
            at, data = await flying.get()
            await asyncio.sleep(at - self._loop.time())
            is_cut = bool(data) and way is self._back and self.cuts < self._cuts_asked
            with contextlib.suppress(OSError):  # whoever it is for is gone: the rest arrives nowhere
                if data and not target.is_closing():
                    target.write(data[: len(data) // 2] if is_cut else data)
                    await target.drain()
                elif not data and target.can_write_eof():
                    target.write_eof()
            if is_cut:
                self.cuts += 1
                self._reset_all()
            sent_bytes += len(data)
            if way is self._back and 0 < self.break_bytes < sent_bytes:
                self.cuts += not target.is_closing()
                target.transport.abort()  # what still comes arrives nowhere


@contextmanager
def delay_line(server_port: int, one_way_s: float, bytes_per_s: float) -> Iterator[DelayLine]:
    line = DelayLine(server_port, one_way_s, bytes_per_s)
    line.start()
    try:
        yield line
    finally:
        line.stop()
