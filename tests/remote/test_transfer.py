# SPDX-License-Identifier: Apache-2.0
"""Files that are brought near: in order, resumed, checked, tried again, and no faster than allowed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import kernel
from feedrate.errors import NotFound, SourceError, StorageError
from feedrate.remote import connections, transfer
from feedrate.remote.addresses import Place
from feedrate.remote.copier import Incoming
from feedrate.remote.transfer import RateLimit, Stopped, Transfer
from support.examples import examples
from support.range_server import serve


class Server(Place):
    """A remote place in memory; `answer` may change what is given."""

    def __init__(self, files: dict[bytes, bytes]) -> None:
        super().__init__("test://server")
        self.files = files
        self.asked: list[tuple[bytes, int, int]] = []
        self.answer: Callable[[bytes, int, int, bytes], bytes] = lambda _name, _offset, _size, data: data

    def connect(self, file: bytes = b"") -> tuple[Any, str]:
        return SimpleNamespace(async_impl=True, cat_file=self.cat_file), file.decode()

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        file, size_bytes = path.encode(), end - start
        self.asked.append((file, start, size_bytes))
        return self.answer(file, start, size_bytes, self.files[file][start:end])


class Arrivals:
    """Where files arrive: parts in a folder, and what is whole in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole: dict[str, bytes] = {}
        self.order: list[str] = []

    def open_part(self, file: Incoming) -> int:
        return os.open(self.part(file.name), os.O_RDWR | os.O_CREAT)

    def part(self, name: str) -> Path:
        return self.folder / f"{name}.part"

    def arrived(self, file: Incoming, fd: int, crc32c: int) -> None:
        os.close(fd)
        self.order.append(file.name)
        self.whole[file.name] = self.part(file.name).read_bytes()
        assert kernel.crc32c(self.whole[file.name]) == crc32c


@pytest.fixture
def arrivals(tmp_path: Path) -> Arrivals:
    return Arrivals(tmp_path)


DATA = {b"one": bytes(range(256)) * 40, b"two": b"", b"three": b"3" * 999}


def incoming(server: Server, *, is_checked: bool = True) -> list[Incoming]:
    return [
        Incoming(name.decode(), server, name, len(data), kernel.crc32c(data) if is_checked else None)
        for name, data in server.files.items()
    ]


def text(files: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): data for name, data in files.items()}


