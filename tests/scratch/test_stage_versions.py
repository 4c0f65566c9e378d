# SPDX-License-Identifier: Apache-2.0
"""A remote file without a checksum comes to scratch as one version, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from feedrate import Loader, index
from feedrate.errors import StorageError
from feedrate.remote.transfer import Transfer
from feedrate.scratch.commands import stage
from feedrate.scratch.staging import StagingOptions, open_staging
from support.range_server import RangeServer, serve
from support.scratches import Running, wait_for
from support.sources import jpeg, write_tar


@pytest.fixture
def plain_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A web server with one plain file, which comes in several blocks."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    monkeypatch.setattr(Transfer, "block_size", 20_000)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "x.bin").write_bytes(b"a" * 100_000)
    with serve(tmp_path / "served") as server:
        yield server


def replace_at(server: RangeServer, number: int) -> None:
    """Give the file other bytes, as many, when it is asked for so often."""
    file = server.folder / "x.bin"
    asked: list[str] = []

    def replace(path: str, _number: int) -> None:
        asked.append(path)
        if path == "/x.bin" and asked.count(path) == number:
            file.write_bytes(b"b" * 100_000)
            os.utime(file, ns=(10**18, 10**18))

    server.fault = replace


@pytest.mark.parametrize("tells_version", [True, False])
@pytest.mark.parametrize("number", [3, 6])
def test_a_remote_file_that_is_replaced_while_it_comes_is_refused(
    plain_server: RangeServer, scratch: Path, tells_version: bool, number: int
) -> None:
    """In the middle, and after its last block."""
    plain_server.tells_version = tells_version
    replace_at(plain_server, number)
    with pytest.raises(StorageError, match=r"/x\.bin was changed while it was read"):
        stage(f"{plain_server.url}/x.bin", scratch, streams=1)
    result = stage(f"{plain_server.url}/x.bin", scratch)
    assert Path(result.path).read_bytes() == b"b" * 100_000


def test_what_was_begun_is_not_gone_on_with_when_the_remote_file_is_another(
    plain_server: RangeServer, scratch: Path
) -> None:
    for tells_version in (True, False):
        plain_server.tells_version = tells_version
        plain_server.asked.clear()
        plain_server.fault = lambda _path, number: None if number <= 4 else "stall"
        options = StagingOptions(streams=1)
        with open_staging(f"{plain_server.url}/x.bin", scratch, options=options) as staging, Running(staging):
            wait_for(lambda staging=staging: staging.copied_bytes >= 40_000, "some blocks")
            staging.stop()
            plain_server.released.set()
        plain_server.fault = lambda *_: None
        plain_server.released.clear()
        (plain_server.folder / "x.bin").write_bytes(b"%d" % tells_version * 100_000)
        result = stage(f"{plain_server.url}/x.bin", scratch)
        assert set(Path(result.path).read_bytes()) == set(b"%d" % tells_version)


def test_a_remote_file_that_tells_no_version_is_read_twice(plain_server: RangeServer, scratch: Path) -> None:
    plain_server.tells_version = False
    result = stage(f"{plain_server.url}/x.bin", scratch)
    assert Path(result.path).read_bytes() == b"a" * 100_000
    assert 200_000 <= plain_server.bytes_sent <= 210_000


def test_a_small_remote_file_that_comes_in_one_answer_is_read_once(
    plain_server: RangeServer, scratch: Path
) -> None:
    plain_server.tells_version = False
    (plain_server.folder / "y.bin").write_bytes(b"small")
    stage(f"{plain_server.url}/y.bin", scratch)
    assert [asked for asked in plain_server.asked if asked[1]] == [("/y.bin", "bytes=0-4")]


def test_a_small_file_comes_from_a_server_without_ranges(plain_server: RangeServer, scratch: Path) -> None:
    plain_server.ranges = False
    (plain_server.folder / "y.bin").write_bytes(b"small")
    assert Path(stage(f"{plain_server.url}/y.bin", scratch).path).read_bytes() == b"small"


def test_files_of_a_store_that_tells_times_are_of_one_version(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfer, "block_size", 20_000)
    memory = fsspec.filesystem("memory")
    memory.pipe("/plain/x.bin", b"a" * 100_000)
    real = memory.cat_file
    asked: list[int] = []

    def cat_file(path: str, start: int, end: int) -> bytes:
        asked.append(start)
        if len(asked) == 3:
            memory.pipe("/plain/x.bin", b"b" * 100_000)
        return bytes(real(path, start=start, end=end))

    monkeypatch.setattr(type(memory), "cat_file", staticmethod(cat_file))
    try:
        with pytest.raises(StorageError, match=r"plain/x\.bin was changed while it was read"):
            stage("memory://plain/x.bin", scratch, streams=1)
    finally:
        memory.rm("/plain", recursive=True)


@pytest.fixture
def indexed(plain_server: RangeServer, tmp_path: Path) -> Path:
    """An index of one shard on that server, which comes in several blocks, too."""
    files = {f"{n}.{ext}": data for n in range(40) for ext, data in (("jpg", jpeg(n)), ("cls", b"1"))}
    write_tar(plain_server.folder / "x.bin", files)
    os.rename(plain_server.folder / "x.bin", plain_server.folder / "x.tar")
    index(f"{plain_server.url}/x.tar", tmp_path / "index", workers=1)
    return tmp_path / "index"


def touch_at(server: RangeServer, number: int) -> None:
    """Replace the shard by other bytes of the same size when it is asked for so often."""
    file = server.folder / "x.tar"
    asked: list[str] = []

    def touch(path: str, _number: int) -> None:
        asked.append(path)
        if path == "/x.tar" and asked.count(path) == number:
            file.write_bytes(file.read_bytes()[:-1] + b"?")
            os.utime(file, ns=(10**18, 10**18))

    server.fault = touch


def test_an_indexed_shard_that_is_replaced_while_it_is_staged_is_refused(
    plain_server: RangeServer, indexed: Path, scratch: Path
) -> None:
    touch_at(plain_server, 3)
    with pytest.raises(StorageError, match=r"/x\.tar was changed while it was read"):
        stage(indexed, scratch, streams=1)


def test_an_indexed_shard_that_is_replaced_under_a_loader_is_not_kept_on_scratch(
    plain_server: RangeServer,
    indexed: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("feedrate.scratch.live.CHUNK_BYTES", 10_000)
    with Loader(indexed, 4, scratch=scratch, output="numpy") as loader:
        touch_at(plain_server, 2)
        live = loader._resources.pack.copy  # type: ignore[attr-defined]
        live.let_flow()
        live._thread.join(120)
        assert not any(live.copy.has_landed(name) for name in live.copy.files if name.endswith(".tar"))
    assert "x.tar was changed while it was read; it is not kept on scratch" in caplog.text


def test_a_shard_that_is_replaced_while_it_is_indexed_is_refused(
    plain_server: RangeServer, indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del indexed
    monkeypatch.setattr("feedrate.remote.copier.BLOCK_BYTES", 10_000)
    data = (plain_server.folder / "x.tar").read_bytes()
    asked: list[str] = []

    def replace(path: str, _number: int) -> None:
        asked.extend([path] if list((tmp_path / "again").glob(".near-*/x.tar")) else [])
        if len(asked) == 12:  # the first eight are asked for at once
            (plain_server.folder / "x.tar").write_bytes(data[:-1] + b"?")

    plain_server.fault = replace
    with pytest.raises(StorageError, match=r"x\.tar was changed while it was"):
        index(f"{plain_server.url}/x.tar", tmp_path / "again", workers=1)
