# SPDX-License-Identifier: Apache-2.0
"""What every way of loading must do. Subclass, give the fixture `load`, and get the whole set of tests."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedrate.errors import BadSample
from feedrate.format.pack import Pack
from support.packs import IMAGE, LABEL, encode_image, make_image, write_images, write_pack

# (images as N,H,W,C; labels; keys) per batch
Batches = Iterable[tuple[np.ndarray, np.ndarray, list[str]]]
Load = Callable[..., Batches]


def resized(data: bytes, side: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))


class LoaderContract:
    """Fixture `load(pack, **options)`: batches with fields image, label, key; option `image` as in Loader."""

    @pytest.fixture
    def load(self) -> Load:
        pytest.fail("a contract needs its fixture: load")

    @pytest.mark.parametrize("batch_size", [1, 7, 20, 50])
    def test_every_sample_comes_exactly_once(self, load: Load, tmp_path: Path, batch_size: int):
        batches = list(load(write_images(tmp_path / "pack"), batch_size=batch_size))
        keys = [key for _, _, keys in batches for key in keys]
        assert sorted(keys) == [f"sample-{i:05d}" for i in range(20)]
        assert all(len(images) == len(labels) == len(keys) for images, labels, keys in batches)

    def test_labels_belong_to_their_keys(self, load: Load, tmp_path: Path):
        for _, labels, keys in load(write_images(tmp_path / "pack"), batch_size=6):
            assert labels.dtype == np.int64
            assert labels.tolist() == [int(key[-5:]) % 3 for key in keys]

    def test_pixels_are_those_of_pillow(self, load: Load, tmp_path: Path):
        from feedrate import Resize

        files = [encode_image(make_image(i, 40 + i, 60 - i), quality=92) for i in range(9)]
        samples = [{"image": file, "label": 0} for file in files]
        pack = write_pack(tmp_path / "pack", (IMAGE, LABEL), samples)
        for images, _, keys in load(pack, batch_size=4, image=Resize(24)):
            assert images.dtype == np.uint8
            assert images.shape[1:] == (24, 24, 3)
            for pixels, key in zip(images, keys, strict=True):
                difference = np.abs(pixels.astype(int) - resized(files[int(key[-5:])], 24))
                assert difference.mean() < 1
                assert difference.max() <= 4

    def test_one_seed_gives_one_result(self, load: Load, tmp_path: Path):
        from feedrate import RandomResizedCrop

        pack = write_images(tmp_path / "pack", side=None)
        options = {"batch_size": 8, "image": RandomResizedCrop(10), "flip": True, "seed": 5}
        first, second = (
            {k: p for images, _, keys in load(pack, **options) for k, p in zip(keys, images, strict=True)}
            for _ in range(2)
        )
        assert first.keys() == second.keys()
        assert all((first[key] == second[key]).all() for key in first)

    def test_a_bad_sample_is_named(self, load: Load, tmp_path: Path):
        pack = write_images(tmp_path / "pack", count=6, shards=1)
        spoil(pack, "shard-00000.tar", -3)
        with pytest.raises(BadSample, match=r"sample-00005.*shard-00000.tar at byte \d+.*") as caught:
            list(load(pack, batch_size=6))
        assert caught.value.key == "sample-00005"

    def test_an_empty_pack_gives_nothing(self, load: Load, tmp_path: Path):
        assert list(load(write_images(tmp_path / "pack", count=0, shards=1), batch_size=4)) == []


def spoil(pack: Path, name: str, at: int, value: int | None = None) -> None:
    """Change one byte of a file of a pack."""
    data = bytearray((pack / name).read_bytes())
    data[at] = (data[at] ^ 0xFF) if value is None else value
    (pack / name).write_bytes(data)


def spoil_sample(pack: Path, position: int) -> None:
    """Change a byte in the middle of one sample's image."""
    opened = Pack(pack)
    at = np.array([position])
    row = opened.rows(at)[0][0]
    shard = opened.manifest.shards[int(opened.locate(at)[0][0])].name
    opened.close()
    spoil(pack, shard, int(row["image.offset"] + row["image.length"] // 2))


def plain(images: Any) -> np.ndarray:
    """Return images of any output as N,H,W,C numpy."""
    return images if isinstance(images, np.ndarray) else images.permute(0, 2, 3, 1).numpy()
