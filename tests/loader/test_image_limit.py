# SPDX-License-Identifier: Apache-2.0
"""How large a whole image may be: twice PIL.Image.MAX_IMAGE_PIXELS, as for Pillow; crops need no limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feedrate
from feedrate import CenterCrop, Dataset, Loader, PackOptions, RandomResizedCrop, Recode, Resize, kernel, pack
from feedrate.errors import FeedrateError, UsageError
from support.images import save_image
from support.packs import encode_image, make_image, write_images
from support.paths import TESTS

# Of images of 16 x 16, 256 pixels: one that is refused, and the largest limit that refuses none.
TOO_LOW, ENOUGH = 127, 128
SENTENCE = r"the whole image has 16 x 16 pixels, the limit is 254 \(twice .*MAX_IMAGE_PIXELS = None"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", side=16)


def load(images: Path, **options: Any) -> int:
    with Loader(images, 5, output="numpy", **options) as loader:
        return sum(len(batch[0]) for batch in loader)


WHOLE: dict[str, Callable[[Path], object]] = {
    "Dataset": lambda images: Dataset(images)[0],
    "Loader": load,
    "Loader with Resize": lambda images: load(images, image=Resize(4)),
    "decode": lambda _: feedrate.decode(encode_image(make_image(0, 16, 16))),
    "decode to a size": lambda _: feedrate.decode(encode_image(make_image(0, 16, 16)), size=4),
}
CROPS: dict[str, Callable[[Path], object]] = {
    "Dataset": lambda images: Dataset(images, image=CenterCrop(8))[0],
    "Loader": lambda images: load(images, image=RandomResizedCrop(4, scale=(1.0, 1.0))),
    "Loader without images": lambda images: load(images, fields=("label",)),
    "decode": lambda _: feedrate.decode(encode_image(make_image(0, 16, 16)), crop=(0, 0, 9, 9)),
}


@pytest.mark.parametrize("way", WHOLE)
def test_a_larger_image_is_refused_with_size_limit_and_switch(
    way: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", TOO_LOW)
    with pytest.raises(FeedrateError, match=SENTENCE):
        WHOLE[way](images)


@pytest.mark.parametrize("limit", [ENOUGH, None])
@pytest.mark.parametrize("way", WHOLE)
def test_whole_images_up_to_the_limit_are_taken(
    way: str, limit: int | None, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    WHOLE[way](images)


@pytest.mark.parametrize("way", CROPS)
def test_crops_of_larger_images_are_taken(way: str, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    CROPS[way](images)


def test_a_larger_image_that_pillow_decodes_is_told_with_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", TOO_LOW)
    with pytest.raises(UsageError, match=r"exceeds limit of 254 pixels.*MAX_IMAGE_PIXELS = None"):
        feedrate.decode(encode_image(make_image(0, 16, 16), "PNG"))


def test_a_larger_image_is_a_bad_sample_that_can_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_images(tmp_path / "pack", count=12, side=None)
    sizes = sorted(width * height for width, height in (Dataset(images)[i][0].size for i in range(12)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", sizes[-1] // 2 - 1)
    assert load(images, image=Resize(4), on_bad_sample="skip") == 11


@pytest.mark.parametrize("recode", [Recode(raw=True), Recode(normalise=True)])
def test_packing_rejects_a_larger_image_that_it_would_have_to_decode_as_a_whole(
    recode: Recode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image(tmp_path / "source" / "a" / "0.jpg", 0, width=8, height=8)
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    Image.fromarray(make_image(1, 16, 16)).save(tmp_path / "source" / "a" / "1.jpg", exif=exif)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", TOO_LOW)
    pack(tmp_path / "source", tmp_path / "pack", PackOptions(workers=1, recode=recode))
    (rejected,) = (tmp_path / "pack" / "rejected.jsonl").read_text().splitlines()
    assert "the limit is 254" in json.loads(rejected)["reason"]


def test_the_limit_holds_in_processes_that_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(tmp_path / "source" / "a" / "0.jpg", 0, width=8, height=8)
    save_image(tmp_path / "source" / "a" / "1.jpg", 1, width=16, height=16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", TOO_LOW)
    options = PackOptions(workers=2, shard_bytes=1000, recode=Recode(raw=True))
    (rejected,) = pack(tmp_path / "source", tmp_path / "pack", options).rejected
    assert rejected.path == "a/1.jpg"


def test_packing_makes_larger_images_smaller_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image(tmp_path / "source" / "a" / "0.jpg", 0, width=16, height=16)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", TOO_LOW)
    pack(tmp_path / "source", tmp_path / "pack", PackOptions(workers=1, recode=Recode(max_side=8)))
    assert Dataset(tmp_path / "pack")[0][0].size == (8, 8)


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's RLIMIT_DATA")
def test_normalising_takes_no_memory_for_what_a_small_file_only_claims(tmp_path: Path) -> None:
    data = bytearray(encode_image(np.zeros((16, 16, 3), np.uint8), progressive=True))
    frame = data.index(b"\xff\xc2") + 5
    data[frame : frame + 4] = (11_000).to_bytes(2, "big") * 2
    (tmp_path / "claims.jpg").write_bytes(data)
    program = (
        "import sys; from support.hostile_index import limit_memory; from feedrate import kernel\n"
        "data = open(sys.argv[1], 'rb').read(); import PIL.Image; limit_memory(64 << 20)\n"
        "assert kernel.to_baseline(data) is None"
    )
    command = [sys.executable, "-c", program, tmp_path / "claims.jpg"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS)
    assert ran.returncode == 0, ran.stderr


def test_a_damaged_jpeg_that_is_too_short_for_its_size_has_one_outcome_in_every_way(tmp_path: Path) -> None:
    """Pillow takes a file whose scan ends early; of a huge one nobody takes memory for what is not there."""
    data = bytearray(encode_image(make_image(0, 16, 16)))
    frame = data.index(b"\xff\xc0")
    for height, is_taken in ((2000, True), (65_000, False)):
        data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + (1000).to_bytes(2, "big")
        path = tmp_path / "short.jpg"
        path.write_bytes(data)
        part = (0, 0, 8, 8)
        if is_taken:
            assert feedrate.decode(bytes(data), crop=part).shape == (8, 8, 3)
        else:
            with pytest.raises(FeedrateError, match=r"short|early"):
                feedrate.decode(bytes(data), crop=part)
        files = kernel.Files([path])
        ranges = kernel.Ranges(*(np.array([value], kind) for value, kind in (
            (0, np.int32), (0, np.int64), (len(data), np.int64), (kernel.crc32c(bytes(data)), np.uint32)
        )))  # fmt: skip
        report = kernel.decode_batch(
            files, ranges, np.zeros((1, 8, 8, 3), np.uint8),
            boxes=np.array([part], np.int32), flips=np.zeros(1, np.bool_),
        )  # fmt: skip
        assert (report.statuses[0] == kernel.Status.OK) == is_taken
        files.close()
