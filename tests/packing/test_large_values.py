# SPDX-License-Identifier: Apache-2.0
"""A read of the system may bring less than was asked for, and brings 2 GB at the most: it is gone on with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedrate import Dataset, PackOptions, index, pack, unpack, verify
from support.images import read_tree, save_image
from support.sources import jpeg, write_tar

MOST_BYTES = 700


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one call read 700 bytes at the most, where Linux reads 2,147,479,552."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, MOST_BYTES), offset))


def write_shard(folder: Path) -> tuple[Path, dict[str, bytes]]:
    files = {f"{i:03}.jpg": jpeg(i, 90, 70) for i in range(4)}
    assert min(map(len, files.values())) > MOST_BYTES
    folder.mkdir()
    return write_tar(folder / "shard.tar", files), files


@pytest.mark.parametrize("container", ["tar", "tfrecord", "hdf5"])
def test_values_of_an_archive_that_take_several_reads_are_packed_checked_and_unpacked(
    container: str, tmp_path: Path
) -> None:
    if container == "hdf5":
        pytest.importorskip("h5py")
    source, files = write_shard(tmp_path / "source")
    result = pack(source.parent, tmp_path / "pack", PackOptions(workers=1, container=container))
    assert (result.samples, result.rejected) == (4, ())
    assert verify(tmp_path / "pack", workers=1).problems == ()
    unpack(tmp_path / "pack", tmp_path / "unpacked", workers=1)
    assert sorted(read_tree(tmp_path / "unpacked").values()) == sorted(files.values())


def test_files_that_take_several_reads_are_packed_one_by_one_too(tmp_path: Path) -> None:
    for i in range(3):
        save_image(tmp_path / "source" / "ä" / f"{i} ö.jpg", i, width=90, height=70)
    result = pack(tmp_path / "source", tmp_path / "pack", PackOptions(workers=1))
    assert (result.samples, result.rejected) == (3, ())
    unpack(tmp_path / "pack", tmp_path / "unpacked", workers=1)
    assert read_tree(tmp_path / "unpacked") == read_tree(tmp_path / "source")


def test_values_indexed_in_place_that_take_several_reads_are_checked(tmp_path: Path) -> None:
    source, _ = write_shard(tmp_path / "source")
    index(source.parent, tmp_path / "pack")
    assert verify(tmp_path / "pack", workers=1).problems == ()
    assert Dataset(f"file://{tmp_path / 'pack'}")[0].size == (90, 70)
