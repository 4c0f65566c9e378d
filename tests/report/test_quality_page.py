# SPDX-License-Identifier: Apache-2.0
"""The page of the quality report: one file, no network, no script; names from strangers are only shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from feedrate.packing.results import ClassSize, Duplicates, FormatSize, ImageSize, Oddity, OddSample, Quality
from feedrate.report.quality import draw_quality, draw_quality_page

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


class Checker(HTMLParser):
    VOID = frozenset(("meta", "br", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_obeys_no_name() -> None:
    page = draw_quality_page(EVIL, make_quality())
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not checker.tags & {"script", "img", "link", "iframe"}
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert not re.search(r"https?://", page)


def test_the_page_says_what_the_terminal_says() -> None:
    quality = make_quality()
    page, text = draw_quality_page("p", quality), draw_quality("p", quality)
    for words in ("deserve a look; 2 inputs could not be packed", "EXIF orientation 6", "something-new"):
        assert words in page or words.capitalize() in page
        assert words in text
    assert "in 1 group the labels differ" in page


def test_many_classes_are_cut_to_the_largest_and_the_smallest() -> None:
    assert "The 30 largest and the 30 smallest; 30 between them." in draw_quality_page("p", make_quality())


@pytest.mark.parametrize("empty", [
    {"formats": (), "short_sides": {}, "long_sides": {}, "smallest": None, "largest": None},
    {"classes": ()}, {"oddities": ()}, {"median_cost_us": None},
])  # fmt: skip
def test_what_is_not_there_is_left_out(empty: dict[str, object]) -> None:
    quality = make_quality(**empty)
    checker = Checker()
    checker.feed(draw_quality_page("p", quality))
    assert checker.open == []
    assert draw_quality("p", quality).startswith("p: 100 samples, 2 rejected")


def test_nothing_odd_is_good() -> None:
    quality = make_quality(oddities=(), rejected=0)
    assert "good: nothing that deserves a look was found" in draw_quality("p", quality)
    assert 'class="verdict good"' in draw_quality_page("p", quality)
