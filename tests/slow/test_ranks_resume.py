# SPDX-License-Identifier: Apache-2.0
"""Four ranks of a real process group, killed in mid-epoch; three go on from the last state of the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from feedrate import Loader, RandomResizedCrop
from support.packs import write_images

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

COUNT, SIDE, SEED, EPOCH = 203, 16, 11, 2
SAVED_EVERY, STOP = 3, 8  # steps; the last state before the end is of step 6

# As a training loop does it: a step ends when all ranks are through with it, and rank 0 saves now and then.
# Rank 0 then waits in step `stop` for a line that never comes, and the others wait for it, inside gloo.
RANK = """
import json, os, sys, zlib
import torch, torch.distributed
from feedrate import Loader, RandomResizedCrop

pack, folder, meeting, batch_size, stop = sys.argv[1:]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/{meeting}", rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
rank, saved = torch.distributed.get_rank(), os.path.join(folder, "saved.json")
loader = Loader(
    pack, int(batch_size), image=RandomResizedCrop(%(side)d), flip=True, fields=("image", "number"),
    seed=%(seed)d,
)
loader.set_epoch(%(epoch)d)
if os.path.exists(saved):
    with open(saved) as file:
        loader.load_state_dict(json.load(file)["loader"])
log = open(os.path.join(folder, f"{meeting}.{rank}"), "w")
for step, (images, numbers) in enumerate(loader, 1):
    sums = [zlib.crc32(image.numpy().tobytes()) for image in images.contiguous()]
    print(json.dumps(dict(zip(numbers.tolist(), sums))), file=log, flush=True)
    if step == int(stop) and rank == 0:
        print("stopped", flush=True)
        sys.stdin.readline()
    torch.distributed.all_reduce(images.float().mean())
    if rank == 0 and step %% %(every)d == 0 and int(stop):
        with open(saved + ".part", "w") as file:
            json.dump({"steps": step, "loader": loader.state_dict()}, file)
        os.replace(saved + ".part", saved)
loader.close()
torch.distributed.destroy_process_group()
""" % {"side": SIDE, "seed": SEED, "epoch": EPOCH, "every": SAVED_EVERY}  # noqa: UP031


def start_ranks(stack: ExitStack, world: int, *arguments: str | Path | int) -> list[subprocess.Popen[str]]:
    def start(rank: int) -> subprocess.Popen[str]:
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        return subprocess.Popen(
            [sys.executable, "-c", RANK, *map(str, arguments)],
            env={**os.environ, **ranks, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    processes = [stack.enter_context(start(rank)) for rank in range(world)]
    for process in processes:
        stack.callback(process.kill)
    return processes


def read_log(path: Path) -> list[dict[int, int]]:
    """Return each batch of a rank: the checksum of the pixels by the number of the sample."""
    batches = [json.loads(line) for line in path.read_text().splitlines()]
    return [{int(number): crc for number, crc in batch.items()} for batch in batches]


def test_four_ranks_killed_in_mid_epoch_and_resumed_on_three_give_every_sample_once(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", count=COUNT, side=None)
    with ExitStack() as stack:
        ranks = start_ranks(stack, 4, pack, tmp_path, "killed", 5, STOP)
        said = ranks[0].stdout
        assert said is not None
        assert said.readline() == "stopped\n"
        for rank in ranks:
            rank.kill()
        assert [rank.wait() for rank in ranks] == [-9] * 4
    with ExitStack() as stack:
        ranks = start_ranks(stack, 3, pack, tmp_path, "resumed", 7, 0)
        errors = [rank.communicate()[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * 3, errors

    saved = json.loads((tmp_path / "saved.json").read_text())["steps"]
    assert saved == 6
    killed = [read_log(tmp_path / f"killed.{rank}") for rank in range(4)]
    resumed = [read_log(tmp_path / f"resumed.{rank}") for rank in range(3)]
    assert len(killed[0]) == STOP
    assert len({len(batches) for batches in resumed}) == 1
    given = [
        sample
        for batches in [*(batches[:saved] for batches in killed), *resumed]
        for batch in batches
        for sample in batch.items()
    ]
    assert sorted(number for number, _ in given) == list(range(COUNT))
    assert dict(given) == read_at_once(pack)


def read_at_once(pack: Path) -> dict[int, int]:
    """Return what one process gets in that epoch without a stop."""
    crop = RandomResizedCrop(SIDE)
    with Loader(pack, 50, image=crop, flip=True, fields=("image", "number"), seed=SEED) as loader:
        loader.set_epoch(EPOCH)
        return {
            int(number): zlib.crc32(image.contiguous().numpy().tobytes())
            for images, numbers in loader
            for number, image in zip(numbers, images.contiguous(), strict=True)
        }
