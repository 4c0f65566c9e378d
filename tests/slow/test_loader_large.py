# SPDX-License-Identifier: Apache-2.0
"""A pack as large as ImageNet, and loops that start and stop many times: nothing grows."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from feedrate import Loader, RandomResizedCrop, kernel
from feedrate.format import index, manifest
from feedrate.format.containers.tar import Tar
from feedrate.format.fields import Field, Kind, row_dtype
from support.packs import LABEL, encode_image, make_image, make_index, make_shard, write_images

pytestmark = pytest.mark.slow
FIELDS = (Field("image", Kind.IMAGE), LABEL)
SHARDS, PER_SHARD = 13, 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1.3 million samples; all of a shard share one file, so it is small on disk."""
    folder = tmp_path_factory.mktemp("packs") / "large"
    folder.mkdir()
    return write_large(folder)


def write_large(folder: Path) -> Path:
    data = encode_image(make_image(0, 64, 48))
    entries = kernel.scan(data).entries
    shards = []
    for shard in range(SHARDS):
        rows = np.zeros(PER_SHARD, row_dtype(FIELDS))
        rows["number"] = np.arange(PER_SHARD) + shard * PER_SHARD
        rows["image.length"], rows["image.crc32c"] = len(data), kernel.crc32c(data)
        rows["image.width"], rows["image.height"] = 64, 48
        keys = [b"k%07d" % n for n in rows["number"]]
        variable = {"key": keys, "image.path": keys, "image.entries": [entries] * PER_SHARD}
        index.fill_derived(rows, variable)
        part = index.dump_part(FIELDS, index.Part(rows, variable, {}))
        names = Tar().shard_name(shard), manifest.index_name(shard)
        (folder / names[0]).write_bytes(data)
        (folder / names[1]).write_bytes(part)
        where = make_index(names[1], len(part), kernel.crc32c(part), index.locate_columns(part))
        shards.append(make_shard(names[0], len(data), kernel.crc32c(data), PER_SHARD, where))
    document = manifest.dump_manifest(manifest.Manifest(FIELDS, tuple(shards), {}))
    (folder / "pack.json").write_bytes(document)
    return folder


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def test_the_first_batch_costs_nothing_per_sample(large: Path):
    fields = ("image", "label", "number")
    options = {"image": RandomResizedCrop(32), "flip": True, "fields": fields, "output": "numpy"}
    with Loader(large, 64, **options) as warm:
        next(iter(warm))
    before = resident_bytes()
    with Loader(large, 64, **options) as loader:
        assert len(loader) == -(-SHARDS * PER_SHARD // 64)
        images, _, numbers = next(iter(loader))
        assert images.shape == (64, 32, 32, 3)
        assert len(set((numbers // PER_SHARD).tolist())) > 6
    # One number per sample would be 10 MB.
    assert resident_bytes() - before < 8 << 20


def test_balanced_weights_work_at_that_size(large: Path):
    with Loader(large, 256, weights="balanced", fields=("label",), output="numpy") as loader:
        assert next(iter(loader))[0].tolist() == [0] * 256


def test_many_short_iterations_leave_nothing_behind(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=60, side=64)
    rng = random.Random(0)

    def run(times: int) -> None:
        for _ in range(times):
            with Loader(
                pack, rng.randint(1, 16), image=RandomResizedCrop(64), prefetch=rng.randint(1, 5)
            ) as loader:
                for _, _batch in zip(range(rng.randint(0, 6)), loader, strict=False):
                    pass

    run(30)
    size_bytes, threads, files = (
        resident_bytes(),
        set(threading.enumerate()),
        len(os.listdir("/proc/self/fd")),
    )
    run(300)
    assert resident_bytes() - size_bytes < 16 << 20
    assert set(threading.enumerate()) <= threads  # one that another test left may have ended meanwhile
    assert len(os.listdir("/proc/self/fd")) <= files
