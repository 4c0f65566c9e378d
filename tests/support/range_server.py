# SPDX-License-Identifier: Apache-2.0
"""A web server that gives byte ranges of a folder, and fails when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Samples in the pack that the fixture `pack_server` serves.
COUNT = 60

# What to do with a request: answer it, answer "500", cut the connection, never answer, send `break_bytes` of
# the answer and cut the connection then, or flip a bit of the answer.
Fault = str | None


class RangeServer:
    """Serves `folder` on loopback. `fault(path, number)` says what goes wrong with a request."""

    def __init__(self, folder: Path, *, delay_s: float = 0.0, ranges: bool = True) -> None:
        self.folder, self.delay_s, self.ranges = folder, delay_s, ranges
        self.tells_version = True  # an ETag
        self.break_bytes = 1000
        self.fault: Callable[[str, int], Fault] = lambda _path, _number: None
        self.asked: list[tuple[str, str | None]] = []
        self.bytes_sent = 0
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        """As if it were killed: open connections are cut, and nobody listens."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.cut()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    allow_reuse_address = True

    def __init__(self, *arguments: object) -> None:
        self.sockets: set[socket.socket] = set()
        super().__init__(*arguments)  # type: ignore[arg-type]

    def get_request(self) -> tuple[socket.socket, object]:  # type: ignore[override]
        connection, address = super().get_request()
        self.sockets.add(connection)
        return connection, address

    def cut(self) -> None:
        for connection in list(self.sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    owner: RangeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        owner = self.owner
        with owner.lock:
            owner.asked.append((self.path, self.headers.get("Range")))
            number = len(owner.asked)
            owner.in_flight += 1
            owner.most_in_flight = max(owner.most_in_flight, owner.in_flight)
        try:
            fault = owner.fault(self.path, number)
            if owner.delay_s:
                time.sleep(owner.delay_s)
            if fault == "stall":
                owner.released.wait(120)
                self.close_connection = True
            elif fault == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif fault == "error":
                self.send_error(500)
            else:
                self.answer(with_body=True, fault=fault)
        finally:
            with owner.lock:
                owner.in_flight -= 1

    def answer(self, *, with_body: bool, fault: Fault = None) -> None:
        path = self.owner.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        facts = path.stat()
        total = facts.st_size
        wanted = self.headers.get("Range") if self.owner.ranges else None
        first, stop = 0, total
        if wanted:
            begin, _, last = wanted.removeprefix("bytes=").partition("-")
            first, stop = int(begin), min(int(last or total), total - 1) + 1
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read(stop - first)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        if self.owner.tells_version:
            self.send_header("ETag", f'"{facts.st_mtime_ns:x}-{total:x}"')
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{stop - 1}/{total}")
        self.end_headers()
        if with_body:
            if fault == "flip":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if fault == "break" and len(data) > self.owner.break_bytes:
                data = data[: self.owner.break_bytes]
                self.close_connection = True
            self.wfile.write(data)
            with self.owner.lock:
                self.owner.bytes_sent += len(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path, *, delay_s: float = 0.0, ranges: bool = True) -> Iterator[RangeServer]:
    server = RangeServer(folder, delay_s=delay_s, ranges=ranges)
    server.start()
    try:
        yield server
    finally:
        server.released.set()
        server.stop()
