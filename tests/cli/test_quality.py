# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedrate import PackOptions, pack
from feedrate.cli import main
from support.images import save_image

EXPECTED = """\
TMP/p: 18 samples, 1 rejected

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
    assert main(["quality", str(packed)]) == 0
    out = capsys.readouterr().out.replace(str(tmp_path), "TMP")
    out = re.sub(r"[\d.]+ [KM]?B\b", "SIZE", out)
    # Which of the two is called the copy depends on the order in the pack.
    out = re.sub(r"\S+: has the bytes of [^,]+", "SAME", out)
    assert re.sub(r"64 x 48 \([^)]*\)", "64 x 48 (NAME)", out) == EXPECTED


def test_the_document_and_the_page_are_written(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, document = tmp_path / "q.html", tmp_path / "q.json"
    assert main(["quality", str(packed), "--html", str(page), "--json", str(document)]) == 0
    assert capsys.readouterr().err == f"wrote {page}\n"
    found = json.loads(document.read_text())
    assert (found["command"], found["samples"], found["duplicates"]["conflicting"]) == ("quality", 18, 1)
    assert [one["code"] for one in found["oddities"]] == ["empty", "duplicate", "progressive", "gray"]
    assert "cat/bad.jpg" in page.read_text()
    assert main(["quality", str(packed), "--html", str(page)]) == 1
    assert "is already there" in capsys.readouterr().err


def test_pack_writes_the_page_too(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1", "--html", str(page)]) == 0
    assert "Progressive JPEG" in page.read_text()
    assert capsys.readouterr().err.endswith(f"wrote {page}\n")


def test_a_folder_that_is_no_pack_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", str(tmp_path)]) == 1
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
