# SPDX-License-Identifier: Apache-2.0
"""Epochs from real S3, HTTP and SFTP servers behind a long line: killed, restarted, frozen, cut off."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Loader, RandomResizedCrop
from feedrate.loader.packs import open_pack
from feedrate.remote.pack import RemotePack
from feedrate.remote.retry import RetryPolicy
from support.packs import write_images
from support.servers import CUT_CONNECTIONS, RealServer, start_server

pytestmark = [pytest.mark.slow, *CUT_CONNECTIONS]

COUNT = 240
POLICY = RetryPolicy(stall_s=2.0, give_up_s=90.0, first_wait_s=0.05, longest_wait_s=0.5)


@pytest.fixture(params=["s3", "http", "sftp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealServer]:
    write_images(tmp_path / "server" / "served" / "pack", count=COUNT, shards=6)
    with start_server(request.param, tmp_path / "server") as server:
        if request.param == "s3":
            __import__("s3fs").S3FileSystem.clear_instance_cache()
        yield server


@pytest.fixture(autouse=True)
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is fetched ahead and copied at a time: most is still to come when the server goes."""
    monkeypatch.setattr("feedrate.remote.prefetch.choose_budget", lambda: 20_000)
    monkeypatch.setattr("feedrate.scratch.live.CHUNK_BYTES", 2000)
    monkeypatch.setattr("feedrate.scratch.live.STREAMS", 1)


def make(pack: Any, **options: Any) -> Loader:
    return Loader(pack, 8, image=RandomResizedCrop(24), fields=("number", "image"), output="numpy", **options)


def expected(server: RealServer, epochs: int, **options: Any) -> list[Any]:
    with make(server.served / "pack", **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    """Every epoch has every sample once, as it comes from a folder of this machine."""
    numbers = [number for batch in found for number in batch[0].tolist()]
    assert sorted(numbers) == sorted(list(range(COUNT)) * (len(numbers) // COUNT))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize("order", ["shuffled", "windowed"])
def test_a_real_server_gives_the_same_batches(server: RealServer, order: str) -> None:
    with make(f"{server.url}/pack", order=order) as loader:
        assert_same([b for _ in range(2) for b in loader], expected(server, 2, order=order))


@pytest.mark.parametrize("with_scratch", [False, True])
def test_a_server_that_is_killed_and_restarted_costs_no_sample(
    server: RealServer, with_scratch: bool, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    pack = open_pack(f"{server.url}/pack", str(scratch) if with_scratch else None, POLICY)
    found = []
    with make(pack, order="staged") as loader:
        for epoch in range(2):
            for step, batch in enumerate(loader):
                found.append(batch)
                if epoch == 0 and step in (3, 15):
                    server.kill()
                    server.later(1.0, server.start)
    assert_same(found, expected(server, 2, order="staged"))
    assert isinstance(pack, RemotePack)
    if pack.copy is not None:
        pack.copy._thread.join(120)
        copy = pack.copy.copy
        assert copy.is_complete()
        for path in (server.served / "pack").iterdir():
            assert (copy.data / path.name).read_bytes() == path.read_bytes()
    else:
        assert pack.fetch_stats().retries > 0
    pack.close()


def test_connections_that_the_line_cuts_cost_no_sample(server: RealServer) -> None:
    pack = open_pack(f"{server.url}/pack", policy=POLICY)
    found = []
    with make(pack) as loader:
        for step, batch in enumerate(loader):
            found.append(batch)
            if step in (3, 9, 15):
                server.line.cut_next_answer()
    assert_same(found, expected(server, 1))
    assert server.line.cuts == 3
    pack.close()


def test_a_server_that_freezes_is_asked_again(server: RealServer) -> None:
    pack = open_pack(f"{server.url}/pack", policy=POLICY)
    found = []
    with make(pack) as loader:
        for step, batch in enumerate(loader):
            found.append(batch)
            if step == 3:
                server.signal(signal.SIGSTOP)
                server.later(4.0, lambda: server.signal(signal.SIGCONT))
    assert_same(found, expected(server, 1))
    pack.close()
