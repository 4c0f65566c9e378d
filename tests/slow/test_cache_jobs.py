# SPDX-License-Identifier: Apache-2.0
"""The cache in jobs: among ranks, and killed while it fills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate.cache import sharing
from feedrate.cache.store import SampleCache, Tier
from support.packs import write_images

pytestmark = pytest.mark.slow

RANK = """
    import sys, feedrate
    rank = int(sys.argv[2])
    cache = feedrate.Cache(ram="1GB")
    loader = feedrate.Loader(sys.argv[1], 4, cache=cache, rank=rank, world_size=2, output="numpy")
    def meet(word):
        print(word, flush=True)
        sys.stdin.readline()
    list(loader)
    meet("filled")
    stats = loader.stats().cache
    list(loader)
    print(stats.cached_share, loader.stats().cache.hit_rate, flush=True)
    sys.stdin.read()
"""


def test_ranks_in_processes_of_their_own_fill_and_use_one_cache(tmp_path: Path) -> None:
    pack = write_images(tmp_path / "pack", count=40)
    command = [sys.executable, "-c", textwrap.dedent(RANK), str(pack)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(2)]
    for rank in ranks:
        assert rank.stdout.readline() == "filled\n"
    for rank in ranks:
        rank.stdin.write("go on\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "1.0 1.0\n"
    for rank in ranks:
        rank.communicate()
        assert rank.returncode == 0


def sample(number: int) -> bytes:
    return np.random.default_rng(number).bytes(2000 + 37 * (number % 50))


def count_lists(shelf: SampleCache) -> int:
    return len(list(sharing._find_lists(shelf._name())))


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_kill_while_filling_leaves_nothing_behind_and_spoils_nothing(tmp_path: Path, kind: str) -> None:
    """A process that stays sees of another's unfinished work nothing but whole samples."""
    tier = Tier("ram", 10**8) if kind == "ram" else Tier("disk", 10**8, str(tmp_path))
    random_ = random.Random(7)
    with_all = 0
    for trial in range(100):
        shelf = SampleCache(uuid.uuid4().hex, 300, (tier,))
        child = os.fork()
        if not child:
            for number in range(300):
                shelf.put(number, sample(number))
            time.sleep(60)
        time.sleep(random_.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = np.flatnonzero(shelf.opened.locate(np.arange(300)).found).tolist()
        assert all(shelf.get(number) == sample(number) for number in found), trial
        assert shelf.opened.damaged == 0
        assert shelf.put(299, sample(299))  # no lock was left behind
        with_all += len(found) == 300
        shelf.close()
        assert count_lists(shelf) == 0
        assert list(tmp_path.iterdir()) == []
    assert with_all < 100


def test_a_killed_job_gives_memory_and_disk_back_at_once(tmp_path: Path) -> None:
    script = f"""
        import time
        from feedrate.cache.store import SampleCache as Shelf, Tier
        tiers = Tier("ram", 30_000_000), Tier("disk", None, {str(tmp_path)!r})
        shelf = Shelf("{uuid.uuid4().hex}", 100, tiers)
        for number in range(60):
            assert shelf.put(number, bytes([number]) * 1_000_000)
        print("filled", flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        files = [Path(f"/proc/{process.pid}/fd/{name}") for name in os.listdir(f"/proc/{process.pid}/fd")]
        held = [os.open(file, os.O_RDONLY) for file in files if "deleted" in os.readlink(file)]
        assert sum(os.fstat(file).st_blocks * 512 for file in held) >= 60_000_000
        process.kill()
    # Only this process still has them open: by that they are known to be nobody's once it lets go.
    assert all(os.fstat(file).st_nlink == 0 for file in held)
    for file in held:
        os.close(file)
    assert list(tmp_path.iterdir()) == []
