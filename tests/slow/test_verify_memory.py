# SPDX-License-Identifier: Apache-2.0
"""Verifying many samples takes the memory of one shard, and 16 bytes for each sample."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from feedrate import PackOptions, pack, verify
from support.packs import encode_image, make_image

pytestmark = pytest.mark.slow

PER_SHARD = 500


def make_pack(folder: Path, shards: int) -> Path:
    image = encode_image(make_image(0, 8, 8))
    source = folder / "source"
    source.mkdir(parents=True)
    for number in range(shards * PER_SHARD):
        (source / f"{number:06d}.jpg").write_bytes(image)
    # A tar has a header and padding per sample; the image takes less than a block.
    per_sample = 512 + -(-len(image) // 512) * 512
    pack(source, folder / "p", PackOptions(workers=1, shard_bytes=PER_SHARD * per_sample + 1024))
    return folder / "p"


def measure_peak(folder: Path, shards: int) -> int:
    tracemalloc.start()
    try:
        found = verify(folder, workers=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.samples, found.problems) == (shards * PER_SHARD, ())
    return peak


def test_memory_of_verify_grows_by_few_bytes_per_sample(tmp_path: Path) -> None:
    few, many = 4, 24
    packs = {shards: make_pack(tmp_path / str(shards), shards) for shards in (few, many)}
    measure_peak(packs[few], few)  # what is loaded once
    grown = measure_peak(packs[many], many) - measure_peak(packs[few], few)
    assert grown / ((many - few) * PER_SHARD) < 40
