# SPDX-License-Identifier: Apache-2.0
"""`feedrate quality --html` and `feedrate pack --html`: one file that needs no network and no other file.

Its policy forbids the browser to fetch or run anything at all; names of files, which may come from strangers,
are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from feedrate.packing.results import ImageSize, Oddity, Quality
from feedrate.report.doctor_charts import STYLE
from feedrate.report.page import show
from feedrate.report.quality import (
    describe_classes,
    describe_code,
    describe_cost,
    describe_counts,
    describe_duplicates,
    describe_meaning,
    describe_verdict,
    sort_classes,
)
from feedrate.units import format_bytes, format_percent

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_CLASSES = 60
_TONES = {"kept": "copy", "rejected": "exposed", "normalised": "validation", "mapped": "forward"}
_STYLE = """
.rows { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr max-content; gap: .15rem .9rem;
  align-items: center; font-size: .9rem; margin: .5rem 0; }
.rows b { font-weight: 400; } .rows .number { color: var(--soft); }
.rows i { display: block; height: .9rem; border-radius: .15rem; background: var(--accent); min-width: 1px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 0 2.5rem; }
.odd { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.4fr); gap: .25rem 1.5rem; }
.odd ul { margin: 0; padding: 0; list-style: none; font-size: .9rem; }
.done .dot:not(:first-child) { margin-left: .75rem; }
@media (max-width: 40rem) { .odd { grid-template-columns: 1fr; } }
"""


def draw_quality_page(pack: str, quality: Quality) -> str:
    """Return the page as HTML."""
    verdict = describe_verdict(quality)
    is_good = verdict.startswith("good")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>feedrate quality: {show(pack)}</title>
<style>{STYLE}{_STYLE}</style>
</head>
<body>
<h1>What is in this dataset?</h1>
<p class="soft"><code>{show(pack)}</code>: {show(describe_counts(quality))}</p>
<p class="verdict{" good" if is_good else ""}">{show(verdict[:1].upper() + verdict[1:])}</p>
{_section("What deserves a look", _oddities(quality))}
{_section("Classes", _classes(quality))}
{_section("Formats", _formats(quality))}
{_section("Sizes in pixels", _sizes(quality))}
</body>
</html>
"""


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>" if body else ""


def _oddities(quality: Quality) -> str:
    return "".join(_oddity(one, quality) for one in quality.oddities)


def _oddity(oddity: Oddity, quality: Quality) -> str:
    done = "".join(
        f'<i class="dot {_TONES.get(done, "other")}"></i>{count:,} {show(done)} '
        for done, count in oddity.done.items()
    )
    note = describe_duplicates(quality) if oddity.code == "duplicate" else ""
    note = describe_cost(quality) if oddity.code == "slow" else note
    words = [text for text in (note, describe_meaning(oddity)) if text]
    examples = "".join(
        f"<li><code>{show(one.path)}</code> <span class=soft>{show(one.detail)}</span></li>"
        for one in oddity.examples
    )
    title = describe_code(oddity.code)
    more = oddity.samples - len(oddity.examples)
    rest = f"<li class=soft>and {more:,} more</li>" if more > 0 else ""
    return f"""
<article class="odd">
<div><h3>{show(title[:1].upper() + title[1:])}</h3>
<p class="done">{done}</p>
{"".join(f"<p><small>{show(text[:1].upper() + text[1:])}.</small></p>" for text in words)}</div>
<ul>{examples}{rest}</ul>
</article>"""


def _classes(quality: Quality) -> str:
    if not quality.classes:
        return ""
    classes = sort_classes(quality)
    half = _MOST_CLASSES // 2
    shown = classes if len(classes) <= _MOST_CLASSES else [*classes[:half], *classes[-half:]]
    rows = [(one.name, one.samples, f"{one.samples:,}, {format_bytes(one.size_bytes)}") for one in shown]
    skipped = len(classes) - len(shown)
    note = f"<p class=soft>The {half} largest and the {half} smallest; {skipped:,} between them.</p>"
    return f"<p>{show(describe_classes(quality))}.</p>{_bars(rows)}{note if skipped else ''}"


def _formats(quality: Quality) -> str:
    images = max(1, sum(one.images for one in quality.formats))
    return _bars(
        (one.name, one.images,
         f"{one.images:,} ({format_percent(one.images / images)}), {format_bytes(one.size_bytes)}")
        for one in quality.formats
    )  # fmt: skip


def _sizes(quality: Quality) -> str:
    if not quality.short_sides:
        return ""

    def draw(title: str, counts: Mapping[str, int]) -> str:
        return f"<div><h3>{title}</h3>{_bars((name, n, f'{n:,}') for name, n in counts.items())}</div>"

    extremes = [
        f"<dt>{word}</dt><dd>{_size(image)}</dd>"
        for word, image in (("smallest", quality.smallest), ("largest", quality.largest))
        if image is not None
    ]
    sides = draw("Shorter side", quality.short_sides) + draw("Longer side", quality.long_sides)
    return f"""<div class="pair">{sides}</div>
<dl class="facts">{"".join(extremes)}</dl>"""


def _size(image: ImageSize) -> str:
    return f"{image.width} x {image.height}: <code>{show(image.path)}</code>"


def _bars(rows: Iterable[tuple[str, int, str]]) -> str:
    rows = list(rows)
    most = max((count for _, count, _ in rows), default=0)
    if not rows or not most:
        return ""
    lines = "".join(
        f'<b>{show(name)}</b><i style="width: {100 * count / most:.1f}%"></i>'
        f'<span class="number">{show(text)}</span>'
        for name, count, text in rows
    )
    return f'<div class="rows">{lines}</div>'
