# SPDX-License-Identifier: Apache-2.0
"""A value of more than 2 GB, which no single read brings: packed, checked, loaded, indexed and unpacked."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feedrate import Loader, PackOptions, Resize, index, pack, unpack, verify
from support.sources import jpeg

pytestmark = pytest.mark.slow

SIZE_BYTES = 2**31 + 4096 + 5  # Linux reads 2**31 - 4096 bytes in one call
MARKS = {0: b"begin", 2**31 - 4096: b"a second read", SIZE_BYTES - 3: b"end"}
NEEDED_BYTES = 10 << 30  # of disk: shard and file; of memory: a few copies of the value


def has_marks(data: memoryview) -> bool:
    marked = all(data[at : at + len(mark)] == mark for at, mark in MARKS.items())
    return len(data) == SIZE_BYTES and marked


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A WebDataset shard with two values; most of it is a hole."""
    free_bytes = min(shutil.disk_usage(tmp_path).free, psutil.virtual_memory().available)
    if free_bytes < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES:,} bytes of memory and of disk, {free_bytes:,} are free")
    (tmp_path / "source").mkdir()
    members = {
        **{"0.jpg": {0: jpeg(0)}, "0.cls": {0: b"4"}, "0.bin": MARKS},
        **{"1.jpg": {0: jpeg(1)}, "1.cls": {0: b"2"}, "1.bin": {0: b"one"}},
    }
    with open(tmp_path / "source" / "shard.tar", "wb") as file:
        for name, pieces in members.items():
            info = tarfile.TarInfo(name)
            info.size = max(at + len(piece) for at, piece in pieces.items())
            file.write(info.tobuf())
            start = file.tell()
            for at, piece in pieces.items():
                file.seek(start + at)
                file.write(piece)
            file.seek(start + -(-info.size // 512) * 512)
        file.write(bytes(1024))
    yield tmp_path / "source"
    shutil.rmtree(tmp_path)  # gigabytes, which pytest would keep for a while


def check_loading(folder: Path) -> None:
    fields = ("bytes", "number", "image")
    with Loader(folder, 2, shuffle=False, fields=fields, image=Resize(8), output="numpy") as loader:
        (batch,) = loader
    values = dict(zip(batch[1].tolist(), batch[0], strict=True))
    assert has_marks(memoryview(values[0]))
    assert values[1] == b"one"


def test_a_value_of_more_than_2_gb_is_packed_checked_loaded_and_unpacked(
    source: Path, tmp_path: Path
) -> None:
    result = pack(source, tmp_path / "pack", PackOptions(workers=1))
    assert (result.samples, result.rejected) == (2, ())
    assert verify(tmp_path / "pack", workers=1).problems == ()
    check_loading(tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "unpacked", workers=1)
    (large,) = (path for path in (tmp_path / "unpacked").rglob("*0*.bin"))
    assert has_marks(memoryview(large.read_bytes()))


def test_a_value_of_more_than_2_gb_is_indexed_in_place(source: Path, tmp_path: Path) -> None:
    index(source, tmp_path / "pack")
    assert verify(tmp_path / "pack", workers=1).problems == ()
    check_loading(tmp_path / "pack")
