# SPDX-License-Identifier: Apache-2.0
"""Images of files and of packs, decoded as the loader decodes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedrate
from feedrate import PackOptions, pack
from feedrate.draws import pick
from feedrate.errors import NotFound, PackError, SourceError
from feedrate.format.pack import Pack
from feedrate.lab.decode import open_files, open_pack
from feedrate.lab.loader import list_images
from support.packs import write_numbers


def test_a_pack_s_samples_are_the_loader_s_first_epoch(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "pack", PackOptions(workers=1))
    loader = feedrate.Loader(
        tmp_path / "pack", batch_size=16, shuffle=False, seed=5, fields=("image", "number"),
        image=feedrate.RandomResizedCrop(32), flip=0.5, output="numpy",
    )  # fmt: skip
    ((fed, numbers),) = list(loader)
    opened = Pack(tmp_path / "pack")
    with open_pack(opened, np.arange(len(opened))) as samples:
        out = np.zeros((len(samples), 32, 32, 3), np.uint8)
        samples.decode(samples.draw(32, 5), out)
    opened.close()
    assert samples.rows["number"].tolist() == np.asarray(numbers).tolist()
    assert np.array_equal(out, np.asarray(fed).reshape(out.shape))


def test_files_and_their_pack_give_the_same_pixels(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "pack", PackOptions(workers=1))
    opened = Pack(tmp_path / "pack")
    paths = [str(jpeg_folder / p.decode()) for p in opened.texts("image.path", np.arange(len(opened)))]
    everything = np.arange(len(opened))
    with open_pack(opened, everything) as packed, open_files(paths, packed.rows["number"]) as files:
        for number in range(len(packed)):
            ours, _ = packed.decode_one(number, packed.draw(24, 1), (24, 24))
            again, report = files.decode_one(number, files.draw(24, 1), (24, 24))
            assert np.array_equal(ours, again)
            assert files.read(number) == packed.read(number) == Path(paths[number]).read_bytes()
            assert not report.statuses.any()
    opened.close()


def test_files_that_cannot_be_decoded_are_named_and_left_out(jpeg_folder: Path) -> None:
    (jpeg_folder / "broken.jpg").write_bytes(b"no image at all")
    paths = [str(jpeg_folder / name) for name in ("broken.jpg", "gone.jpg", "cat/0.jpg")]
    with open_files(paths) as samples:
        assert [Path(name).name for name in samples.names] == ["0.jpg"]
        assert [Path(one.path).name for one in samples.rejected] == ["broken.jpg", "gone.jpg"]
        assert samples.rejected[1].reason == "cannot be read: No such file or directory"
        # Its number in the dataset, not its place among those that are good, decides the crop.
        assert samples.rows["number"].tolist() == [2]


def test_nothing_is_left_on_disk(jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with open_files([str(jpeg_folder / "cat" / "0.jpg")]):
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_pack_without_images_is_named(tmp_path: Path) -> None:
    opened = Pack(write_numbers(tmp_path / "pack", 4))
    with (
        pytest.raises(PackError, match="has no field 'image' to decode; it has: label"),
        open_pack(opened, np.arange(4)),
    ):
        pass


def test_a_sample_is_drawn_without_repeats_and_the_same_for_equal_seeds() -> None:
    drawn = pick(1000, 50, 3)
    assert drawn.tolist() == pick(1000, 50, 3).tolist() == sorted(set(drawn.tolist()))
    assert drawn.tolist() != pick(1000, 50, 4).tolist()
    assert pick(5, 50, 3).tolist() == [0, 1, 2, 3, 4]


def test_images_are_found_in_folders_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "a/1.png", ".cache/x.jpg", "a/.hidden.jpg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert list_images(tmp_path) == [(str(tmp_path / "a/1.png"), 0), (str(tmp_path / "b/2.JPG"), 1)]
    assert list_images(tmp_path / "b") == [(str(tmp_path / "b/2.JPG"), 0)]
    with pytest.raises(NotFound, match=r"no dataset at .*gone"):
        list_images(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no images in .*empty"):
        list_images(tmp_path / "empty")
