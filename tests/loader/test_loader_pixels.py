# SPDX-License-Identifier: Apache-2.0
"""Images with one channel, and crops that begin outside of the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feedrate
from feedrate import Cache, Dataset, Loader, RandomCrop, Resize, View
from feedrate.errors import BadSample, UsageError
from feedrate.format.fields import Field, Kind
from support.packs import (
    LABEL,
    encode_array,
    encode_image,
    make_image,
    write_everything,
    write_numbers,
    write_pack,
)


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


def noise(seed: int, width: int, height: int) -> np.ndarray:
    """Return an image of which no two parts are alike."""
    return np.random.default_rng(seed).integers(1, 256, (height, width, 3), dtype=np.uint8)


def write_noise(
    folder: Path, sizes: list[tuple[int, int]], kind: str = "PNG"
) -> tuple[Path, list[np.ndarray]]:
    """Write images of (width, height); returns them as they are decoded, too."""
    files = [encode_image(noise(i, *size), kind) for i, size in enumerate(sizes)]
    samples = [{"image": file, "label": i % 3} for i, file in enumerate(files)]
    pack = write_pack(folder, (Field("image", Kind.IMAGE), LABEL), samples)
    return pack, [feedrate.decode(file) for file in files]


def find_offsets(crop: np.ndarray, padded: np.ndarray) -> list[tuple[int, int]]:
    """Return where in the padded image a crop may have been cut."""
    height, width = crop.shape[:2]
    rows, columns = padded.shape[0] - height + 1, padded.shape[1] - width + 1
    return [
        (top, left)
        for top in range(rows)
        for left in range(columns)
        if (padded[top : top + height, left : left + width] == crop).all()
    ]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize(
    ("operation", "edges"),
    [
        (RandomCrop(32, padding=4), (4, 4, 4, 4)),
        (RandomCrop((24, 20), padding=(3, 6)), (3, 6, 3, 6)),
        (RandomCrop(30, padding=(1, 2, 5, 0)), (1, 2, 5, 0)),
        (RandomCrop(38, padding=4), (4, 4, 4, 4)),  # larger than the images
        (RandomCrop(6, padding=8), (8, 8, 8, 8)),  # crops that show nothing of the image
        (RandomCrop(32, padding=4, fill=200), (4, 4, 4, 4)),
        (RandomCrop(32, padding=4, padding_mode="edge"), (4, 4, 4, 4)),
        (RandomCrop(38, padding=5, padding_mode="reflect"), (5, 5, 5, 5)),
        (RandomCrop((8, 9), padding=7, padding_mode="symmetric"), (7, 7, 7, 7)),
        (RandomCrop(28), (0, 0, 0, 0)),
    ],
    ids=str,
)
def test_a_crop_with_padding_is_a_crop_of_the_padded_image(tmp_path: Path, kind: str, operation, edges):
    # torchvision pads by left, top, right, bottom, then cuts anywhere.
    sizes = [(32 + i % 3, 32 - i % 2) for i in range(12)]
    pack, images = write_noise(tmp_path / "pack", sizes, kind)
    left, top, right, bottom = edges
    padding = ((top, bottom), (left, right), (0, 0))
    options = {"constant_values": operation.fill} if operation.padding_mode == "constant" else {}
    padded = [np.pad(image, padding, operation.padding_mode, **options) for image in images]
    found = set()
    with Loader(pack, 5, shuffle=False, image=operation, output="numpy", flip=True) as loader:
        for _ in range(3):
            crops = np.concatenate([part for part, _ in loader])
            for crop, image in zip(crops, padded, strict=True):
                straight, mirrored = find_offsets(crop, image), find_offsets(crop[:, ::-1], image)
                assert straight or mirrored
                found.update(straight or mirrored)
    assert len(found) > 12


def test_crops_with_padding_are_the_same_ones_every_time_and_everywhere(tmp_path: Path):
    pack, _ = write_noise(tmp_path / "pack", [(32, 32)] * 9 + [(40, 31)], "JPEG")
    options = {"image": RandomCrop(32, padding=4), "flip": True, "output": "numpy", "seed": 3}
    with Loader(pack, 10, shuffle=False, **options) as loader:
        once = next(iter(loader))[0].copy()
    with Loader(pack, 3, shuffle=False, threads=2, **options) as loader:
        np.testing.assert_array_equal(np.concatenate([images for images, _ in loader]), once)
    with Cache(ram="1MB") as cache, Loader(pack, 10, shuffle=False, cache=cache, **options) as loader:
        np.testing.assert_array_equal(next(iter(loader))[0], once)
        loader.set_epoch(0)
        np.testing.assert_array_equal(next(iter(loader))[0], once)
    dataset = Dataset(pack, **options)
    np.testing.assert_array_equal(np.stack([image for image, _ in dataset]), once)


def test_offsets_of_a_crop_with_padding_are_all_used_alike(tmp_path: Path):
    pack, (image, *_) = write_noise(tmp_path / "pack", [(8, 8)])
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    counts = np.zeros((3, 3), int)
    order = np.zeros(900, np.int64)
    with Loader(pack, 900, order=order, image=RandomCrop(8, padding=1), output="numpy") as loader:
        for crop in next(iter(loader))[0]:
            ((top, left),) = find_offsets(crop, padded)
            counts[top, left] += 1
    assert counts.min() > 60
    assert counts.max() < 140


def test_masks_boxes_and_views_follow_a_crop_with_padding(tmp_path: Path):
    pixels = noise(0, 20, 20)
    mask = pixels[..., 0]
    boxes = np.array([[0, 0, 20, 20], [5, 5, 6, 6]], np.float32)
    fields = (
        Field("image", Kind.IMAGE), Field("half", Kind.IMAGE), Field("mask", Kind.MASK),
        Field("boxes", Kind.BOXES),
    )  # fmt: skip
    sample = {
        "image": encode_image(pixels, "PNG"), "half": encode_image(np.full((10, 10, 3), 255, "u1"), "PNG"),
        "mask": encode_image(mask, "PNG"), "boxes": encode_array(boxes),
    }  # fmt: skip
    pack = write_pack(tmp_path / "pack", fields, [sample], shards=1)
    wanted = ("image", "mask", "boxes", "half", View("image", size=10))
    options = {
        "fields": wanted,
        "order": np.zeros(40, np.int64),
        "image": RandomCrop(20, padding=8, fill=255),
    }
    with Loader(pack, 40, output="numpy", **options) as loader:
        for image, shown, moved, half, view in zip(*next(iter(loader)), strict=True):
            (top, left) = find_offsets(image, np.pad(pixels, ((8, 8), (8, 8), (0, 0)), constant_values=255))[
                0
            ]
            np.testing.assert_array_equal(shown, np.pad(mask, 8)[top : top + 20, left : left + 20])
            x, y = 8 - left, 8 - top
            assert moved[0].tolist() == [max(0, x), max(0, y), min(20, 20 + x), min(20, 20 + y)]
            assert (half == 255).all()
            np.testing.assert_allclose(view.mean(), image.mean(), atol=12)


def test_an_image_too_small_for_its_padding_is_a_bad_sample_unless_padded_further(tmp_path: Path):
    pack, (image, *_) = write_noise(tmp_path / "pack", [(20, 30)])
    with (
        Loader(pack, 1, image=RandomCrop(32, padding=4)) as loader,
        pytest.raises(BadSample, match="20x30 pixels, smaller than"),
    ):
        next(iter(loader))
    operation = RandomCrop(32, padding=4, pad_if_needed=True)
    with Loader(pack, 1, image=operation, output="numpy") as loader:
        crop = next(iter(loader))[0][0]
    # 4 on every side, then the 4 that the width lacks, on either side.
    assert find_offsets(crop, np.pad(image, ((4, 4), (8, 8), (0, 0))))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"padding": -1}, "padding must be"),
        ({"padding": [1, 2, 3]}, "padding must be"),
        ({"padding": "4"}, "padding must be"),
        ({"fill": 256}, "fill must be"),
        ({"padding_mode": "mirror"}, "padding_mode must be"),
        ({"padding": 32, "padding_mode": "reflect"}, "below the crop's 32"),
    ],
)
def test_padding_that_makes_no_sense_is_refused(arguments: dict, words: str):
    with pytest.raises(UsageError, match=words):
        RandomCrop(32, **arguments)
