# SPDX-License-Identifier: Apache-2.0
"""Bad samples: named, counted, handled as asked; never noise, never a crash."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from contracts import spoil
from feedrate import Loader, RandomCrop, Resize
from feedrate.errors import BadSample
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from packs import IMAGE, LABEL, encode_image, make_image, write_everything, write_images, write_pack


def load(pack: Path, **options) -> tuple[list[str], int, Loader]:
    """Return the keys that came, and how many bad samples were counted."""
    fields = ("image", "label", "key")
    with Loader(pack, 4, shuffle=False, fields=fields, output="numpy", **options) as loader:
        keys = []
        for images, labels, batch_keys in loader:
            assert len(images) == len(labels) == len(batch_keys)
            assert labels.tolist() == [int(key[-5:]) % 3 for key in batch_keys]
            keys += batch_keys
    return keys, loader.stats().bad_samples, loader


def spoil_sample(pack: Path, position: int) -> None:
    """Change a byte in the middle of one sample's image."""
    opened = Pack(pack)
    at = np.array([position])
    row = opened.rows(at)[0][0]
    shard = opened.manifest.shards[int(opened.locate(at)[0][0])].name
    opened.close()
    spoil(pack, shard, int(row["image.offset"] + row["image.length"] // 2))


def test_a_bad_sample_is_left_out_on_request(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    for position in (2, 7, 9):
        spoil_sample(pack, position)
    keys, bad, _ = load(pack, on_bad_sample="skip")
    assert keys == [f"sample-{i:05d}" for i in (0, 1, 3, 4, 5, 6, 8)]
    assert bad == 3


def test_a_function_is_told_of_bad_samples_in_order(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    for position in (8, 1):
        spoil_sample(pack, position)
    told: list[BadSample] = []
    keys, _, _ = load(pack, on_bad_sample=told.append)
    assert len(keys) == 8
    assert [(b.key, b.field, b.shard) for b in told] == [
        ("sample-00001", "image", "shard-00000.tar"),
        ("sample-00008", "image", "shard-00001.tar"),
    ]
    assert "crc32c is" in told[0].reason


def test_an_error_in_that_function_reaches_the_loop(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    spoil_sample(pack, 0)

    def refuse(bad: BadSample) -> None:
        raise KeyError(bad.key)

    with Loader(pack, 4, shuffle=False, on_bad_sample=refuse) as loader:
        with pytest.raises(KeyError, match="sample-00000"):
            list(loader)
        assert loader.state_dict()["samples"] == 0  # the batch was not given


def test_a_batch_with_no_good_sample_does_not_come(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    for position in range(4, 8):
        spoil_sample(pack, position)
    with Loader(pack, 4, shuffle=False, on_bad_sample="skip", output="numpy") as loader:
        sizes = [len(labels) for _, labels in loader]
        assert sizes == [4, 2]
        assert loader.epoch == 1


def test_state_counts_skipped_samples_too(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10)
    spoil_sample(pack, 1)
    with Loader(pack, 4, shuffle=False, on_bad_sample="skip", output="numpy") as loader:
        next(iter(loader))
        assert loader.state_dict()["samples"] == 4


def test_a_damaged_row_of_the_index_is_a_bad_sample(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=10, shards=1)
    column = Pack(pack).manifest.shards[0].index.columns["label"][0]
    spoil(pack, "shard-00000.arrow", column + 3 * 8)
    with pytest.raises(BadSample, match=r"sample-00003.*its row of the index cannot be used"):
        load(pack)
    keys, bad, _ = load(pack, on_bad_sample="skip")
    assert len(keys) == 9
    assert bad == 1


@pytest.mark.parametrize("index", [False, True])
def test_a_deleted_shard_is_told_in_words(tmp_path: Path, index: bool):
    pack = write_images(tmp_path / "pack", count=10)
    os.unlink(pack / ("shard-00001.arrow" if index else "shard-00001.tar"))
    with pytest.raises(BadSample, match=r"shard-00001.tar at byte \d+\): .*(No such file|cannot be opened)"):
        load(pack)
    assert len(load(pack, on_bad_sample="skip")[0]) == 5


@pytest.mark.parametrize("name", ["shard-00001.tar", "shard-00001.arrow"])
def test_a_file_cut_short_under_a_running_loader_is_told_in_words(tmp_path: Path, name: str):
    pack = write_images(tmp_path / "pack", count=40)
    with Loader(pack, 1, shuffle=False, prefetch=1, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        os.truncate(pack / name, 200)
        with pytest.raises(BadSample, match=r"shard-00001.tar at byte \d+\): .*ends"):
            list(iterator)


def test_a_damaged_jpeg_with_a_right_checksum_is_named(tmp_path: Path):
    file = encode_image(make_image(1, 64, 64), quality=90)
    samples = [{"image": file, "label": 0} for _ in range(4)]
    samples[2] = {"image": file[: len(file) // 2], "label": 2}  # it was packed in this state
    pack = write_pack(tmp_path / "pack", (IMAGE, LABEL), samples, shards=1)
    with pytest.raises(BadSample, match="sample-00002"), Loader(pack, image=Resize(64)) as loader:
        list(loader)


def test_values_that_do_not_parse_are_bad_samples(tmp_path: Path):
    fields = (Field("meta", Kind.JSON), Field("points", Kind.ARRAY), Field("caption", Kind.TEXT))
    from packs import encode_array

    good = {"meta": b"{}", "points": encode_array(np.zeros(2)), "caption": b"x"}
    spoiled = [{**good, "meta": b"{"}, good, {**good, "points": b"no"}, {**good, "caption": b"\xff"}]
    pack = write_pack(tmp_path / "pack", fields, spoiled, shards=1)
    told: list[BadSample] = []
    with Loader(
        pack, fields=("meta", "points", "caption"), shuffle=False, on_bad_sample=told.append
    ) as loader:
        ((meta, points, caption),) = list(loader)
    assert (meta, len(points), caption) == ([{}], 1, ["x"])
    assert [b.field for b in told] == ["meta", "points", "caption"]


def test_samples_too_small_for_the_crop_can_be_skipped(tmp_path: Path):
    sizes = [(20, 20), (10, 30), (30, 10), (16, 16)]
    samples = [{"image": encode_image(make_image(i, *size)), "label": i % 3} for i, size in enumerate(sizes)]
    pack = write_pack(tmp_path / "pack", (IMAGE, LABEL), samples)
    keys, bad, _ = load(pack, image=RandomCrop(16), on_bad_sample="skip")
    assert keys == ["sample-00000", "sample-00003"]
    assert bad == 2


def test_skipping_keeps_all_fields_together(tmp_path: Path):
    pack = write_everything(tmp_path / "pack")
    spoil_sample(pack, 5)
    fields = ("number", "image", "mask", "caption", "boxes", "points")
    with Loader(pack, fields=fields, image=Resize(8), on_bad_sample="skip", output="numpy") as loader:
        ((number, image, mask, caption, boxes, points),) = list(loader)
    assert 5 not in number
    assert len(number) == len(image) == len(mask) == len(caption) == len(boxes) == len(points) == 11
    assert caption == [f"image číslo {n}" for n in number]
    assert (points[:, 0, 0] == number).all()


def test_with_a_transform_a_bad_sample_is_left_out_before_it(tmp_path: Path):
    pack = write_images(tmp_path / "pack", count=6)
    spoil_sample(pack, 0)
    fields = ("key", "image")
    with Loader(pack, fields=fields, transform=lambda s: s["key"], on_bad_sample="skip") as loader:
        (keys,) = list(loader)
    assert sorted(keys) == [f"sample-{i:05d}" for i in range(1, 6)]