def test_files_arrive_whole(arrivals: Arrivals) -> None:
    server = Server(DATA)
    counted: list[int] = []
    Transfer(4, count=counted.append, block_bytes=1000).carry(
        incoming(server), arrivals.open_part, arrivals.arrived
    )
    assert arrivals.whole == text(DATA)
    assert sum(counted) == sum(map(len, DATA.values()))


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    there=st.lists(st.integers(0, 3500), min_size=6, max_size=6),
    block=st.integers(1, 900),
    streams=st.integers(1, 5),
)
def test_whatever_was_there_before_the_bytes_are_those_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], there: list[int], block: int, streams: int
) -> None:
    arrivals = Arrivals(tmp_path_factory.mktemp("arrivals"))
    server = Server({b"%d" % n: os.urandom(size) for n, size in enumerate(sizes)})
    for (name, data), cut in zip(server.files.items(), there, strict=False):
        # A beginning of the file, or something longer that cannot be one.
        arrivals.part(name.decode()).write_bytes(data[:cut] + b"?" * max(0, cut - len(data)))
    Transfer(streams, block_bytes=block).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == text(server.files)


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=150),
    there=st.lists(st.sampled_from(["nothing", "a beginning", "all of it", "other bytes", "more"])),
    is_checked=st.booleans(),
)
def test_small_files_of_a_folder_arrive_whole_in_groups(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], there: list[str], is_checked: bool
) -> None:
    folder = tmp_path_factory.mktemp("source")
    arrivals, place, files = Arrivals(tmp_path_factory.mktemp("arrivals")), Place(str(folder)), []
    for n, size in enumerate(sizes):
        data = os.urandom(size)
        (folder / str(n)).write_bytes(data)
        files.append(Incoming(str(n), place, b"%d" % n, size, kernel.crc32c(data) if is_checked else None))
        what = there[n] if n < len(there) else "nothing"
        before = {"nothing": b"", "a beginning": data[: size // 2], "all of it": data, "more": data + b"?"}
        # Bytes that are not the source's are known by nothing but its checksum.
        other = b"?" * size if is_checked else b""
        arrivals.part(str(n)).write_bytes(before.get(what, other))
    counted: list[int] = []
    Transfer(3, count=counted.append).carry(files, arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(arrivals.order) == len(set(arrivals.order))


def test_small_files_that_are_there_whole_are_not_read_again(arrivals: Arrivals, tmp_path: Path) -> None:
    arrivals.part("x").write_bytes(b"12345")
    counted: list[int] = []
    missing = Incoming("x", Place(str(tmp_path)), b"missing", 5, kernel.crc32c(b"12345"))
    Transfer(1, count=counted.append).carry([missing], arrivals.open_part, arrivals.arrived)
    assert (arrivals.whole, sum(counted)) == ({"x": b"12345"}, 0)


def test_of_a_group_of_small_files_the_missing_one_is_named(arrivals: Arrivals, tmp_path: Path) -> None:
    for n in range(100):
        (tmp_path / str(n)).write_bytes(b"%d" % n)
    place = Place(str(tmp_path))
    files = [Incoming(f"f{n}", place, b"%d" % n, len(str(n))) for n in range(100)]
    (tmp_path / "70").unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotFound, match=r"no dataset at .*/70"):
        Transfer(2).carry(files, arrivals.open_part, arrivals.arrived)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert {"f0", "f1"} <= arrivals.whole.keys()
    assert "f70" not in arrivals.whole


def test_what_was_there_is_not_asked_for_again(arrivals: Arrivals) -> None:
    server = Server({b"one": DATA[b"one"]})
    arrivals.part("one").write_bytes(DATA[b"one"][:9000])
    Transfer(2, block_bytes=500).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert min(offset for _, offset, _ in server.asked) == 9000
    assert arrivals.whole == {"one": DATA[b"one"]}


def test_a_beginning_that_rotted_is_brought_again(arrivals: Arrivals) -> None:
    server = Server({b"one": DATA[b"one"]})
    arrivals.part("one").write_bytes(b"x" * 9000)
    Transfer(2, block_bytes=500).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == {"one": DATA[b"one"]}
    assert min(offset for _, offset, _ in server.asked) == 0


def test_a_source_that_gives_other_bytes_is_named(arrivals: Arrivals) -> None:
    server = Server(DATA)
    server.answer = lambda name, offset, _, data: (
        b"?" + data[1:] if (name, offset) == (b"one", 3000) else data
    )
    with pytest.raises(
        StorageError, match=r"test://server/one does not have the checksum that its pack\.json says"
    ) as got:
        Transfer(2, block_bytes=1000).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert "feedrate verify" in str(got.value.hint)
    assert arrivals.whole.keys() == {"two", "three"}
    assert arrivals.part("one").stat().st_size == 0


def test_a_source_that_errs_is_tried_again_later_and_later(arrivals: Arrivals) -> None:
    server = Server({b"one": b"12345"})
    waits: list[float] = []
    said: list[str] = []

    def fail(_name: bytes, _offset: int, _size: int, data: bytes) -> bytes:
        if len(server.asked) < 4:
            raise ConnectionResetError("the line is dead")
        return data

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    server.answer = fail
    Transfer(1, say=said.append, wait=wait).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == {"one": b"12345"}
    assert waits == [0.5, 1.0, 2.0]
    assert said[0] == "cannot read test://server/one: the line is dead; trying again in 500 ms"


def test_a_source_that_stays_away_is_given_up_and_what_came_is_kept(arrivals: Arrivals) -> None:
    server = Server({b"one": b"x" * 2500})

    def fail(_name: bytes, offset: int, _size: int, data: bytes) -> bytes:
        if offset >= 2000:
            raise TimeoutError("no answer")
        return data

    server.answer = fail
    with pytest.raises(StorageError, match="cannot read test://server/one: no answer"):
        Transfer(1, wait=lambda _: False, block_bytes=1000).carry(
            incoming(server), arrivals.open_part, arrivals.arrived
        )
    assert arrivals.part("one").stat().st_size == 2000
    assert sum(offset == 2000 for _, offset, _ in server.asked) == 6


def test_what_is_not_there_is_not_tried_again(arrivals: Arrivals) -> None:
    server = Server({b"one": b"12345"})

    def fail(_name: bytes, _offset: int, _size: int, _data: bytes) -> bytes:
        raise FileNotFoundError("one")

    server.answer = fail
    with pytest.raises(NotFound, match="test://server/one"):
        Transfer(1).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert len(server.asked) == 1


def test_a_local_file_that_cannot_be_read_is_not_tried_again(arrivals: Arrivals, tmp_path: Path) -> None:
    file = Incoming("x", Place(str(tmp_path)), b"missing", 5)
    with pytest.raises(NotFound, match=r"no dataset at .*/missing"):
        Transfer(1, wait=lambda _: pytest.fail("waited")).carry([file], arrivals.open_part, arrivals.arrived)


def test_a_file_whose_server_forgot_it_is_opened_again(
    arrivals: Arrivals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("file", "again"):
        (tmp_path / name).write_bytes(b"12345")
    file = Incoming("x", Place(str(tmp_path)), b"file", 5)
    real = os.pread
    calls: list[int] = []

    def fail_once(fd: int, length: int, offset: int) -> bytes:
        calls.append(os.fstat(fd).st_ino)
        if len(calls) == 1:
            (tmp_path / "again").rename(tmp_path / "file")
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd, length, offset)

    monkeypatch.setattr(connections.os, "pread", fail_once)
    Transfer(1, wait=lambda _: False).carry([file], arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == {"x": b"12345"}
    assert len(set(calls)) == 2


def test_a_file_that_was_cut_short_is_named(arrivals: Arrivals, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"123")
    file = Incoming("x", Place(str(tmp_path)), b"short", 5)
    with pytest.raises(SourceError, match="short ends at byte 3, and should have 5 bytes"):
        Transfer(1).carry([file], arrivals.open_part, arrivals.arrived)


def test_a_file_without_checksum_that_changes_meanwhile_is_named(arrivals: Arrivals, tmp_path: Path) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"12345")
    file = Incoming("x", Place(str(tmp_path)), b"growing", 5, mtime_ns=path.stat().st_mtime_ns)
    path.write_bytes(b"123456")
    with pytest.raises(StorageError, match="growing was changed while it was copied"):
        Transfer(1).carry([file], arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == {}


def test_a_changed_file_is_named_also_where_the_next_one_is_about_to_be_done(
    arrivals: Arrivals, tmp_path: Path
) -> None:
    files = []
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(os.urandom(3 << 20))
        when = (tmp_path / name).stat().st_mtime_ns + (name == "one")
        files.append(Incoming(name, Place(str(tmp_path)), name.encode(), 3 << 20, mtime_ns=when))
    with pytest.raises(StorageError, match="one was changed while it was copied"):
        Transfer(2).carry(files, arrivals.open_part, arrivals.arrived)


def test_a_server_without_ranges_is_named(arrivals: Arrivals) -> None:
    server = Server({b"one": b"x" * 5000})
    server.answer = lambda *_: b"x" * 5000
    with pytest.raises(SourceError, match="sends whole files instead of the bytes asked for"):
        Transfer(1, block_bytes=1000).carry(incoming(server), arrivals.open_part, arrivals.arrived)


def test_a_block_that_breaks_off_is_gone_on_with_where_it_broke(arrivals: Arrivals, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "one").write_bytes(data := os.urandom(50_000))
    with serve(tmp_path / "served") as server:
        server.fault = lambda _path, _number: "break"
        file = Incoming("one", Place(server.url), b"one", len(data), kernel.crc32c(data))
        said: list[str] = []
        Transfer(2, say=said.append, wait=lambda _: False).carry([file], arrivals.open_part, arrivals.arrived)
        asked = [wanted for _, wanted in server.asked]
    assert arrivals.whole == {"one": data}
    assert asked[:2] == ["bytes=0-49999", "bytes=1000-49999"]
    assert len(asked) == 50
    assert len(said) == 1, "a line that breaks is said once, not with every number of bytes that came"


def test_of_a_storage_that_keeps_nothing_of_a_broken_answer_less_is_asked_for(arrivals: Arrivals) -> None:
    server = Server({b"one": os.urandom(600_000)})

    def answer(_name: bytes, _offset: int, size: int, data: bytes) -> bytes:
        if size > 200_000:
            raise OSError("the line broke")
        return data

    server.answer = answer
    Transfer(1, wait=lambda _: False).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == text(server.files)


def test_stopping_leaves_a_beginning_to_go_on_with(arrivals: Arrivals) -> None:
    server = Server({b"one": os.urandom(9000)})
    stop = threading.Event()

    def answer(_name: bytes, offset: int, _size: int, data: bytes) -> bytes:
        if offset >= 4000:
            stop.set()
        return data

    server.answer = answer
    with pytest.raises(Stopped):
        Transfer(1, stop=stop, block_bytes=1000).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    there = arrivals.part("one").read_bytes()
    assert server.files[b"one"].startswith(there)
    server.answer = lambda _name, _offset, _size, data: data
    Transfer(1, block_bytes=1000).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert arrivals.whole == text(server.files)


def test_no_descriptor_and_no_thread_is_left_by_a_failure(arrivals: Arrivals) -> None:
    server = Server({b"%d" % n: b"x" * 3000 for n in range(20)})

    def fail(name: bytes, _offset: int, _size: int, data: bytes) -> bytes:
        if name == b"7":
            raise FileNotFoundError("7")
        return data

    server.answer = fail
    before, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    with pytest.raises(NotFound):
        Transfer(4, block_bytes=500).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert set(threading.enumerate()) <= threads


class FakeClock:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30), st.floats(1e3, 1e9))
def test_a_rate_limit_is_kept_whatever_the_sizes(sizes: list[int], rate: float) -> None:
    clock = FakeClock()
    limit = RateLimit(rate, clock, clock.wait)
    for size in sizes:
        limit.take(size)
    # What was taken before the last one has had its time.
    assert clock.now - 100.0 == pytest.approx(sum(sizes[:-1]) / rate, rel=1e-6)


def test_all_streams_share_the_rate_limit_and_every_byte_is_counted(arrivals: Arrivals) -> None:
    server = Server({b"%d" % n: os.urandom(300_000) for n in range(5)})
    taken: list[int] = []

    class Counting(RateLimit):
        def take(self, size_bytes: int) -> None:
            taken.append(size_bytes)

    limit = Counting(8 * 100_000)
    Transfer(4, limit=limit).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert sum(taken) == 5 * 300_000
    assert max(taken) == 100_000  # an eighth of a second at a time
    assert arrivals.whole == text(server.files)


def test_bytes_that_are_known_are_not_fetched(arrivals: Arrivals) -> None:
    server = Server({})
    file = Incoming("pack.json", server, b"pack.json", 3, kernel.crc32c(b"abc"), b"abc")
    Transfer(1).carry([file], arrivals.open_part, arrivals.arrived)
    assert (arrivals.whole, server.asked) == ({"pack.json": b"abc"}, [])


def test_memory_is_bounded_by_the_streams(arrivals: Arrivals) -> None:
    """While the first block does not come, only so many others are asked for."""
    server = Server({b"one": b"x" * 100_000})
    release = threading.Event()
    asked_when_stuck: list[int] = []

    def answer(_name: bytes, offset: int, _size: int, data: bytes) -> bytes:
        if offset == 0:
            seen = -1
            while seen != len(server.asked):  # until no more come
                seen = len(server.asked)
                release.wait(0.05)
            asked_when_stuck.append(seen)
        return data

    server.answer = answer
    Transfer(4, block_bytes=1000).carry(incoming(server), arrivals.open_part, arrivals.arrived)
    assert asked_when_stuck[0] <= 4 + 4 // 2 + 1
    assert transfer.REMOTE_STREAMS * transfer.BLOCK_BYTES * 3 // 2 < 128 << 20
