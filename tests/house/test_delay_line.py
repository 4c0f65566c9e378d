# SPDX-License-Identifier: Apache-2.0
"""The line that tests put in front of real servers: carries bytes as they are, late; loses connections."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from support.delay_line import DelayLine, Way, delay_line

SENT = os.urandom(300_000)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets, one connection at a time."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(ConnectionResetError):
                    data = connection.recv(65536)
                    if data == b"end":
                        return
                    while data:
                        connection.sendall(data)
                        data = connection.recv(65536)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        yield port
        with socket.create_connection(("127.0.0.1", port)) as last:
            last.sendall(b"end")
        thread.join()


def ask(line: DelayLine) -> bytes:
    """Send all, and read until the other side has ended."""
    with socket.create_connection(("127.0.0.1", line.port), timeout=120) as client:
        sender = threading.Thread(target=lambda: (client.sendall(SENT), client.shutdown(socket.SHUT_WR)))
        sender.start()
        try:
            return b"".join(iter(lambda: client.recv(65536), b""))
        finally:
            sender.join()


def test_bytes_pass_both_ways_as_they_are(echo: int) -> None:
    with delay_line(echo, 0.001, 50e6) as line:
        assert ask(line) == SENT


def test_all_bytes_of_a_direction_share_its_rate_and_are_late() -> None:
    way = Way(one_way_s=0.5, bytes_per_s=100)
    arrivals = [way.find_arrival(200, now) for now in (10.0, 10.0, 30.0)]
    assert arrivals == [12.5, 14.5, 32.5]


def test_a_cut_loses_the_rest_of_an_answer_and_the_next_connection_works(echo: int) -> None:
    with delay_line(echo, 0.001, 50e6) as line:
        line.cut_next_answer()
        with socket.create_connection(("127.0.0.1", line.port), timeout=120) as client:
            client.sendall(b"hello")
            with pytest.raises(ConnectionResetError):
                list(iter(lambda: client.recv(100), b""))
        assert line.cuts == 1
        assert ask(line) == SENT


def test_a_server_that_is_not_there_cuts_the_connection() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        with (
            delay_line(nobody.getsockname()[1], 0.001, 50e6) as line,
            socket.create_connection(("127.0.0.1", line.port), timeout=120) as client,
        ):
            assert client.recv(100) == b""
