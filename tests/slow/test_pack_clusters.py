# SPDX-License-Identifier: Apache-2.0
"""Real clusters make packs: a job or a worker is killed midway, and the pack is that of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import Engine, PackOptions, pack, verify
from feedrate.progress import Tick
from support.images import read_tree
from support.slurm_cluster import cluster_or_skip

pytestmark = pytest.mark.slow

SHARD_BYTES = 200_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that take long to check and little to store, so that there is a midway to be killed at."""
    root = tmp_path_factory.mktemp("source")
    for n in range(12):
        (root / f"class{n % 2}").mkdir(exist_ok=True)
        pixels = np.full((5000, 5000), 9 * n, np.uint8)
        Image.fromarray(pixels).save(root / f"class{n % 2}" / f"{n}.jpg", quality=50, progressive=True)
    return root


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("local") / "p"
    result = pack(source, target, PackOptions(shard_bytes=SHARD_BYTES, workers=1))
    assert result.shards >= 6
    return read_tree(target)


class KillMidway(threading.Thread):
    """Calls `kill` until it says that it did, once the first shard is finished."""

    def __init__(self, target: Path, kill: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.target, self.kill = target, kill
        self.finished_before: int | None = None

    def run(self) -> None:
        while not (self.target / "pack.json").exists():
            finished = len(list(self.target.glob("shard-*.arrow")))
            if finished and self.kill():
                self.finished_before = finished
                return
            time.sleep(0.02)


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster_or_skip() as environment:
        yield environment


def list_running(environment: dict[str, str]) -> list[str]:
    words = ["squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i"]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_slurm_makes_the_same_pack_although_a_job_is_killed(
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    slurm: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    monkeypatch.setattr(
        "feedrate.packing.build.slurm._POLL_S", 0.05
    )  # these shards take less than the usual two seconds
    killed: list[str] = []

    def kill() -> bool:
        # One that has just ended cannot be killed any more: then the next one.
        for job in list_running(slurm)[:1]:
            words = ["scancel", "--full", "--signal=KILL", job]
            if subprocess.run(words, env=slurm, check=False).returncode == 0:
                killed.append(job)
        return bool(killed)

    killer = KillMidway(tmp_path / "p", kill)
    killer.start()
    ticks: list[Tick] = []
    engine = Engine("slurm", partition="main", minutes=5, memory_bytes=100_000_000, array_size=2)
    options = PackOptions(shard_bytes=SHARD_BYTES, engine=engine)
    pack(source, tmp_path / "p", options, watch=ticks.append)
    killer.join()
    assert len(killed) == 1
    assert killer.finished_before is not None
    assert killer.finished_before < len(expected) // 2
    assert read_tree(tmp_path / "p") == expected
    assert verify(tmp_path / "p", workers=1).problems == ()
    assert any(0 < tick.done < tick.total for tick in ticks if tick.stage == "packing")
    assert list_running(slurm) == []


def test_interrupted_command_cancels_its_slurm_jobs_and_goes_on_later(
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    slurm: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])

    def interrupt(tick: Tick) -> None:
        if tick.stage == "packing" and list_running(slurm):
            raise KeyboardInterrupt

    options = PackOptions(shard_bytes=SHARD_BYTES, engine=Engine("slurm", minutes=5))
    with pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "p", options, watch=interrupt)
    deadline = time.monotonic() + 120
    while list_running(slurm) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list_running(slurm) == []
    pack(source, tmp_path / "p", PackOptions(shard_bytes=SHARD_BYTES, workers=1))
    assert read_tree(tmp_path / "p") == expected


@pytest.mark.filterwarnings("ignore")
def test_dask_makes_the_same_pack_although_a_worker_is_killed(
    source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:

        def kill() -> bool:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
            return True

        killer = KillMidway(tmp_path / "p", kill)
        killer.start()
        engine = Engine(cluster.scheduler_address.replace("tcp://", "dask://"))
        pack(source, tmp_path / "p", PackOptions(shard_bytes=SHARD_BYTES, engine=engine))
        killer.join()
    assert killer.finished_before is not None
    assert killer.finished_before < len(expected) // 2
    assert read_tree(tmp_path / "p") == expected


@pytest.mark.filterwarnings("ignore")
def test_address_where_no_dask_answers_is_a_sentence(source: Path, tmp_path: Path) -> None:
    from feedrate.errors import FeedrateError

    pytest.importorskip("distributed")
    with pytest.raises(FeedrateError, match=r"no Dask scheduler answers at dask://127\.0\.0\.1:9"):
        pack(source, tmp_path / "p", PackOptions(engine=Engine("dask://127.0.0.1:9")))
