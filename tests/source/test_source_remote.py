# SPDX-License-Identifier: Apache-2.0
"""Sources behind fsspec addresses: the same samples as from a folder of this machine."""

from __future__ import annotations

import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from feedrate import PackOptions, pack, unpack, verify
from feedrate.errors import MissingExtra, NotFound, SourceError, StorageError
from feedrate.scratch.contents import read_contents
from support.images import read_tree
from support.range_server import RangeServer, serve
from support.sources import (
    dump_example,
    jpeg,
    read_pack,
    write_tar,
    write_tfrecord,
    write_zip,
)

TREE = {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate(["ant", "bee", "ant", "bee"])}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder with one source of every kind."""
    folder = tmp_path / "sources"
    for name, data in TREE.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_bytes(data)
    write_zip(folder / "d.zip", TREE)
    write_tar(folder / "d.tar", TREE)
    write_tar(folder / "d.tar.gz", TREE, "w:gz")
    (folder / "shards").mkdir()
    for part in range(2):
        files = {
            f"{n}.{ext}": data
            for n in range(2)
            for ext, data in (("jpg", jpeg(n + part)), ("cls", b"%d" % n))
        }
        write_tar(folder / "shards" / f"{part}.tar", files)
    write_tfrecord(
        folder / "d.tfrecord", [dump_example({"image": [jpeg(n)], "label": [n]}) for n in range(3)]
    )
    (folder / "list.txt").write_text("tree/ant/0.jpg 1\ntree/bee/1.jpg 2\n")
    _write_parquet(folder / "d.parquet")
    _write_hdf5(folder / "d.h5")
    return folder


def _write_parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"image": [jpeg(n) for n in range(3)], "label": [0, 1, 2]}), path)


def _write_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["images"] = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
        file["label"] = [2, 1, 0]


KINDS = [
    "tree", "d.zip", "d.tar", "d.tar.gz", "shards", "shards/{0..1}.tar", "shards/*.tar", "d.tfrecord",
    "d.parquet", "d.h5", "list.txt",
]  # fmt: skip


def check_same(local: Path, url: str, kind: str, **options: Any) -> None:
    """Pack a source by its address and from the disk: both packs hold the same samples."""
    here, there = local.parent / "here", local.parent / "there"
    pack(f"{local}/{kind}", here, PackOptions(workers=1))
    result = pack(f"{url}/{kind}", there, PackOptions(workers=1, **options))
    assert (result.rejected, result.source) == ((), f"{url}/{kind}")
    assert read_pack(there) == read_pack(here)
    assert verify(there, workers=1).problems == ()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_addresses(local: Path, kind: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(local), "/bucket", recursive=True)
    try:
        check_same(local, "memory://bucket", kind)
    finally:
        memory.rm("/bucket", recursive=True)


def test_file_addresses(local: Path) -> None:
    check_same(local, f"file://{local}", "d.tar")


def test_a_chain_of_addresses(local: Path, tmp_path: Path) -> None:
    pack(f"zip://::file://{local}/d.zip", tmp_path / "p", PackOptions(workers=1))
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == TREE


def test_addresses_that_lead_nowhere_get_a_sentence(tmp_path: Path) -> None:
    for url, error, words in (
        ("memory://nothing/x.zip", NotFound, "no dataset at memory://nothing/x.zip"),
        ("gopher://x/y.zip", SourceError, "'gopher://x/y.zip' is not an address that fsspec knows"),
        *([] if find_spec("paramiko") else [("sftp://x/y.zip", MissingExtra, "pip install|paramiko")]),
    ):
        with pytest.raises(error, match=words):
            pack(url, tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.fixture
def server(local: Path) -> Iterator[RangeServer]:
    with serve(local) as server:
        yield server


@pytest.mark.parametrize("kind", ["d.zip", "d.tar", "d.tfrecord", "d.h5"])
def test_a_web_server_is_read_by_ranges(local: Path, server: RangeServer, kind: str) -> None:
    check_same(local, server.url, kind)
    assert any(asked for _, asked in server.asked)


def test_an_archive_on_a_web_server_without_ranges_is_refused(local: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with zipfile.ZipFile(local / "large.zip", "w") as archive:
        archive.writestr("1.jpg", jpeg(1))
        archive.writestr("2.jpg", jpeg(2) + bytes(200_000))  # its directory is not read with its beginning
    with (
        serve(local, ranges=False) as server,
        pytest.raises(SourceError, match="sends whole files instead of the bytes asked for"),
    ):
        pack(f"{server.url}/large.zip", tmp_path / "p", PackOptions(workers=1))


def test_what_a_web_server_does_not_have_is_not_found(server: RangeServer, tmp_path: Path) -> None:
    with pytest.raises((NotFound, StorageError), match=r"http://127\.0\.0\.1:\d+/no\.zip"):
        pack(f"{server.url}/no.zip", tmp_path / "p")


def test_a_storage_that_fails_midway_is_a_sentence(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(Exception):
        """Of no class that anybody could know."""

    def fail(*_: object, **__: object) -> bytes:
        raise Lost("the line is dead")

    memory = fsspec.filesystem("memory")
    memory.put(str(local), "/bucket", recursive=True)
    try:
        for kind in ("tree", "d.zip"):
            with monkeypatch.context() as patch:
                patch.setattr(type(memory), "cat_file", fail)
                with pytest.raises(StorageError, match=r"cannot read memory://bucket/.*: the line is dead"):
                    pack(f"memory://bucket/{kind}", tmp_path / "p", PackOptions(workers=1))
            pack(f"memory://bucket/{kind}", tmp_path / "p", PackOptions(workers=1))
            assert len(read_pack(tmp_path / "p")) == 4
            shutil.rmtree(tmp_path / "p")
        monkeypatch.setattr("feedrate.source.tar._parse_header", fail)
        with pytest.raises(StorageError, match=r"cannot read memory://bucket/d\.tar: the line is dead"):
            pack("memory://bucket/d.tar", tmp_path / "p", PackOptions(workers=1))
    finally:
        memory.rm("/bucket", recursive=True)


def test_an_object_that_vanishes_is_left_out_and_named() -> None:
    from feedrate.source.bytes import Bytes
    from feedrate.source.record import FileRange, UnusableValue

    with pytest.raises(UnusableValue, match="it is no longer there"):
        Bytes("memory://nowhere").read(FileRange(b"x.jpg", 3, b"x.jpg"))


def test_a_table_of_this_machine_labels_files_elsewhere(local: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\nant/0.jpg,x\nbee/1.jpg,y\nno.jpg,z\n")
    memory = fsspec.filesystem("memory")
    memory.put(str(local), "/bucket", recursive=True)
    try:
        result = pack("memory://bucket/tree", tmp_path / "p", PackOptions(workers=1, labels=table))
    finally:
        memory.rm("/bucket", recursive=True)
    assert ([r.path for r in result.rejected], result.unlisted) == (["no.jpg"], 2)
    assert {key: sample["image"] for key, sample in read_pack(tmp_path / "p").items()} == {
        "ant/0": jpeg(0), "bee/1": jpeg(1)
    }  # fmt: skip


@pytest.mark.parametrize("command", [pack, read_contents])
def test_a_server_that_is_not_there_is_not_taken_for_a_file_that_is_not(
    tmp_path: Path, command: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("feedrate.remote.retry.RetryPolicy.wait_s", lambda *_: 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x.tar"
    with pytest.raises(StorageError, match=r"cannot read .*Connect call failed"):
        command(url, *([tmp_path / "p"] if command is pack else []))
