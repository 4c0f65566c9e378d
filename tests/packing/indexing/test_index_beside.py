# SPDX-License-Identifier: Apache-2.0
"""The index of a folder of images is beside it, and whoever names the folder is told where."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate import Dataset, Loader, PackOptions, Resize, index, pack
from feedrate.cli import main
from feedrate.errors import AlreadyExists, NotFound, UsageError
from feedrate.source.options import SourceOptions
from support.images import read_tree, save_image
from support.sources import jpeg, write_tar


@pytest.fixture
def beside(jpeg_folder: Path) -> Path:
    """The index of `jpeg_folder`."""
    index(jpeg_folder, workers=1)
    return jpeg_folder.with_name("photos.index")


def test_indexing_writes_nothing_into_a_folder_of_images(jpeg_folder: Path) -> None:
    before = read_tree(jpeg_folder)
    assert main(["index", str(jpeg_folder), "--workers", "1"]) == 0
    assert read_tree(jpeg_folder) == before
    assert sorted(path.name for path in jpeg_folder.parent.iterdir()) == ["photos", "photos.index"]
    assert len(Dataset(jpeg_folder.with_name("photos.index"))) == 16


def test_a_folder_with_a_table_of_labels_is_indexed_beside_it(jpeg_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\ncat/0.jpg,7\ndog/1.JPEG,9\n")
    before = read_tree(jpeg_folder)
    index(jpeg_folder, options=SourceOptions(tmp_path / "labels.csv"), workers=1)
    assert read_tree(jpeg_folder) == before
    assert len(Dataset(tmp_path / "photos.index")) == 2


@pytest.mark.parametrize("name", [".", "../photos/", "./cat/.."])
def test_a_folder_by_whatever_name_has_its_index_beside_it(
    jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(jpeg_folder)
    before = read_tree(jpeg_folder)
    index(name, workers=1)
    assert read_tree(jpeg_folder) == before
    assert len(Dataset(jpeg_folder.with_name("photos.index"))) == 16


def test_archives_have_their_index_beside_the_shards(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        write_tar(tmp_path / "shards" / f"{shard}.tar", {"0.jpg": jpeg(shard), "0.cls": b"1"})
    index(tmp_path / "shards", workers=1)
    assert (tmp_path / "shards" / "pack.json").is_file()
    assert len(Dataset(tmp_path / "shards")) == 2


@pytest.mark.parametrize("target", ["photos", "photos/index"])
def test_a_target_inside_of_the_images_is_refused(jpeg_folder: Path, target: str) -> None:
    before = read_tree(jpeg_folder)
    with pytest.raises(UsageError, match=r"is the source itself|lies inside the source"):
        index(jpeg_folder, jpeg_folder.parent / target)
    assert read_tree(jpeg_folder) == before


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A dataset on a file system that cannot be written to."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    save_image(disk / "photos" / "cat" / "0.jpg", 0)
    (disk / "shards").mkdir()
    write_tar(disk / "shards" / "0.tar", {"0.jpg": jpeg(0), "0.cls": b"1"})
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", ["photos", "shards", "shards/0.tar"])
def test_where_the_index_cannot_be_written_the_line_with_a_target_is_the_hint(
    read_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["index", str(read_only / name), "--workers", "1"]) == 1
    error, hint = [line for line in capsys.readouterr().err.splitlines() if line][-2:]
    where = read_only if name == "photos" else read_only / "shards"
    assert error == f"error: cannot write the index of {read_only / name} to {where}"
    assert hint == f"hint: name a folder for it: feedrate index {read_only / name} TARGET"
    words = shlex.split(hint.partition("feedrate ")[2].replace("TARGET", str(tmp_path / "elsewhere")))
    assert main([*words, "--workers", "1"]) == 0


def test_an_index_inside_of_a_folder_is_still_read(beside: Path, jpeg_folder: Path) -> None:
    shutil.copytree(beside, jpeg_folder, dirs_exist_ok=True)  # as earlier versions wrote it
    shutil.rmtree(beside)
    with Loader(jpeg_folder, batch_size=16, image=Resize(8)) as loader:
        assert len(list(loader)) == 1
    with pytest.raises(AlreadyExists, match="is a pack or an index already"):
        index(jpeg_folder, workers=1)


def test_the_hint_about_an_index_that_is_there_leads_to_a_new_one(beside: Path, jpeg_folder: Path) -> None:
    with pytest.raises(AlreadyExists, match=r"photos.index is a pack or an index already") as caught:
        index(jpeg_folder, workers=1)
    assert caught.value.hint == f"use it; or to index anew, delete it first: rm -r {beside}"
    subprocess.run(shlex.split(caught.value.hint.partition("first: ")[2]), check=True)
    assert index(jpeg_folder, workers=1).samples == 16


@pytest.mark.parametrize("options", [{}, {"scratch": "here"}])
def test_a_loader_of_the_folder_names_the_index(
    beside: Path, jpeg_folder: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    (tmp_path / "here").mkdir()
    options = {name: str(tmp_path / value) for name, value in options.items()}
    with pytest.raises(NotFound, match=r"photos is not a pack: its index is .*photos\.index") as caught:
        Loader(jpeg_folder, batch_size=4, image=Resize(8), **options)  # type: ignore[arg-type]
    assert caught.value.hint == f"name that: {beside}"
    assert list((tmp_path / "here").iterdir()) == []


def test_a_file_that_has_an_index_names_it(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"0.jpg": jpeg(0), "0.cls": b"1"})
    index(tmp_path / "x.tar", workers=1)
    with pytest.raises(NotFound, match=r"x\.tar is not a pack: its index is .*x\.tar\.index"):
        Dataset(tmp_path / "x.tar")


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_commands_on_packs_name_the_index_of_a_folder(
    beside: Path, jpeg_folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(jpeg_folder)]) == 1
    assert f"hint: name that: {beside}" in capsys.readouterr().err
    assert main([command, str(beside)]) == 0


def test_staging_the_folder_names_the_index(
    beside: Path, jpeg_folder: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage", str(jpeg_folder), "--scratch", str(scratch)]) == 0
    assert f"not copied: its index, {beside}" in capsys.readouterr().err.splitlines()


def test_entry_points_of_the_folder_are_those_of_the_index_beside_it(
    beside: Path, jpeg_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_tree(jpeg_folder)
    assert main(["index", str(jpeg_folder), "--entries", "gpu", "--workers", "1"]) == 0
    assert f"{beside} has entry points about every 150 bytes now" in capsys.readouterr().out
    assert read_tree(jpeg_folder) == before


def test_an_index_beside_a_part_is_no_part_of_the_dataset(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            save_image(tmp_path / "root" / part / name / "0.jpg", 0)
    index(tmp_path / "root" / "train", workers=1)
    assert (tmp_path / "root" / "train.index" / "pack.json").is_file()
    assert pack(tmp_path / "root", tmp_path / "p", PackOptions(workers=1)).samples == 4
    assert Dataset(tmp_path / "p", split="train").classes == ["cat", "dog"]


def test_an_index_takes_the_answers_that_it_asks_for_about_labels(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n0.jpg,ill|old\n" + "".join(f"{n}.jpg,\n" for n in range(1, 6)))
    for number in range(6):
        save_image(tmp_path / "photos" / f"{number}.jpg", number)
    line = ["index", str(tmp_path / "photos"), "--labels", str(table), "--label-separator", "none"]
    assert main(line) == 1
    assert main([*line, "--empty-label", "well"]) == 0
    assert Dataset(tmp_path / "photos.index").classes == ["ill|old", "well"]
