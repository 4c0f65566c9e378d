# SPDX-License-Identifier: Apache-2.0
"""The page of the quality report: one file, no network, no script; names from strangers are only shown."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate.packing.results import (
    ClassSize,
    Duplicates,
    FormatSize,
    ImageSize,
    Oddity,
    OddSample,
    PackDescription,
    Picture,
    Quality,
    Sheet,
)
from feedrate.report.check import draw_description
from feedrate.report.sheet import draw_sheet

EVIL = "</code><script>alert(1)</script>\x1b[31m\n.jpg"


def make_quality(**changes: object) -> Quality:
    fields: dict[str, object] = {
        "samples": 100, "rejected": 2, "left_out": 0,
        "formats": (FormatSize("JPEG", 90, 10**7), FormatSize(EVIL, 8, 10**5)),
        "short_sides": {"64 to 127": 90, "128 to 223": 8}, "long_sides": {"128 to 223": 98},
        "smallest": ImageSize(EVIL, 64, 64), "largest": ImageSize("b.jpg", 200, 130),
        "classes": tuple(ClassSize(f"{EVIL}{n}", n + 1, 1000 * n) for n in range(90)),
        "duplicates": Duplicates(1, 3, 5000, 1), "median_cost_us": 250.0,
        "oddities": (
            Oddity("empty", {"rejected": 2}, (OddSample(EVIL, EVIL, "rejected"),)),
            Oddity("duplicate", {"kept": 3}, (OddSample("c.jpg", "has the bytes of d.jpg", "kept"),)),
            Oddity("rotated", {"kept": 1, "normalised": 4}, (OddSample("e", "EXIF orientation 6", "kept"),)),
            Oddity("something-new", {"kept": 1}, ()),
        ),
    }  # fmt: skip
    return Quality(**{**fields, **changes})  # type: ignore[arg-type]


def describe(pack: str, quality: Quality) -> PackDescription:
    return PackDescription(pack, 100, (), {}, 1, 1000, 10, 2, {}, (), quality=quality)


def draw_page(pack: str, quality: Quality) -> str:
    pictures = (
        Picture("e", EVIL, "rotated", "EXIF orientation 6", b"jpeg"),
        Picture(EVIL, "cat", "", EVIL, b""),
    )
    return draw_sheet(describe(pack, quality), Sheet(pictures, 1))


def draw_text(pack: str, quality: Quality) -> str:
    return draw_description(describe(pack, quality))


class Checker(HTMLParser):
    VOID = frozenset(("meta", "br", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name == "href" for name, _ in attrs)
        assert all(str(value).startswith("data:image/jpeg;base64,") for name, value in attrs if name == "src")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_obeys_no_name() -> None:
    page = draw_page(EVIL, make_quality())
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not checker.tags & {"script", "link", "iframe"}
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert not re.search(r"https?://", page)


def test_the_page_says_what_the_terminal_says() -> None:
    quality = make_quality()
    page, text = draw_page("p", quality), draw_text("p", quality)
    for words in ("deserve a look; 2 inputs could not be packed", "EXIF orientation 6", "something-new"):
        assert words in page or words.capitalize() in page
        assert words in text
    assert "1 group with different labels" in page


def test_many_classes_are_cut_to_the_largest_and_the_smallest() -> None:
    assert "The 30 largest and the 30 smallest; 30 between them." in draw_page("p", make_quality())


@pytest.mark.parametrize("empty", [
    {"formats": (), "short_sides": {}, "long_sides": {}, "smallest": None, "largest": None},
    {"classes": ()}, {"oddities": ()}, {"median_cost_us": None},
])  # fmt: skip
def test_what_is_not_there_is_left_out(empty: dict[str, object]) -> None:
    quality = make_quality(**empty)
    checker = Checker()
    checker.feed(draw_page("p", quality))
    assert checker.open == []
    assert draw_text("p", quality).startswith("p: 100 samples\n")


def test_nothing_odd_is_good() -> None:
    quality = make_quality(oddities=(), rejected=0)
    assert "good: nothing that deserves a look was found" in draw_text("p", quality)
    assert 'class="verdict good"' in draw_page("p", quality)


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GREEN = (0, 200, 0)


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (500, True)])
def test_a_browser_draws_the_page(tmp_path: Path, width: int, dark: bool) -> None:
    page, shot, picture = tmp_path / "page.html", tmp_path / "page.png", io.BytesIO()
    Image.new("RGB", (160, 120), GREEN).save(picture, "JPEG")
    pictures = (Picture("e", "cat", "rotated", "on its side", picture.getvalue()),)
    page.write_text(draw_sheet(describe("p", make_quality()), Sheet(pictures, 0)), encoding="utf-8")
    assert BROWSER is not None
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={tmp_path}/profile",
         # No name is looked up and no address reached: the page has to do without.
         "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         f"--window-size={width},1200", f"--screenshot={shot}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert (pixels[2, 2] < 60).all() if dark else (pixels[2, 2] > 200).all()
    assert (np.abs(pixels - GREEN).max(axis=-1) < 8).sum() > 3000
