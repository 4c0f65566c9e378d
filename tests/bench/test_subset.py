# SPDX-License-Identifier: Apache-2.0
"""Some images of any dataset become files in class folders, and reading them is timed."""

from __future__ import annotations

import itertools
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from feedrate import PackOptions, Recode, pack
from feedrate.bench.results import Subset
from feedrate.bench.subset import SubsetOptions, take_subset
from feedrate.errors import NotFound, PackError, SourceError, StorageError
from support.images import save_image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        save_image(tmp_path / "photos" / ("cat", "dog", "emu")[number % 3] / f"{number}.jpg", number)
    return tmp_path / "photos"


def take(source: Path, target: Path, **options: Any) -> Subset:
    settings = {"images": 100, "most_bytes": 10**9, "seconds": 60.0, "readers": 2}
    return take_subset(str(source), target / "files", SubsetOptions(**{**settings, **options}))


def read_files(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*.jpg")}


def test_a_small_folder_is_taken_whole_with_its_labels(photos: Path, tmp_path: Path) -> None:
    found = take(photos, tmp_path / "out")
    assert (found.images, found.labels, found.listed, found.is_whole_listing) == (12, 3, 12, True)
    assert found.size_bytes == sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert read_files(tmp_path / "out") == read_files(photos)
    assert sorted(len(list(f.iterdir())) for f in (tmp_path / "out" / "files").iterdir()) == [4, 4, 4]


def test_reading_is_timed(photos: Path, tmp_path: Path) -> None:
    clock = itertools.count().__next__  # one second between any two looks
    found = take_subset(
        str(photos), tmp_path / "out" / "files", SubsetOptions(100, 10**9, 1000.0, 1), clock=clock
    )
    assert found.read_images_per_s == 1.0


def test_a_pack_gives_the_files_that_it_holds_and_their_labels(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "pack", PackOptions())
    found = take(tmp_path / "pack", tmp_path / "out")
    assert (found.images, found.labels, found.listed) == (12, 3, 12)
    assert read_files(tmp_path / "out") == read_files(photos)


def test_archives_are_taken_too(photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.add(photos, ".")
    found = take(tmp_path / "train.tar", tmp_path / "out")
    assert (found.images, found.labels) == (12, 3)
    assert read_files(tmp_path / "out") == read_files(photos)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for number in range(3):
        save_image(tmp_path / "flat" / f"{number}.jpg", number)
    found = take(tmp_path / "flat", tmp_path / "out")
    assert (found.images, found.labels) == (3, 0)


def test_of_a_large_dataset_some_images_are_drawn_from_all_of_it(photos: Path, tmp_path: Path) -> None:
    found = take(photos, tmp_path / "out", images=5)
    assert (found.images, found.listed) == (5, 12)
    assert found.labels > 1
    assert read_files(tmp_path / "out") < read_files(photos)


def test_no_more_bytes_are_taken_than_asked_for_but_one_image(photos: Path, tmp_path: Path) -> None:
    assert take(photos, tmp_path / "out", most_bytes=1).images == 1


def test_listing_ends_when_its_time_is_over(tmp_path: Path) -> None:
    for number in range(70):
        save_image(tmp_path / "many" / f"{number:03d}.jpg", number, width=8, height=8)
    found = take(tmp_path / "many", tmp_path / "out", seconds=0.0)
    assert (found.listed, found.is_whole_listing) == (64, False)
    assert found.images >= 2  # each reader reads one in any case


def test_names_of_labels_do_not_become_names_of_folders(tmp_path: Path) -> None:
    save_image(tmp_path / "odd" / "a b; rm" / "1.jpg", 1)
    save_image(tmp_path / "odd" / ("x" * 200) / "2.JPG", 2)
    assert take(tmp_path / "odd", tmp_path / "out").labels == 2
    names = sorted(str(p.relative_to(tmp_path / "out" / "files")) for p in (tmp_path / "out").rglob("*.jpg"))
    assert [len(name) for name in names] == [17, 17]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_left_out(photos: Path, tmp_path: Path) -> None:
    next(photos.rglob("*.jpg")).chmod(0)
    assert take(photos, tmp_path / "out").images == 11


def test_a_file_that_changes_is_left_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedrate.source.bytes import Bytes
    from feedrate.source.values import UnusableValue

    def read(_: Bytes, value: Any) -> bytes:
        if value.path.startswith(b"cat"):
            raise UnusableValue("changed while it was packed")
        return b"a picture"

    monkeypatch.setattr(Bytes, "read", read)
    assert take(photos, tmp_path / "out").images == 8


def test_a_dataset_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no dataset at .*/nothing"):
        take(tmp_path / "nothing", tmp_path / "out")


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no images in"):
        take(tmp_path / "empty", tmp_path / "out")


def test_raw_pixels_are_no_files(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "raw", PackOptions(recode=Recode(raw=True, resize=32)))
    with pytest.raises(PackError, match="holds raw pixels"):
        take(tmp_path / "raw", tmp_path / "out")


def test_too_little_room_is_said_before_anything_is_copied(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.bench.subset.free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"has 1.00 KB free") as caught:
        take(photos, tmp_path / "out")
    assert caught.value.hint == "set TMPDIR to a folder with more room"
    assert read_files(tmp_path / "out") == set()


def test_a_disk_that_refuses_is_named(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        take(photos, tmp_path / "out")
