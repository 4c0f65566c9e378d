# SPDX-License-Identifier: Apache-2.0
"""Byte ranges from elsewhere: joined, many at a time, tried again, and given up in a sentence."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import fsspec
import fsspec.asyn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import SourceError, StorageError
from feedrate.remote.addresses import Place, WholeFile
from feedrate.remote.fetch import Piece, RangeReader, coalesce
from feedrate.remote.retry import Outage, Retry, RetryPolicy
from support.range_server import RangeServer, serve

QUICK = RetryPolicy(stall_s=120, give_up_s=120, first_wait_s=0.001, longest_wait_s=0.01)

pieces = st.lists(
    st.builds(Piece, st.sampled_from([b"a", b"b"]), st.integers(0, 500), st.integers(1, 60)), max_size=40
)


@given(pieces, st.integers(0, 50), st.integers(1, 300))
def test_every_piece_lies_in_one_request(wanted: list[Piece], gap: int, most: int) -> None:
    requests = coalesce(wanted, gap, most)
    assert sorted(piece for _, inside in requests for piece in inside) == sorted(set(wanted))
    for request, inside in requests:
        assert {piece.file for piece in inside} == {request.file}
        assert all(request.offset <= piece.offset and piece.stop <= request.stop for piece in inside)


@given(pieces, st.integers(0, 50), st.integers(1, 300))
def test_requests_are_as_long_as_allowed_and_bring_no_more_than_the_gaps(
    wanted: list[Piece], gap: int, most: int
) -> None:
    requests = [request for request, _ in coalesce(wanted, gap, most)]
    longest = max((piece.length for piece in wanted), default=0)
    assert all(request.length <= max(most, longest) for request in requests)
    covered = {(p.file, byte) for p in wanted for byte in range(p.offset, p.stop)}
    asked = sum(request.length for request in requests)
    assert len(requests) <= len(set(wanted))
    assert asked <= 2 * sum(piece.length for piece in set(wanted))
    assert asked >= len(covered)


def test_neighbours_come_in_one_request() -> None:
    near = [Piece(b"x", 0, 10), Piece(b"x", 10, 5), Piece(b"x", 20, 5)]
    assert coalesce(reversed(near), 5, 100) == [(Piece(b"x", 0, 25), near)]
    others = [Piece(b"x", 0, 10), Piece(b"y", 10, 5)]
    assert coalesce(others, 5, 100) == [(piece, [piece]) for piece in others]


def test_waits_grow_and_end() -> None:
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=8.0)
    waits = [[policy.wait_s(n) for _ in range(50)] for n in (1, 2, 3, 4, 9, 2000)]
    for most, found in zip((1, 2, 4, 8, 8, 8), waits, strict=True):
        assert all(most / 2 <= wait <= most for wait in found)
        assert len(set(found)) > 1


def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("s3://x", RetryPolicy())
    for _ in range(30):
        Retry(outage, "s3://x/a").failed(OSError("the line is dead"))
    assert [r.getMessage() for r in caplog.records] == [
        "s3://x does not answer as it should (the line is dead); trying again for up to 5 min 00 s"
    ]
    assert outage.retries == 30


def test_what_is_announced_is_how_long_this_request_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Retry(Outage("s3://x", RetryPolicy()), "s3://x/a", RetryPolicy(give_up_s=15.0))
    attempts.failed(OSError("the line is dead"))
    assert "trying again for up to 15.0 s" in caplog.text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("feedrate.remote.retry.time", clock)
    return clock


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def fail_until_given_up(attempts: Retry, clock: Clock) -> float:
    """Return after how long it was given up."""
    began = clock.now

    def wait(seconds: float) -> None:
        clock.now += seconds

    def read() -> bytes:
        raise OSError("the line is dead")

    with pytest.raises(StorageError, match="the line is dead"):
        attempts.run(read, wait)
    return clock.now - began


def test_requests_of_one_batch_share_their_time(clock: Clock) -> None:
    outage = Outage("s3://x", RetryPolicy())
    assert 280 <= fail_until_given_up(Retry(outage, "s3://x/a"), clock) <= 300
    clock.now += 1
    # What waited behind it, or is turned to next, gets no time of its own.
    assert fail_until_given_up(Retry(outage, "s3://x/b"), clock) <= 15


def test_a_later_outage_has_its_own_time(clock: Clock) -> None:
    outage = Outage("s3://x", RetryPolicy())
    fail_until_given_up(Retry(outage, "s3://x/a"), clock)
    clock.now += 3600
    assert fail_until_given_up(Retry(outage, "s3://x/a"), clock) >= 280


def test_a_request_that_brings_bytes_is_not_given_up(clock: Clock) -> None:
    attempts = Retry(Outage("s3://x", RetryPolicy(tries=3)), "s3://x/a")
    for _ in range(100):
        clock.now += 20 + attempts.failed(OSError("the line broke"), has_brought=True)
    attempts.failed(OSError("the line broke"))
    with pytest.raises(StorageError, match="tried 3 times"):
        attempts.failed(OSError("the line broke"))


def test_a_sentence_is_not_put_into_itself() -> None:
    attempts = Retry(Outage("s3://x", RetryPolicy()), "s3://x/a", RetryPolicy(tries=2, first_wait_s=0))
    error = StorageError("cannot read s3://x/a: the line is dead")
    attempts.failed(error)
    with pytest.raises(StorageError, match=r"^cannot read s3://x/a: the line is dead, tried 2 times$"):
        attempts.failed(error)


def test_what_cannot_get_better_is_not_tried_again() -> None:
    class Answer(Exception):
        def __init__(self, status: int) -> None:
            super().__init__(f"answered {status}")
            self.status = status

    outage = Outage("s3://x", RetryPolicy())
    for error in (FileNotFoundError("gone"), PermissionError("no"), Answer(403), Answer(404)):
        with pytest.raises(StorageError, match=r"cannot read s3://x/a: (gone|no|answered)"):
            Retry(outage, "s3://x/a").failed(error)
    for error in (OSError("reset"), TimeoutError(), Answer(503), Answer(429)):
        assert Retry(outage, "s3://x/a").failed(error) > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.bin").write_bytes(bytes(range(256)) * 64)
    return tmp_path / "served"


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with serve(folder) as server:
        yield server


WANTED = [Piece(b"a.bin", offset, 100) for offset in range(0, 16000, 500)]
CONTENT = bytes(range(256)) * 64


def check(reader: RangeReader) -> None:
    try:
        asked = [reader.read(piece) for piece in WANTED]
        assert [future.result() for future in asked] == [CONTENT[p.offset : p.stop] for p in WANTED]
    finally:
        reader.close()


def test_a_folder_is_read(folder: Path) -> None:
    check(RangeReader(Place(str(folder)), policy=QUICK))


def test_memory_is_read(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/ranges", recursive=True)
    try:
        check(RangeReader(Place("memory://ranges"), policy=QUICK))
    finally:
        memory.rm("/ranges", recursive=True)


def test_a_web_server_is_read(server: RangeServer) -> None:
    check(RangeReader(Place(server.url), policy=QUICK))
    assert len(server.asked) == len(WANTED)


def test_many_requests_are_in_flight(server: RangeServer) -> None:
    barrier = __import__("threading").Barrier(24, timeout=120)

    def meet(_path: str, number: int) -> None:
        if number <= 24:
            barrier.wait()  # none of the first 24 is answered before all of them were asked

    server.fault = meet
    reader = RangeReader(Place(server.url), in_flight=24, policy=QUICK)
    check(reader)
    assert (server.most_in_flight, reader.most_in_flight) == (24, 24)


@pytest.mark.parametrize("fault", ["error", "cut"])
def test_a_server_that_errs_is_asked_again(
    server: RangeServer, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault = lambda _path, number: fault if number <= 40 else None
    reader = RangeReader(Place(server.url), policy=QUICK)
    check(reader)
    assert reader.outage.retries >= 4
    assert sum("does not answer as it should" in r.getMessage() for r in caplog.records) == 1


def test_a_server_that_never_answers_is_asked_again(server: RangeServer) -> None:
    server.fault = lambda _path, number: "stall" if number <= 3 else None
    # On a busy machine an answer may take longer than that, too: such a request is only asked once more.
    policy = RetryPolicy(stall_s=1.0, give_up_s=600, first_wait_s=0.001, longest_wait_s=0.01)
    check(RangeReader(Place(server.url), policy=policy))


def test_a_server_that_stays_away_is_given_up_in_a_sentence(server: RangeServer) -> None:
    server.fault = lambda _path, _number: "error"
    policy = RetryPolicy(give_up_s=0.05, first_wait_s=0.01, longest_wait_s=0.02)
    reader = RangeReader(Place(server.url), policy=policy)
    with pytest.raises(
        StorageError, match=r"cannot read http://127\.0\.0\.1:\d+/a\.bin: .*500.*, tried \d+ times"
    ):
        reader.read(WANTED[0]).result()
    reader.close()


def test_a_server_without_ranges_is_refused(folder: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with serve(folder, ranges=False) as server:
        reader = RangeReader(Place(server.url), policy=QUICK)
        with pytest.raises(SourceError, match="sends whole files instead of the bytes asked for"):
            reader.read(WANTED[0]).result()
        reader.close()


def test_a_request_that_fails_while_its_reader_is_closed_says_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    asked = threading.Event()

    async def refuse(_fs: object, path: str, *_: object) -> None:
        asked.wait(60)
        reader.close()
        raise WholeFile(path)

    monkeypatch.setattr("feedrate.remote.connections.read_async", refuse)
    with serve(folder) as server:
        reader = RangeReader(Place(server.url), policy=QUICK)
        request = reader.read(WANTED[0])
        asked.set()
        wait([request])
        for _ in range(3):  # until the task of the request has ended
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), fsspec.asyn.get_loop()).result()
    del request
    gc.collect()  # asyncio logs an error that nobody took when its task goes
    assert [record.getMessage() for record in caplog.records] == []


def test_a_file_that_is_too_short_is_named(folder: Path) -> None:
    reader = RangeReader(Place(str(folder)), policy=QUICK)
    with pytest.raises(
        StorageError, match=r"a\.bin ends at byte 16,384; the pack has samples up to byte 16,400"
    ):
        reader.read(Piece(b"a.bin", 16300, 100)).result()
    with pytest.raises(StorageError, match=r"cannot read .*b\.bin"):
        reader.read(Piece(b"b.bin", 0, 1)).result()
    reader.close()


def test_a_closed_reader_leaves_nobody_waiting(server: RangeServer) -> None:
    server.fault = lambda _path, _number: "stall"
    reader = RangeReader(Place(server.url), policy=QUICK)
    waiting = [reader.read(piece) for piece in WANTED[:4]]
    reader.close()
    assert all(future.cancelled() for future in waiting)
    assert reader.read(WANTED[0]).cancelled()


def test_a_remote_file_that_is_gone_is_said_to_be(server: RangeServer) -> None:
    reader = RangeReader(Place(server.url), policy=QUICK)
    with pytest.raises(StorageError, match=r"^cannot read http://[\d.:]+/gone\.bin: No such file"):
        reader.read(Piece(b"gone.bin", 0, 1)).result()
    reader.close()


def test_an_error_that_nobody_waits_for_any_more_is_not_logged(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Future[bytes]] = []
    is_asked, is_over = threading.Event(), threading.Event()

    async def fail(*_: object) -> None:
        while not is_asked.is_set():
            await asyncio.sleep(0.001)
        asked[0].cancel()
        asyncio.get_running_loop().call_later(0, is_over.set)
        raise FileNotFoundError("gone.bin")

    monkeypatch.setattr("feedrate.remote.connections.read_async", fail)
    reader = RangeReader(Place(server.url), policy=QUICK)
    asked.append(reader.read(WANTED[0]))
    is_asked.set()
    assert is_over.wait(60)
    reader.close()
    asked.clear()
    for _ in range(3):  # the loop of fsspec ends the task, then its garbage is collected
        fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.sleep, 0)
        gc.collect()
    assert caplog.text == ""
