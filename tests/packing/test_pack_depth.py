# SPDX-License-Identifier: Apache-2.0
"""Gray images of more than 8 bits in a source: counted, said with the remedy, never clipped on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import Dataset
from feedrate.cli import main
from feedrate.packing.build.pack import pack
from feedrate.packing.indexing.local import index
from feedrate.packing.options import PackOptions
from feedrate.packing.recode import Recode

REMEDY = 'loading them needs depth="uint16", (low, high) or "clip"'


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """Three gray images of 16 bits, and one of floats."""
    folder = tmp_path / "xrays"
    folder.mkdir()
    for n in range(3):
        make_xray(n).save(folder / f"{n}.png")
    Image.fromarray(np.linspace(0, 1, 1200, dtype=np.float32).reshape(30, 40)).save(folder / "map.tif")
    return folder


def make_xray(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 65536, (30, 40), dtype=np.uint16)
    return Image.fromarray(values)


def test_pack_counts_deep_images_and_warns_once_with_the_remedy(
    xrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (8, 8)).save(xrays / "colour.png")
    assert main(["pack", str(xrays), str(tmp_path / "p"), "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1
    assert " ".join(said.split()).startswith(f"WARNING: 4 of 5 images are gray of more than 8 bits: {REMEDY}")
    assert main(["pack", str(xrays), str(tmp_path / "q"), "--workers", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["deep_images"] == 4


def test_index_warns_of_deep_images_too(
    xrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(xrays), str(tmp_path / "i")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"WARNING: all 4 images are gray of more than 8 bits: {REMEDY}")
    assert index(str(xrays), tmp_path / "j").deep_images == 4


def test_a_pack_of_8_bits_warns_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "plain" / "0.png")
    assert main(["pack", str(tmp_path / "plain"), str(tmp_path / "p"), "--workers", "1"]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_quality_does_not_call_a_dataset_of_deep_images_good(
    xrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(xrays, tmp_path / "p", PackOptions(workers=1))
    assert main(["ls", str(tmp_path / "p"), "--quality"]) == 0
    said = capsys.readouterr().out
    assert "good" not in said
    assert "1 kind of oddities deserve a look" in said
    assert "gray of more than 8 bits: 4, all kept" in said
    assert REMEDY in said


@pytest.mark.parametrize("recode", [Recode(resize=15), Recode(max_side=20), Recode(max_side=20, quality=80)])
def test_deep_images_are_resized_in_their_own_values(xrays: Path, tmp_path: Path, recode: Recode) -> None:
    result = pack(xrays, tmp_path / "p", PackOptions(workers=1, recode=recode))
    assert (result.samples, result.deep_images) == (4, 4)
    dataset = Dataset(tmp_path / "p", fields=("image", "key"), output="numpy", mode="L", depth=(0, 65535))
    assert {image.shape for image, _ in dataset} == {(15, 20, 1)}
    pixels = {key: image for image, key in dataset}
    expected = np.asarray(make_xray(1).convert("F").resize((20, 15), Image.Resampling.BILINEAR)) / 257
    assert np.abs(pixels["1"][..., 0] - expected).max() <= 0.6


@pytest.mark.parametrize("recode", [Recode(quality=80), Recode(normalise=True), Recode(resize=64)])
def test_deep_images_that_need_no_resize_are_kept_as_they_are(
    xrays: Path, tmp_path: Path, recode: Recode
) -> None:
    pack(xrays, tmp_path / "p", PackOptions(workers=1, recode=recode))
    (xrays / "map.tif").unlink()
    dataset = Dataset(tmp_path / "p", fields=("image", "key"), output="numpy", mode="L", depth=(0, 65535))
    pixels = {key: image for image, key in dataset}
    assert np.abs(pixels["1"][..., 0] - np.asarray(make_xray(1)) / 257).max() <= 0.5


def test_raw_pixels_leave_deep_images_out_and_say_why(xrays: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(xrays / "plain.png")
    result = pack(xrays, tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=True)))
    assert (result.samples, result.deep_images) == (1, 0)
    assert {one.path for one in result.rejected} == {"0.png", "1.png", "2.png", "map.tif"}
    assert all("more than 8 bits" in one.reason and "--raw" in one.reason for one in result.rejected)
    assert result.quality is not None
    assert {one.code: dict(one.done) for one in result.quality.oddities}["deep"] == {"rejected": 4}
