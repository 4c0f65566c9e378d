# SPDX-License-Identifier: Apache-2.0
"""Ranks as torchrun and a real Slurm start them, in process groups of gloo: who they are, their threads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate.machine.cpu import count_usable_cores
from support.packs import write_images
from support.slurm_cluster import cluster_or_skip

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

COUNT = 45

# The lines of docs/loader.md, and a file of each rank that says what its loader made of them.
TRAIN = """
import json, os, sys
import torch.distributed
from feedrate import Loader, Resize

pack, folder = sys.argv[1:]
if "RANK" not in os.environ:
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
torch.distributed.init_process_group("gloo")
with Loader(pack, 4, image=Resize(8), fields=("image", "number")) as loader:
    numbers = [n for _, numbers in loader for n in numbers.tolist()]
    about = {"rank": loader.ranks.use(), "threads": loader.stats().threads, "numbers": numbers}
with open(os.path.join(folder, f"rank-{torch.distributed.get_rank()}.json"), "w") as file:
    json.dump(about, file)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster_or_skip() as environment:
        yield environment


def launch(folder: Path, words: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return what each rank has written down."""
    pack = write_images(folder / "pack", count=COUNT, side=16)
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [*words, str(folder / "train.py"), str(pack), str(folder)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def check_ranks(ranks: list[dict[str, Any]], threads: int) -> None:
    assert [rank["rank"] for rank in ranks] == [[0, 2], [1, 2]]
    assert sorted(n for rank in ranks for n in rank["numbers"]) == list(range(COUNT))
    assert [rank["threads"] for rank in ranks] == [threads] * 2


def test_two_ranks_of_torchrun_have_half_of_the_cores_each(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ranks = launch(tmp_path, [sys.executable, *torchrun], dict(os.environ))
    check_ranks(ranks, max(1, count_usable_cores() // 2))


@pytest.mark.parametrize(("nodes", "ranks_of_a_node"), [("1", 2), ("2", 1)])
def test_two_tasks_of_slurm_share_the_cores_of_a_node_they_are_both_on(
    nodes: str, ranks_of_a_node: int, tmp_path: Path, slurm: dict[str, str]
) -> None:
    # All nodes of this cluster are this machine, whose cores Slurm does not bind.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    srun = ["srun", "--nodes", nodes, "--ntasks", "2", "--kill-on-bad-exit", sys.executable]
    ranks = launch(tmp_path, srun, {**slurm, **meeting})
    check_ranks(ranks, max(1, count_usable_cores() // ranks_of_a_node))
