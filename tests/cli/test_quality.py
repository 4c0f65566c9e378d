# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import PackOptions, index, pack
from feedrate.cli import main
from feedrate.packing.check.look import LOOKS, look
from feedrate.packing.check.quality_report import read_quality
from support.damage import flip_byte
from support.images import save_image

EXPECTED = """\
4 kinds of oddities deserve a look; 1 input could not be packed

empty: 1, rejected
  (nothing can be learnt from them)
  cat/bad.jpg: the file is empty

copies of others: 1, kept
  (they weigh twice, and may leak from training into validation)
  SAME, and another label

progressive JPEG: 1, kept
  (decoded by Pillow, many times slower: --normalise costs no pixel)
  cat/progressive.jpg: progressive JPEG

no colour: 1, kept
  (loaded as three equal channels, or as one if asked for)
  cat/gray.jpg: JPEG

formats
  JPEG              16 (89%), SIZE
  PNG               1 (6%), SIZE
  progressive JPEG  1 (6%), SIZE

shorter side in pixels
  32 to 63  ########################  18

longer side in pixels
   64 to 127  ########################  17
  128 to 223  #                         1
  smallest: 64 x 48 (NAME); largest: 200 x 50 (dog/wide.jpg)

2 classes: dog has 10 samples, cat 8 (1.25 times fewer)
  dog  ########################  10, SIZE
  cat  ###################       8, SIZE
"""


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    (jpeg_folder / "cat" / "bad.jpg").write_bytes(b"")
    (jpeg_folder / "dog" / "same.jpg").write_bytes((jpeg_folder / "cat" / "0.jpg").read_bytes())
    save_image(jpeg_folder / "dog" / "wide.jpg", 90, width=200, height=50)
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))
    return tmp_path / "p"


def test_the_report_is_plain_text(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(packed), "--quality"]) == 0
    out = capsys.readouterr().out.replace(str(tmp_path), "TMP")
    assert out.startswith("TMP/p: 18 samples\n  field     image, ")
    out = out[out.index("4 kinds") :]
    out = re.sub(r"[\d.]+ [KM]?B\b", "SIZE", out)
    # Which of the two is called the copy depends on the order in the pack.
    out = re.sub(r"\S+: has the bytes of [^,]+", "SAME", out)
    assert re.sub(r"64 x 48 \([^)]*\)", "64 x 48 (NAME)", out) == EXPECTED


def test_the_document_and_the_page_are_written(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, document = tmp_path / "q.html", tmp_path / "q.json"
    words = ["ls", str(packed), "--html", str(page)]
    assert main([*words, "--quality", "--json", str(document)]) == 0
    assert capsys.readouterr().err == f"wrote {page}\n"
    found = json.loads(document.read_text())
    quality = found["quality"]
    assert (found["command"], quality["samples"], quality["duplicates"]["conflicting"]) == ("ls", 18, 1)
    assert [one["code"] for one in quality["oddities"]] == ["empty", "duplicate", "progressive", "gray"]
    assert "cat/bad.jpg" in page.read_text()
    assert main(words) == 1
    assert "is already there" in capsys.readouterr().err


def test_the_page_shows_odd_samples_first_then_dark_blank_and_blurred_ones_then_others(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    for name, level in (("blank", 120), ("dark", 8)):
        pixels = np.full((60, 80, 3), level, np.uint8)
        pixels[::2, ::3] += 20 if name == "dark" else 0
        Image.fromarray(pixels).save(jpeg_folder / "cat" / f"{name}.png")
    ramp = np.linspace(60, 190, 160).astype(np.uint8)
    Image.fromarray(np.tile(ramp[None, :, None], (120, 1, 3))).save(jpeg_folder / "cat" / "soft.png")
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))
    sheet = look(tmp_path / "p", read_quality(tmp_path / "p"))
    codes = [one.code for one in sheet.pictures]
    assert codes[: codes.index("blank")].count("progressive") == 1
    assert [Path(one.name).name for one in sheet.pictures if one.code in LOOKS] == [
        "blank.png", "dark.png", "soft.png",
    ]  # fmt: skip
    others = [one for one in sheet.pictures if not one.code]
    assert codes[-len(others) :] == [""] * len(others)
    assert {one.class_name for one in others} == {"cat", "dog"}
    assert max(Image.open(io.BytesIO(one.jpeg)).size for one in sheet.pictures) <= (160, 160)


def test_the_page_of_an_index_has_pictures_and_says_that_there_is_no_report(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index(jpeg_folder, tmp_path / "i", workers=1)
    assert main(["ls", str(tmp_path / "i"), "--quality"]) == 1
    assert "only packing looks at the quality of a dataset" in capsys.readouterr().err
    assert main(["ls", str(tmp_path / "i"), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img ") == 16
    assert "report is not there" in page


def test_a_sample_that_cannot_be_loaded_has_words_in_the_place_of_a_picture(
    packed: Path, tmp_path: Path
) -> None:
    flip_byte(packed / "shard-00000.tar", 700)
    page = tmp_path / "page.html"
    assert main(["ls", str(packed), "--html", str(page)]) == 0
    assert page.read_text().count("cannot be loaded") == 1


def test_a_folder_that_is_no_pack_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path), "--quality"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} is not a pack")


def test_a_map_is_named_with_what_it_saves(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_maps.py").write_text("def width(sample):\n    return {'width': sample['image'].width}\n")
    assert (
        main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--map", "cli_maps:width"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "cli_maps:width" in line]
    assert re.fullmatch(
        r"  map      cli_maps:width took [\d.]+ (µs|ms) per sample: [\d.]+ (µs|ms|s) of one core that", line
    )
    assert main(["pack", str(jpeg_folder), str(tmp_path / "q"), "--map", "cli_maps:widht"]) == 1
    assert capsys.readouterr().err == (
        "error: cli_maps has no function 'widht'\n\nhint: did you mean 'width'?\n"
    )
