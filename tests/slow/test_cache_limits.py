# SPDX-License-Identifier: Apache-2.0
"""The cache in jobs whose memory limit kills a dictionary: in a control group, and under Slurm's --mem."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.memory_limits import KINDS, Ended, Limiter, open_limiter
from support.packs import IMAGE, LABEL, encode_image, make_image, write_pack

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 110 images of 2.6 megapixels: 870 MB when decoded."""
    files = [encode_image(make_image(i, 1800, 1450), quality=80) for i in range(11)]
    samples = [{"image": files[i % 11], "label": 0} for i in range(110)]
    return write_pack(tmp_path_factory.mktemp("packs") / "pack", (IMAGE, LABEL), samples)


@pytest.fixture(scope="module", params=KINDS)
def limiter(request: pytest.FixtureRequest) -> Iterator[Limiter]:
    with open_limiter(request.param) as limiter:
        yield limiter


def run(limiter: Limiter, script: str, *words: object, limit_bytes: int = LIMIT_BYTES) -> Ended:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, words)]
    return limiter(command, limit_bytes)


def test_a_dictionary_of_decoded_images_is_killed_under_the_limit(
    photographs: Path, limiter: Limiter
) -> None:
    assert run(limiter, NAIVE, photographs).how == "killed"


def test_the_cache_fills_up_to_the_limit_and_gives_back_what_the_job_needs(
    photographs: Path, limiter: Limiter
) -> None:
    ended = run(limiter, CACHED, photographs, 120_000_000)
    assert ended.how == "done", ended.errors
    (filled, hits, returned, _), (left, _, given_back, damaged) = json.loads(ended.output)
    assert 0.1 < filled < 0.5
    assert hits == pytest.approx(filled, abs=0.03)
    assert given_back >= max(returned, 40_000_000)
    assert left < filled
    assert damaged == 0


def test_ranks_that_fill_at_once_stay_below_the_limit_together(photographs: Path, limiter: Limiter) -> None:
    ended = run(limiter, RANKS, photographs, limit_bytes=700_000_000)
    assert ended.how == "done", ended.errors
    shares, rates, damaged = zip(
        *(map(float, line.split()) for line in ended.output.splitlines()), strict=True
    )
    assert min(shares) > 0.05
    assert max(shares) < 0.7
    assert set(damaged) == {0}
    assert max(rates) > 0
