# SPDX-License-Identifier: Apache-2.0
"""Images with one channel, and crops that begin outside of the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feedrate
from feedrate import Cache, Loader, Resize, View
from feedrate.errors import UsageError
from feedrate.format.fields import Field, Kind
from packs import LABEL, encode_image, make_image, write_everything, write_numbers, write_pack


def convert_to_gray(pixels: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("cached", [False, True])
def test_mode_l_gives_one_channel_as_pillow_converts_it(tmp_path: Path, kind: str, cached: bool):
    files = [encode_image(make_image(i, 20, 16), kind) for i in range(6)]
    samples = [{"image": file, "label": i % 3} for i, file in enumerate(files)]
    pack = write_pack(tmp_path / "pack", (Field("image", Kind.IMAGE, shape=(16, 20)), LABEL), samples)
    expected = np.stack([convert_to_gray(feedrate.decode(file)) for file in files])
    with Cache(ram="1MB") as cache:
        options = {"shuffle": False, "output": "numpy", "cache": cache if cached else None}
        with Loader(pack, 6, mode="L", **options) as gray, Loader(pack, 6, **options) as colour:
            for _ in range(2):
                images = next(iter(gray))[0]
                np.testing.assert_array_equal(images, expected)
                assert next(iter(colour))[0].shape == (6, 16, 20, 3)
    np.testing.assert_array_equal(feedrate.decode(files[0], mode="L"), expected[0])


def test_mode_l_holds_for_every_image_and_leaves_masks(tmp_path: Path):
    fields = ("image", "small", View("image", size=4), "mask")
    with Loader(write_everything(tmp_path / "pack"), 6, image=Resize(8), fields=fields, mode="L") as loader:
        shapes = [tuple(part.shape) for part in next(iter(loader))]
    assert shapes == [(6, 1, 8, 8), (6, 1, 8, 8), (6, 1, 4, 4), (6, 8, 8)]


def test_a_mode_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"mode must be .*got 'RGBA'"):
        Loader(write_numbers(tmp_path / "pack", 3), mode="RGBA")
