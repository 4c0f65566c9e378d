# SPDX-License-Identifier: Apache-2.0
"""`feedrate fidelity` on the command line: words, page, JSON, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.fidelity import measuring
from feedrate.progress import Rejection
from feedrate.report.fidelity import draw_fidelity, format_share
from support.fidelity_results import NASTY, make_result


def run(*words: object) -> int:
    return main(["fidelity", "--size", "32", *map(str, words)])


def test_good_pixels_are_exit_code_0_and_a_few_lines(
    jpeg_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jpeg_folder) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"{jpeg_folder}: all 16 images, random crops resized to 32 x 32 and flips, seed 0\n"
    )
    assert "against Pillow, on the same files: 14 images decoded by the kernel" in out
    assert "proves nothing: 2 images went through Pillow anyway (" in out
    assert "good: " in out.splitlines()[-1]


def test_wrong_pixels_are_exit_code_1(
    jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = measuring.decode_as_torchvision

    def spoil(*arguments: Any) -> Any:
        return honest(*arguments) // 2

    monkeypatch.setattr(measuring, "decode_as_torchvision", spoil)
    assert run(jpeg_folder) == 1
    assert "bad: more than rounding in 14 images (limits: 2 levels and 54 dB)." in capsys.readouterr().out


def test_the_page_is_written_and_named(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jpeg_folder, "--html", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().err.endswith(f"\nwrote {tmp_path}/page.html\n")


def test_a_page_that_is_there_is_not_overwritten_without_force(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert run(jpeg_folder, "--html", page) == 1
    assert page.read_text() == "mine"
    assert capsys.readouterr().err.startswith(f"error: {page} is already there\n\nhint: add --force")
    assert run(jpeg_folder, "--html", page, "--force") == 0
    assert page.read_text() != "mine"


def test_a_page_in_no_folder_is_refused_before_the_work(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jpeg_folder, "--html", tmp_path / "no" / "page.html") == 1
    captured = capsys.readouterr()
    assert "there is no folder" in captured.err
    assert captured.out == ""


def test_the_result_goes_to_standard_output_as_json(
    jpeg_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jpeg_folder, "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "fidelity"
    assert document["pillow"]["images"] == 14
    assert document["machine"]["versions"]["pillow"]


@pytest.mark.parametrize("word", ["bicubic", "lanczos", "nearest"])
def test_another_filter_is_compared_with_the_same_one_of_pillow(
    jpeg_folder: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jpeg_folder, "--interpolation", word) == 0
    out = capsys.readouterr().out
    assert f"random crops resized to 32 x 32 ({word}) and flips" in out
    assert "good: " in out.splitlines()[-1]
    assert run(jpeg_folder, "--interpolation", word, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["interpolation"] == word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["{photos}", "--interpolation", "cubic"],
            "error: fidelity: interpolation must be one of bilinear, ",
        ),
        (["/no/such/folder"], "error: no folder, file or pack at /no/such/folder\n"),
        (["{empty}"], "error: no images in {empty}\n"),
        (
            ["{photos}", "--originals", "{photos}"],
            "error: {photos} is not a pack: --originals compares a pack",
        ),
    ],
)
def test_bad_input_is_answered_in_a_sentence(
    words: list[str], said: str, jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    names = {"empty": tmp_path / "empty", "photos": jpeg_folder}
    assert run(*(word.format(**names) for word in words)) == 1
    assert capsys.readouterr().err.startswith(said.format(**names))


def test_a_name_that_is_no_text_is_written_with_escapes(
    jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n<b>")
    os.rename(jpeg_folder, odd)
    assert main(["fidelity", odd, "--size", "32", "--html", str(tmp_path / "page.html")]) == 0
    assert r"/\xff\n<b>: all 16 images" in capsys.readouterr().out
    assert r"\xff\n&lt;b&gt;" in (tmp_path / "page.html").read_text()


def test_everything_there_is_to_say_fits_on_a_screen() -> None:
    result = make_result()
    many = tuple(Rejection(f"{n}.jpg", "image", "is not there") for n in range(50))
    found = dataclasses.replace(result.pillow, lossy=True, mean_psnr_db=34.0, lowest_psnr_db=22.0)
    full = dataclasses.replace(
        result, originals=found, originals_folder="photos", settings={"resize": 256}, not_compared=many,
        refused=many, missing=many,
    )  # fmt: skip
    lines = draw_fidelity(full).splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 110


def test_the_terminal_says_all_that_was_found() -> None:
    assert draw_fidelity(make_result()) == (
        "photos: 200 of 1,300 images, random crops resized to 224 x 224 and flips, seed 0\n"
        "\n"
        "against Pillow, on the same files: 190 images decoded by the kernel\n"
        "  PSNR        57.2 dB on average, 55.5 dB at the lowest, 12 of them equal\n"
        "  difference  at most 2 levels of 255\n"
        "  pixels      90.00% identical, 9.00% differ by 1 level, 1.00% by 2, 0% by more\n"
        f"  worst       {NASTY}: 55.5 dB, at most 2 levels, 90.00% of pixels identical\n"
        "\n"
        "proves nothing: 10 images went through Pillow anyway (8 progressive, 2 PNG)\n"
        "\n"
        "good: Pillow's pixels but for rounding (limits: 2 levels and 54 dB).\n"
    )


def test_a_lossy_pack_is_told_apart_from_its_originals() -> None:
    found = dataclasses.replace(make_result().pillow, lossy=True, mean_psnr_db=34.0, outside=190)
    result = make_result(settings={"resize": 256, "quality": 90})
    assert "what resize 256, quality 90 cost: --originals DIR" in draw_fidelity(result)
    compared = dataclasses.replace(result, originals=found, originals_folder="photos")
    text = draw_fidelity(compared)
    assert "against the originals in photos, through Pillow: 190 images" in text
    assert text.endswith(" of what the pack holds (resize 256, quality 90); 34.0 dB from the originals.\n")
    assert compared.is_good


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (1, "100%"), (1e-9, "<0.01%"), (1 - 1e-9, ">99.99%"), (0.5, "50.00%")]
)
def test_a_share_is_nothing_or_all_only_where_that_is_so(share: float, text: str) -> None:
    assert format_share(share) == text
