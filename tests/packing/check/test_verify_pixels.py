# SPDX-License-Identifier: Apache-2.0
"""`feedrate verify --pixels N`: what it compares, what it leaves out, and when it says no."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from feedrate import PackOptions, Recode, index, pack
from feedrate.cli import main
from feedrate.errors import PackError
from feedrate.packing.check import pixels
from feedrate.packing.check.pixels import compare_with_pillow
from feedrate.packing.check.verify import verify
from feedrate.packing.results import PixelComparison, VerifyResult
from feedrate.report.check import draw_verify
from support.damage import flip_byte
from support.images import save_image
from support.packs import LABEL, write_pack


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    pack(jpeg_folder, tmp_path / "pack", PackOptions(workers=1))
    return tmp_path / "pack"


def compare(packed: Path, images: int = 50) -> PixelComparison:
    found = verify(packed, workers=1, pixels=images)
    assert found.problems == ()
    assert found.comparison is not None
    return found.comparison


def test_a_pack_and_an_index_of_the_files_say_the_same(
    jpeg_folder: Path, packed: Path, tmp_path: Path
) -> None:
    index(jpeg_folder, tmp_path / "index", workers=1)
    for path in (packed, tmp_path / "index"):
        found = compare(path)
        assert (found.asked, found.images, found.outside) == (16, 14, 0)
        assert sum(found.level_shares) == pytest.approx(1)
        assert found.largest_difference <= 2


def test_images_that_go_through_pillow_anyway_are_counted_and_prove_nothing(packed: Path) -> None:
    found = compare(packed)
    assert sum(found.by_pillow.values()) == 2
    assert "progressive" in found.by_pillow


def test_the_sample_is_as_large_as_asked_and_the_same_each_time(packed: Path) -> None:
    assert compare(packed, 4).asked == 4
    assert compare(packed, 4) == compare(packed, 4)


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pixels.decode_as_torchvision

    def decode(*arguments: Any) -> Any:
        return honest(*arguments) // 2

    monkeypatch.setattr(pixels, "decode_as_torchvision", decode)


def test_wrong_pixels_are_problems_with_names_and_exit_code_1(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch)
    found, problems = compare_with_pillow(packed, 50)
    assert (found.outside, len(problems)) == (14, 14)
    assert found.worst in {problem.file for problem in problems}
    assert "differ from Pillow's by more than rounding" in problems[0].text
    assert main(["verify", str(packed), "--workers", "1", "--pixels", "50"]) == 1
    out = capsys.readouterr().out
    assert "cat/3.jpg: its pixels differ from Pillow's by more than rounding: " in out
    assert "(limits: 54 dB, 2 levels)" in out
    assert out.endswith("14 problems\n\nnext: report it as a bug, with a file\n")


def test_damage_is_told_first_and_nothing_is_compared(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_byte(packed / "shard-00000.tar", 700)
    found = verify(packed, workers=1, pixels=50)
    assert not found.is_good
    assert found.comparison is None
    assert main(["verify", str(packed), "--pixels", "50"]) == 1
    assert "its bytes are not those that were packed" in capsys.readouterr().out


def test_too_little_memory_for_an_image_is_not_taken_for_damage(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(pixels, "decode_as_torchvision", decode)
    with pytest.raises(MemoryError):
        compare_with_pillow(packed, 3)


def test_packs_of_raw_pixels_are_compared_like_files(tmp_path: Path) -> None:
    for number in range(4):
        save_image(tmp_path / "photos" / f"{number}.jpg", number, width=160, height=120)
    for name, recode in (("raw", Recode(raw=True)), ("small", Recode(raw=True, resize=60))):
        pack(tmp_path / "photos", tmp_path / name, PackOptions(workers=1, recode=recode))
        found = compare(tmp_path / name)
        assert (found.images, found.outside) == (4, 0)


def test_a_pack_without_images_says_what_it_has(tmp_path: Path) -> None:
    write_pack(tmp_path / "p", (LABEL,), [{"label": 0}], shards=1)
    with pytest.raises(PackError, match="has no field 'image' to decode; it has: label"):
        compare_with_pillow(tmp_path / "p", 3)


RESULT = VerifyResult(
    "p", 1300, 1, 10**6, 1.0, (), (),
    comparison=PixelComparison(
        200, 190, 12, 57.25, 55.5, "cat/1.jpg", 2, (0.9, 0.09, 0.01, 0.0), {"progressive": 8, "PNG": 2}, 0
    ),
)  # fmt: skip


def test_the_terminal_says_all_that_was_found() -> None:
    assert draw_verify(RESULT) == (
        "p: 1,300 samples, 1 shard, 1.00 MB, checked in 1.00 s\n"
        "  pixels  190 images compared with Pillow, on random crops; 12 equal throughout\n"
        "          57.2 dB PSNR on average, 55.5 dB at the lowest: cat/1.jpg\n"
        "          90.00% of the pixels identical, 9.00% differ by 1 level of 255, 1.00% by 2, 0% by more\n"
        "          10 images through Pillow anyway, which proves nothing (8 progressive, 2 PNG)\n"
        "          Pillow's pixels, but for rounding\n"
        "good: every byte is as it was packed\n"
    )


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1.0, "100%"), (1e-9, "<0.01%"), (1 - 1e-9, ">99.99%"), (0.5, "50.00%")]
)
def test_a_share_is_nothing_or_all_only_where_that_is_so(share: float, text: str) -> None:
    assert RESULT.comparison is not None
    found = dataclasses.replace(RESULT.comparison, level_shares=(share, 0.0, 0.0, 0.0))
    assert f"  {text} of the pixels identical" in draw_verify(dataclasses.replace(RESULT, comparison=found))
