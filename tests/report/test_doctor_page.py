# SPDX-License-Identifier: Apache-2.0
"""The doctor's page: complete in itself, safe against what the run hands in, and drawn by a browser."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_quality_page import BROWSER

from feedrate.doctor.results import Curve, Remedy
from feedrate.report.doctor_page import draw_doctor_page
from feedrate.report.plan_page import draw_plan_page
from support.diagnoses import (
    DIAGNOSES,
    make_decode_bound,
    make_device_bound,
    make_eight_ranks,
    make_nasty,
    make_timeline,
)
from support.plans import make_extreme_plan, make_plan

EXPOSED, GOOD_DARK = (216, 72, 59), (74, 194, 107)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


@pytest.mark.parametrize("name", DIAGNOSES)
def test_the_page_asks_for_nothing_from_other_places_and_runs_nothing(name: str) -> None:
    text = draw_doctor_page(DIAGNOSES[name]())
    page = Reader()
    page.feed(text)
    assert page.links == []
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_text_from_the_run_is_shown_and_never_obeyed() -> None:
    text = draw_doctor_page(make_nasty())
    assert "<script>" not in text
    assert "\x1b" not in text
    assert text.encode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in text
    attributes = re.findall(r'(?:title|class|style|aria-label)="([^"]*)"', text)
    assert all("<" not in value for value in attributes)


def test_the_verdict_is_red_or_green() -> None:
    assert '<p class="verdict">decode-bound: ' in draw_doctor_page(make_decode_bound())
    assert '<p class="verdict good">healthy: ' in draw_doctor_page(make_device_bound())


def test_everything_that_was_found_is_on_the_page() -> None:
    diagnosis = make_decode_bound()
    text = draw_doctor_page(diagnosis)
    said = [
        *(remedy.command for remedy in diagnosis.remedies if remedy.command),
        *(line for finding in diagnosis.findings for line in finding.evidence),
        *(line.source for line in diagnosis.hot_lines),
        *(rate.title for rate in diagnosis.rates),
        *(fact.value for fact in diagnosis.facts),
        *(curve.name for curve in diagnosis.curves),
        *diagnosis.run.unseen,
        *diagnosis.run.experiments,
    ]
    assert [one for one in said if escape(one) not in text] == []


def test_a_run_without_steps_has_no_share_of_its_time() -> None:
    diagnosis = make_decode_bound()
    assert " 66% of the time: " in draw_doctor_page(diagnosis)
    dead = replace(diagnosis, run=replace(diagnosis.run, steps=0), timeline=())
    assert "of the time: " not in draw_doctor_page(dead)


def test_real_steps_and_experiments_are_told_apart() -> None:
    text = draw_doctor_page(make_decode_bound())
    spans = re.findall(r'<span class="(real)?" style="flex: (\d+) 0 0" title="([^"]*)"', text)
    assert spans[0] == ("real", "110", "the run itself")
    assert [title for _, _, title in spans[1:]] == [
        "the loader alone", "the same samples again", "other workers",
        "training on batches kept in memory", "half precision",
    ]  # fmt: skip


def test_a_long_run_is_drawn_with_as_many_columns_as_fit() -> None:
    rows = make_timeline(0.1, {"forward": 0.1}, phases={"real": 5000, "drain": 30})
    text = draw_doctor_page(replace(make_decode_bound(), timeline=rows))
    assert text.count("<g><title>") <= 401
    assert "Each column is the mean of up to 13 steps." in text
    assert len(text) < 500_000


def test_each_rank_has_its_own_row_of_steps() -> None:
    text = draw_doctor_page(make_eight_ranks())
    assert text.count('<svg class="steps"') == 8
    assert "rank 5 " in text


def test_a_gap_in_a_curve_stays_a_gap() -> None:
    curve = Curve("copies", "B/s", (0.0, 1.0, 2.0, 3.0), (1.0, None, 2.0, float("nan")), 4.0)
    text = draw_doctor_page(replace(make_decode_bound(), curves=(curve,)))
    assert 'd="M0.0,50.5M200.0,35.0"' in text
    assert "2 B/s, at most 2 B/s of 4 B/s" in text


def test_a_curve_of_zeros_is_a_word_and_not_a_chart() -> None:
    curves = (Curve("swapped in", "B/s", (0.0, 1.0), (0.0, None), None), make_decode_bound().curves[0])
    text = draw_doctor_page(replace(make_decode_bound(), curves=curves))
    assert "Zero all the time: swapped in." in text
    assert text.count("<figure>") == 1


def test_factors_are_drawn_on_a_scale_of_factors() -> None:
    """From 1x to 2x is as far as from 2x to 4x."""
    remedies = (Remedy("a", "a", 2.0, 2.0, 2.0), Remedy("b", "b", 4.0, 4.0, 4.0))
    text = draw_doctor_page(replace(make_decode_bound(), remedies=remedies))
    first, second = (float(at) for at in re.findall(r'class="point" style="left: ([0-9.]+)%', text))
    assert second == pytest.approx(2 * first, rel=0.001)


def browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    return subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={profile}", "--enable-logging=stderr",
         # No name is looked up and no address reached: the page has to do without.
         "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", *options, page.as_uri()],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@needs_browser
@pytest.mark.parametrize("is_dark", [False, True])
def test_a_browser_draws_the_page(tmp_path: Path, is_dark: bool) -> None:
    page, shot = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(
        draw_doctor_page(make_device_bound() if is_dark else make_decode_bound()), encoding="utf-8"
    )
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    browse(page, tmp_path / "profile", scheme, "--window-size=1100,2600", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("RGB"))
    assert (pixels[2, 2] < 60).all() if is_dark else (pixels[2, 2] > 200).all()
    marks = np.argwhere((pixels == (GOOD_DARK if is_dark else EXPOSED)).all(axis=-1))
    # The verdict's edge; or the waits, in the split of the step and again step by step.
    assert len(marks) > (200 if is_dark else 10_000)
    assert (pixels[:, -8:] == pixels[2, 2]).all()


@needs_browser
def test_every_page_fits_a_telephone_and_leaves_the_console_empty(tmp_path: Path) -> None:
    """Frames 390 pixels wide: a browser's own window cannot be made that narrow."""
    pages = [draw_doctor_page(make()) for make in (*DIAGNOSES.values(), make_nasty)]
    pages += [draw_plan_page(make_plan()), draw_plan_page(make_extreme_plan())]
    frames = "".join(f'<iframe srcdoc="{escape(text)}" width="390" height="600"></iframe>' for text in pages)
    measure = (
        "[...document.querySelectorAll('iframe')].map(f => f.contentDocument.documentElement.scrollWidth)"
    )
    outer = tmp_path / "frames.html"
    outer.write_text(
        f"<!doctype html><meta charset=utf-8>{frames}<p id=widths></p>"
        f"<script>onload = () => {{ widths.textContent = {measure}.join(' ') }}</script>",
        encoding="utf-8",
    )
    done = browse(outer, tmp_path / "profile", "--dump-dom")
    found = re.search(r'<p id="widths">([0-9 ]+)</p>', done.stdout)
    assert found is not None
    assert [int(width) for width in found[1].split()] == [390] * len(pages)
    # What the page's own policy forbids, a fetch above all, would be said here.
    assert "CONSOLE" not in done.stderr
