# SPDX-License-Identifier: Apache-2.0
"""`feedrate index` of WebDataset's own shards on real S3, HTTP and SFTP servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Loader, RandomResizedCrop, index, verify
from feedrate.errors import PackError
from feedrate.progress import Tick
from support.scratch_copies import evict_copy, stage
from support.servers import CUT_CONNECTIONS, RealServer, start_server
from support.sources import jpeg

pytestmark = [pytest.mark.slow, *CUT_CONNECTIONS]

SHARDS, EACH = 4, 40


@pytest.fixture(params=["s3", "http", "sftp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealServer]:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    folder = tmp_path / "server" / "served" / "train"
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"train-{shard:03d}.tar")) as sink:
            for n in range(EACH):
                number = shard * EACH + n
                sample = {"jpg": jpeg(number % 50), "cls": number % 7, "json": {"n": number}}
                sink.write({"__key__": f"{number:05d}", **sample})
    with start_server(request.param, tmp_path / "server") as server:
        if request.param == "s3":
            __import__("s3fs").S3FileSystem.clear_instance_cache()
        yield server


def address(server: RealServer) -> str:
    names = "train-{000..003}.tar" if server.url.startswith("http") else "train-*.tar"
    return f"{server.url}/train/{names}"


def load(pack: Any, **options: Any) -> list[Any]:
    fields = ("image", "label", "key", "json")
    with Loader(
        pack, 32, image=RandomResizedCrop(24), fields=fields, output="numpy", seed=1, **options
    ) as loader:
        return list(loader)


def append(server: RealServer, name: str, data: bytes) -> None:
    whole = (server.served / name).read_bytes() + data
    if server.url.startswith("s3"):  # its server remembers what it saw on its disk
        __import__("s3fs").S3FileSystem(skip_instance_cache=True).pipe(f"served/{name}", whole)
    else:
        (server.served / name).write_bytes(whole)


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a, b)


def test_shards_on_a_server_give_the_batches_of_a_folder(server: RealServer, tmp_path: Path) -> None:
    result = index(address(server), tmp_path / "index", workers=2)
    assert (result.samples, result.rejected) == (SHARDS * EACH, ())
    index(address(server), tmp_path / "alone", workers=1)
    for path in (tmp_path / "alone").iterdir():
        assert (tmp_path / "index" / path.name).read_bytes() == path.read_bytes()
    index(server.served / "train", tmp_path / "here")
    wanted = load(tmp_path / "here")
    assert_same(load(tmp_path / "index"), wanted)
    assert verify(tmp_path / "index", workers=1).problems == ()
    (tmp_path / "scr").mkdir()
    assert_same(load(tmp_path / "index", scratch=str(tmp_path / "scr"), order="shuffled"), wanted)
    copy = stage(tmp_path / "index", tmp_path / "scr")
    assert_same(load(copy.data), wanted)
    evict_copy(copy)
    assert not copy.folder.exists()
    append(server, "train/train-001.tar", bytes(1024))
    with pytest.raises(PackError, match=r"train-001\.tar has changed since it was indexed"):
        load(tmp_path / "index")


def test_a_server_that_is_killed_while_it_is_indexed_is_waited_for(
    server: RealServer, tmp_path: Path
) -> None:
    killed = []

    def kill(tick: Tick) -> None:
        if tick.done == 1 and not killed:
            killed.append(tick)
            server.kill()
            server.later(1.0, server.start)

    result = index(address(server), tmp_path / "index", workers=1, watch=kill)
    assert killed
    assert result.samples == SHARDS * EACH
    index(server.served / "train", tmp_path / "here")
    assert_same(load(tmp_path / "index"), load(tmp_path / "here"))
