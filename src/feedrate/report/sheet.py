# SPDX-License-Identifier: Apache-2.0
"""The page of `feedrate ls --html`: what is in a pack, with small pictures, odd ones first."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from feedrate.packing.results import Oddity, PackDescription, Picture, Quality, Sheet
from feedrate.report.check import describe_fields
from feedrate.report.page import (
    draw_article,
    draw_bar,
    draw_facts,
    draw_frame,
    draw_section,
    draw_table,
    show,
    show_sentence,
)
from feedrate.report.quality import (
    describe_classes,
    describe_code,
    describe_cost,
    describe_counts,
    describe_duplicates,
    describe_meaning,
    describe_verdict,
    list_formats,
    list_urgent,
    pick_classes,
)
from feedrate.units import format_bytes, format_count

_MOST_CLASSES = 60  # of the page
_TONES = {"kept": "copy", "rejected": "exposed", "normalised": "validation", "mapped": "forward"}
# What a small picture looks like.
_LOOKS = {"blank": "Blank", "dark": "Dark", "blurred": "Blurred, or without detail"}
_STYLE = """
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 0 2.5rem; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .75rem;
  margin: .5rem 0; }
.sheet img, .sheet figure > p { display: block; width: 100%; height: 8rem; object-fit: contain;
  background: var(--panel); }
.sheet figure > p { padding: 3rem 1rem; text-align: center; color: var(--soft); }
.sheet small { font-size: .75rem; line-height: 1.3; } .sheet b { color: var(--text); }
article ul { margin: .35rem 0 0; padding: 0; list-style: none; font-size: .9rem; }
.done .dot:not(:first-child) { margin-left: .75rem; }
@media (max-width: 40rem) { .sheet { grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); }
  .sheet img { height: 6rem; } }
"""


def draw_sheet(description: PackDescription, sheet: Sheet) -> str:
    """Return the page to look at a pack's data as HTML: small pictures, odd samples first."""
    quality = description.quality
    verdict = "packing's report is not there" if quality is None else describe_verdict(quality)
    oddities = () if quality is None else quality.oddities
    odd = "".join(_oddity_html(one, quality, sheet) for one in oddities if quality is not None)
    for code, words in _LOOKS.items():
        shown = [one for one in sheet.pictures if one.code == code]
        if shown:
            note = f"<p><small>Among {sheet.drawn:,} samples that were drawn at random.</small></p>"
            odd += draw_article(words, note + _pictures_html(shown))
    sections = [
        draw_section("What deserves a look", odd),
        draw_section("Other samples", _pictures_html([one for one in sheet.pictures if not one.code])),
        draw_section("What is in there", draw_facts(describe_fields(description))),
    ]
    if quality is not None:
        sections += [
            draw_section("Classes", _classes_html(quality)),
            draw_section("Formats", _bars_html(list_formats(quality))),
            draw_section("Sizes in pixels", _sizes_html(quality)),
        ]
    counts = format_count(description.samples, "sample") if quality is None else describe_counts(quality)
    return draw_frame(
        f"feedrate ls: {description.pack}",
        "".join(sections),
        heading="What is in this dataset?",
        lead=f"<code>{show(description.pack)}</code>: {show(counts)}",
        verdict=verdict[:1].upper() + verdict[1:],
        tone="good" if quality is not None and not list_urgent(quality) else "",
        style=_STYLE,
    )


def _oddity_html(oddity: Oddity, quality: Quality, sheet: Sheet) -> str:
    done = "".join(
        f'<i class="dot {_TONES.get(done, "other")}"></i>{count:,} {show(done)} '
        for done, count in oddity.done.items()
    )
    note = describe_duplicates(quality) if oddity.code == "duplicate" else ""
    note = describe_cost(quality) if oddity.code == "slow" else note
    words = [text for text in (note, describe_meaning(oddity)) if text]
    shown = [one for one in sheet.pictures if one.code == oddity.code]
    seen = {one.name for one in shown}
    examples = "".join(
        f"<li><code>{show(one.path)}</code> <span class=soft>{show(one.detail)}</span></li>"
        for one in oddity.examples
        if one.path not in seen
    )
    more = oddity.samples - len(oddity.examples)
    rest = f"<li class=soft>and {more:,} more</li>" if more > 0 else ""
    said = "".join(f"<p><small>{show_sentence(text)}.</small></p>" for text in words)
    code = describe_code(oddity.code)
    body = f'<p class="done">{done}</p>{said}{_pictures_html(shown)}<ul>{examples}{rest}</ul>'
    return draw_article(code[:1].upper() + code[1:], body)


def _pictures_html(pictures: Sequence[Picture]) -> str:
    figures = "".join(map(_figure, pictures))
    return f'<div class="sheet">{figures}</div>' if figures else ""


def _figure(one: Picture) -> str:
    title = show(one.name)
    image = f'<img alt="{title}" src="data:image/jpeg;base64,{base64.b64encode(one.jpeg).decode()}">'
    lines = [f"<b>{show(one.class_name)}</b>"] if one.class_name else []
    lines += [title, *([show(one.detail)] if one.detail else [])]
    caption = "".join(f"<small>{line}</small>" for line in lines)
    shown = image if one.jpeg else "<p>cannot be loaded</p>"
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _classes_html(quality: Quality) -> str:
    if not quality.classes:
        return ""
    shown, skipped = pick_classes(quality, _MOST_CLASSES)
    rows = [(one.name, one.samples, f"{one.samples:,}, {format_bytes(one.size_bytes)}") for one in shown]
    half = _MOST_CLASSES // 2
    note = f"<p class=soft>The {half} largest and the {half} smallest; {skipped:,} between them.</p>"
    return f"<p>{show(describe_classes(quality))}.</p>{_bars_html(rows)}{note if skipped else ''}"


def _sizes_html(quality: Quality) -> str:
    if not quality.short_sides:
        return ""
    sides = "".join(
        f"<div><h3>{title}</h3>{_bars_html((name, n, f'{n:,}') for name, n in counts.items())}</div>"
        for title, counts in (("Shorter side", quality.short_sides), ("Longer side", quality.long_sides))
    )
    extremes = (
        (word, f"{image.width} x {image.height}: {image.path}")
        for word, image in (("smallest", quality.smallest), ("largest", quality.largest))
        if image is not None
    )
    return f'<div class="pair">{sides}</div>\n{draw_facts(extremes)}'


def _bars_html(rows: Iterable[tuple[str, int, str]]) -> str:
    rows = list(rows)
    most = max((count for _, count, _ in rows), default=0)
    if not most:
        return ""
    drawn = (
        (name, draw_bar([("cpu", count, text)], total=most, small=True), text) for name, count, text in rows
    )
    return draw_table(drawn, ("", "widest", "number soft"))
