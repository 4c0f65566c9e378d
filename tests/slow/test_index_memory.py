# SPDX-License-Identifier: Apache-2.0
"""Indexing eight times as many samples takes no more memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.format.containers import Content, Output
from feedrate.format.containers.tar import Tar
from feedrate.format.fields import Field, Kind
from support.packs import encode_image, make_image

pytestmark = pytest.mark.slow

RUN = """
import resource, sys
from feedrate import index
if __name__ == "__main__":
    result = index(sys.argv[1], sys.argv[2], workers=1)
    print(result.samples, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
IMAGE, LABEL = Field("image", Kind.IMAGE), Field("label", Kind.NUMBER, dtype="int64")
PER_SHARD = 2000  # so that a task's share is the same whatever their number


def write_shards(folder: Path, shards: int) -> Path:
    folder.mkdir()
    image = encode_image(make_image(0, 16, 16))
    for shard in range(shards):
        with open(folder / f"{shard:05d}.tar", "wb") as out:
            writer = Tar().write(Output(out))
            for n in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                label = Content(LABEL, b"%d" % (n % 10), b"", n % 10)
                writer.add(f"{n:08d}", [Content(IMAGE, image, b"x.jpg"), label])
            writer.end()
    return folder


def test_memory_of_index_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    peaks = []
    for shards in (1, 8):
        source = write_shards(tmp_path / f"{shards}", shards)
        words = [sys.executable, "-c", RUN, str(source), str(tmp_path / f"index-{shards}")]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        assert int(said[0]) == shards * PER_SHARD
        peaks.append(int(said[1]))
    assert peaks[1] < 1.2 * peaks[0]
