# SPDX-License-Identifier: Apache-2.0
"""Hundreds of thousands of entry points in one image: they load as a few do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import Loader, PackOptions, RandomResizedCrop, pack, set_entries, verify

pytestmark = pytest.mark.slow
WIDTH, HEIGHT = 8704, 5800  # 50 megapixels


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photo")
    tile = np.random.default_rng(0).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    image = Image.fromarray(tile).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    image.save(folder / "photo.jpg", quality=97)
    return folder


def crops_of(packed: Path) -> list[np.ndarray]:
    crop = RandomResizedCrop(224, scale=(0.001, 1.0))
    with Loader(packed, 1, fields=("image",), image=crop, output="numpy", threads=1) as loader:
        return [images.copy() for _ in range(6) for (images,) in loader]


def test_an_image_of_50_megapixels_may_have_an_entry_point_every_few_bytes(
    photo: Path, tmp_path: Path
) -> None:
    usual, dense = tmp_path / "usual", tmp_path / "dense"
    pack(photo, usual, PackOptions(workers=1))
    result = pack(photo, dense, PackOptions(workers=1, entries=60))
    assert result.size_bytes > 10_000_000
    expected = crops_of(usual)
    assert len(expected) == 6
    for distance in (60, 16):
        set_entries(dense, distance, workers=1)
        assert verify(dense, workers=1).problems == ()
        for mine, theirs in zip(crops_of(dense), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
