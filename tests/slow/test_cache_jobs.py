# SPDX-License-Identifier: Apache-2.0
"""The cache in jobs: with a memory limit that kills a dictionary, among ranks, and killed while it fills."""

from __future__ import annotations

import json
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

from feedrate.store import sharing
from feedrate.store.shelf import Shelf, Tier
from packs import IMAGE, LABEL, encode_image, make_image, write_images, write_pack

pytestmark = pytest.mark.slow

SURROUNDINGS = Path(__file__).parent.parent / "doctor_corpus" / "surroundings.py"
NOT_ALLOWED, KILLED = 77, 137
LIMIT_BYTES = 400_000_000

NAIVE = """
    import sys, feedrate
    dataset = feedrate.Dataset(sys.argv[1], output="numpy")
    cache = {}
    for epoch in range(3):
        for i in range(len(dataset)):
            if i not in cache:
                cache[i] = dataset[i]
"""

CACHED = """
    import json, sys, feedrate
    cache = feedrate.Cache(ram="auto")
    crop = feedrate.RandomCrop(96)
    loader = feedrate.Loader(sys.argv[1], 8, image=crop, cache=cache, output="numpy", threads=2)
    for epoch in range(3):
        for batch in loader:
            pass
    stats = loader.stats().cache
    held = []  # the job itself needs more memory now, bit by bit
    while 1_000_000 * len(held) < int(sys.argv[2]):
        for batch in loader:
            held += [bytes([len(held) % 255 + 1]) * 1_000_000 for _ in range(2)]
    after = loader.stats().cache
    print(json.dumps([[s.cached_share, s.hit_rate, s.returned_bytes, s.damaged] for s in (stats, after)]))
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 110 images of 2.6 megapixels: 870 MB when decoded."""
    files = [encode_image(make_image(i, 1800, 1450), quality=80) for i in range(11)]
    samples = [{"image": files[i % 11], "label": 0} for i in range(110)]
    return write_pack(tmp_path_factory.mktemp("packs") / "pack", (IMAGE, LABEL), samples)


def run_limited(
    script: str, *words: object, limit_bytes: int = LIMIT_BYTES
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, words)]
    limited = [sys.executable, str(SURROUNDINGS), "--memory", str(limit_bytes), "--", *command]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    if done.returncode == NOT_ALLOWED:
        pytest.skip(f"no memory limit can be set here: {done.stderr}")
    return done


def test_a_dictionary_of_decoded_images_is_killed_under_the_limit(photographs: Path) -> None:
    assert run_limited(NAIVE, photographs).returncode == KILLED


def test_the_cache_fills_up_to_the_limit_and_gives_back_what_the_job_needs(photographs: Path) -> None:
    done = run_limited(CACHED, photographs, 120_000_000)
    assert done.returncode == 0, done.stderr
    (filled, hits, returned, _), (left, _, given_back, damaged) = json.loads(done.stdout)
    assert 0.1 < filled < 0.5
    assert hits == pytest.approx(filled, abs=0.03)
    assert given_back >= max(returned, 40_000_000)
    assert left < filled
    assert damaged == 0


RANKS = """
    import subprocess, sys
    rank = '''
    import sys, feedrate
    rank = {"rank": int(sys.argv[2]), "world_size": 3}
    options = {"image": feedrate.RandomCrop(96), "output": "numpy", "threads": 2, **rank}
    loader = feedrate.Loader(sys.argv[1], 4, cache=feedrate.Cache(), **options)
    for epoch in range(3):
        list(loader)
    stats = loader.stats().cache
    print(stats.cached_share, stats.hit_rate, stats.damaged)
    '''
    import textwrap
    words = [sys.executable, "-c", textwrap.dedent(rank), sys.argv[1]]
    ranks = [subprocess.Popen([*words, str(number)]) for number in range(3)]
    sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


def test_ranks_that_fill_at_once_stay_below_the_limit_together(photographs: Path) -> None:
    done = run_limited(RANKS, photographs, limit_bytes=700_000_000)
    assert done.returncode == 0, done.stderr
    shares, rates, damaged = zip(
        *(map(float, line.split()) for line in done.stdout.splitlines()), strict=True
    )
    assert min(shares) > 0.05
    assert max(shares) < 0.7
    assert set(damaged) == {0}
    assert max(rates) > 0


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


def count_entries(shelf: Shelf) -> int:
    folder = sharing.find_meeting_folder()
    assert folder is not None
    return len(list(folder.glob(f"{shelf._name()}.*")))


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_kill_while_filling_leaves_nothing_behind_and_spoils_nothing(tmp_path: Path, kind: str) -> None:
    """A process that stays sees of another's unfinished work nothing but whole samples."""
    tier = Tier("ram", 10**8) if kind == "ram" else Tier("disk", 10**8, str(tmp_path))
    random_ = random.Random(7)
    with_all = 0
    for trial in range(100):
        shelf = Shelf(uuid.uuid4().hex, 300, (tier,))
        child = os.fork()
        if not child:
            for number in range(300):
                shelf.put(number, sample(number))
            time.sleep(60)
        time.sleep(random_.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = np.flatnonzero(shelf.locate(np.arange(300)).found).tolist()
        assert all(shelf.get(number) == sample(number) for number in found), trial
        assert shelf.damaged == 0
        assert shelf.put(299, sample(299))  # no lock was left behind
        with_all += len(found) == 300
        shelf.close()
        sharing.sweep()
        assert count_entries(shelf) == 0
        assert list(tmp_path.iterdir()) == []
    assert with_all < 100


def test_a_killed_job_gives_memory_and_disk_back_at_once(tmp_path: Path) -> None:
    script = f"""
        import time
        from feedrate.store.shelf import Shelf, Tier
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
