# SPDX-License-Identifier: Apache-2.0
"""The one-file page: complete in itself, safe against names that strangers chose, and drawn by a browser."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate.fidelity.measuring import Pair, draw_pictures
from feedrate.fidelity.results import Fidelity, Pictures
from feedrate.report.fidelity import draw_fidelity_page
from support.fidelity_results import NASTY, make_result

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GREEN, RED = (0, 200, 0), (200, 0, 0)


def make_pictures(result: Fidelity) -> Pictures:
    assert result.pillow is not None
    ours, theirs = (np.full((224, 224, 3), colour, np.uint8) for colour in (GREEN, RED))
    return Pictures(draw_pictures([Pair(result.pillow.worst[0], ours, theirs)]), ())


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_the_page_asks_for_nothing_from_elsewhere_and_runs_nothing() -> None:
    result = make_result()
    text = draw_fidelity_page(result, make_pictures(result))
    page = Reader()
    page.feed(text)
    assert page.tags.count("img") == 3
    assert "script" not in page.tags
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_names_are_shown_and_never_obeyed() -> None:
    result = make_result(source=NASTY)
    text = draw_fidelity_page(result, make_pictures(result))
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "good"),
        ({"pillow": dataclasses.replace(make_result().pillow, outside=3)}, "bad"),
        ({"pillow": None}, "unsure"),
    ],
)
def test_the_verdict_has_its_colour(changes: dict[str, object], kind: str) -> None:
    assert f'<p class="verdict {kind}">' in draw_fidelity_page(make_result(**changes), Pictures((), ()))


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (500, True)])
def test_a_browser_draws_the_page(tmp_path: Path, width: int, dark: bool) -> None:
    result = make_result()
    page, shot = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(draw_fidelity_page(result, make_pictures(result)), encoding="utf-8")
    assert BROWSER is not None
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={tmp_path}/profile",
         # No name is looked up and no address reached: the page has to do without.
         "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         f"--window-size={width},900", f"--screenshot={shot}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    pixels = np.asarray(Image.open(shot).convert("RGB"))
    assert (pixels[2, 2] < 60).all() if dark else (pixels[2, 2] > 200).all()
    greens, reds = (np.argwhere((pixels == colour).all(axis=-1)) for colour in (GREEN, RED))
    # Side by side, pixel by pixel where there is room, and nothing is cut off at the right.
    for found in (greens, reds):
        columns = np.ptp(found[:, 1]) + 1
        assert columns == 224 if width > 1000 else columns > 140
    assert greens[:, 0].min() == reds[:, 0].min()
    assert greens[:, 1].max() < reds[:, 1].min()
    assert (pixels[:, -8:] == pixels[2, 2]).all()
