# SPDX-License-Identifier: Apache-2.0
"""The frame of every page that a command writes with `--html`, the one door to it (`show`), and its parts.

A page is one file that needs no network, no script and no other file. Its policy forbids the browser to fetch
or run anything at all; pictures stand in it as data: URIs. What is not feedrate's own text goes through
`show`. Sections, lists, tables, bars and scales look alike on all pages: they are drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from feedrate.errors import clean
from feedrate.units import clamp

if TYPE_CHECKING:
    from feedrate.machine.results import Machine

# Light and dark, wide and narrow, on a screen and on paper.
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --back: #ffffff; --panel: #f4f6f8;
  --line: #d5dae0; --good: #1a7f37; --bad: #c0272d; --accent: #2f6fd0;
  --exposed: #d8483b; --hidden: #f0b4ad; --copy: #e09f2d; --forward: #3b7dd8; --backward: #1f4f96;
  --optimizer: #86b3ec; --sync: #8e5bc4; --save: #8a6d4f; --validation: #2f9e78; --other: #aab3bd;
  --cpu: #3b7dd8; --queue: #e09f2d; --blocked: #8b95a1; --shade: #eef1f4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6eaef; --soft: #9aa5b1; --back: #14171b; --panel: #1e2329; --line: #363d46;
    --good: #4ac26b; --bad: #ff7b72; --accent: #6ea8f7;
    --exposed: #e5604f; --hidden: #8a4a44; --copy: #e0a93f; --forward: #4c8be0; --backward: #2f62ad;
    --optimizer: #9cc3f5; --sync: #a97bdb; --save: #a58a6b; --validation: #41b58c; --other: #606a75;
    --cpu: #4c8be0; --queue: #e0a93f; --blocked: #77828e; --shade: #1b2026; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 3rem; background: var(--back);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .25rem; }
h3 { font-size: 1rem; margin: 0; }
p { margin: .25rem 0; } ul { margin: .35rem 0; padding-left: 1.2rem; }
.soft, small { color: var(--soft); } small { font-size: .875rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .875rem; }
pre { white-space: pre-wrap; background: var(--panel); border: 1px solid var(--line); padding: .4rem .7rem;
  border-radius: .25rem; margin: .35rem 0; user-select: all; }
.verdict { border-left: .4rem solid var(--bad); background: var(--panel); padding: .85rem 1.1rem;
  margin: 1rem 0; font-size: 1.1rem; font-weight: 600; border-radius: .25rem; }
.verdict.good { border-color: var(--good); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap:
  .6rem; margin: 1rem 0 0; }
.figures div { border: 1px solid var(--line); border-radius: .25rem; padding: .45rem .75rem; }
.figures dt { color: var(--soft); font-size: .875rem; }
  .figures dd { margin: 0; font-size: 1.1rem; font-weight: 600; }
article { border-top: 1px solid var(--line); padding: .75rem 0; }
.remedy { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.15fr); gap: .25rem 1.5rem; }
.gain { font-weight: 600; white-space: nowrap; }
.track { position: relative; height: 1.1rem; margin: .3rem 0 0; border-radius:
  .2rem; background: var(--shade); }
.track i { position: absolute; top: 0; bottom: 0; border-radius: .2rem; }
.track .reach { min-width: 2px; background: var(--accent); opacity: .35; }
.track .point { min-width: 4px; margin-left: -2px; background: var(--accent); }
.track .one { min-width: 1px; background: var(--soft); border-radius: 0; }
.ticks { position: relative; height: 1.2rem; color: var(--soft); font-size: .8rem; }
.ticks span { position: absolute; white-space: nowrap; transform: translateX(-50%); }
.scale { display: flex; justify-content: space-between; color: var(--soft); font-size: .8rem; }
.bar { display: flex; height: 1.4rem; border-radius: .25rem; overflow: hidden; background: var(--shade);
  margin: .75rem 0 .35rem; }
.bar.small { height: .8rem; margin: .3rem 0; } .bar span { min-width: 0; }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; color: var(--soft); font-size: .875rem;
  padding: 0; margin: .25rem 0; list-style: none; }
.key i, .dot { display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin-right:
  .4rem; }
.exposed { background: var(--exposed); fill: var(--exposed); }
  .hidden { background: var(--hidden); fill: var(--hidden); }
.copy { background: var(--copy); fill: var(--copy); }
  .forward { background: var(--forward); fill: var(--forward); }
.backward { background: var(--backward); fill: var(--backward); }
.optimizer { background: var(--optimizer); fill: var(--optimizer); }
.sync { background: var(--sync); fill: var(--sync); } .save { background: var(--save); fill: var(--save); }
.validation { background: var(--validation); fill: var(--validation); }
.other { background: var(--other); fill: var(--other); }
.cpu { background: var(--cpu); } .queue { background: var(--queue); } .blocked { background: var(--blocked); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { color: var(--soft); font-weight: 400; text-align: left; }
th, td { padding: .2rem .75rem .2rem 0; vertical-align: top; border-bottom: 1px solid var(--line); }
td:first-child { min-width: 6.5rem; }
.best td { font-weight: 600; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.wide { width: 40%; } .widest { width: 65%; }
svg { display: block; width: 100%; }
.chart { position: relative; border-bottom: 1px solid var(--line); margin-top: .5rem; }
.chart .top { color: var(--soft); font-size: .8rem; }
.steps { height: 11rem; } .ranks .steps { height: 4rem; } .ranks .chart, .ranks .phases { margin-left: 4rem; }
.ranks .top { position: absolute; left: -4rem; width: 3.6rem; }
.cut { background: linear-gradient(90deg, var(--cpu) 85%, var(--shade)); }
.over { fill: var(--text); } .shade { fill: var(--shade); }
.phases { display: flex; font-size: .8rem; color: var(--soft); }
.phases span { box-shadow: inset 2px 0 var(--line); text-indent: .4rem; min-width: 0; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.phases .real { box-shadow: inset 2px 0 var(--accent); color: var(--text); }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem 1.5rem;
  margin-top: .5rem; }
figure { margin: 0; } figcaption { font-size: .875rem; }
figcaption small { display: block; } .curves svg { height: 4.5rem; }
.curve { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.limit { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 4 3; vector-effect: non-scaling-stroke; }
.frame { fill: var(--panel); }
.facts { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .15rem 1.25rem; margin:
  .5rem 0; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; }
@media (max-width: 40rem) { .remedy { grid-template-columns: 1fr; }
  .facts { grid-template-columns: 1fr; gap: 0; } .facts dd { margin-bottom: .4rem; }
  .aside { display: none; } .number.soft { white-space: normal; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  article, figure, .chart, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def show(text: str) -> str:
    """Return text for HTML, without anything that a browser or a terminal would obey: the pages' door."""
    from html import escape  # it brings a table of all HTML entities, which a command without a page need not

    return escape(clean(text))


def show_sentence(text: str) -> str:
    return show(text[:1].upper() + text[1:])


def draw_points(texts: Iterable[str]) -> str:
    rows = "".join(f"<li>{show(text)}</li>" for text in texts)
    return f"<ul>{rows}</ul>" if rows else ""


def draw_facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{show(name)}</dt><dd>{show(text)}</dd>" for name, text in facts if text)
    return f'<dl class="facts">{rows}</dl>' if rows else ""


class Drawn(str):
    """HTML that is drawn already."""

    __slots__ = ()


def draw_table(
    rows: Iterable[Sequence[str]],
    kinds: Sequence[str],
    heads: Sequence[str] = (),
    best: Sequence[str] | None = None,
) -> str:
    """Return a table, or nothing where it has no rows.

    Args:
        kinds: classes of the columns: number, soft, wide, aside (not on narrow screens), or none.
        best: the row that is set apart.
    """
    head = _draw_row("th", heads, kinds) if heads else ""
    lines = "".join(_draw_row("td", row, kinds, "best" if row is best else "") for row in rows)
    return f"<table>{head}{lines}</table>" if lines else ""


def _draw_row(tag: str, cells: Sequence[str], kinds: Sequence[str], tone: str = "") -> str:
    drawn = (cell if isinstance(cell, Drawn) else show(cell) for cell in cells)
    row = "".join(f"<{tag}{_name_class(k)}>{cell}</{tag}>" for cell, k in zip(drawn, kinds, strict=True))
    return f"<tr{_name_class(tone)}>{row}</tr>"


def _name_class(name: str) -> str:
    return f' class="{name}"' if name else ""


def draw_bar(parts: Iterable[tuple[str, float, str]], *, total: float = 1.0, small: bool = False) -> Drawn:
    """Return one bar of (colour, size, tooltip); what is missing to `total` stays empty."""
    spans, left = [], 1.0
    for tone, size, title in parts:
        # Shares of flex below one in sum leave room empty: they are of the whole bar, always.
        size = clamp(size / total, 0.0, max(left, 0.0))
        left -= size
        if size > 0:
            spans.append(f'<span class="{tone}" style="flex: {size:.6g} 0 0" title="{show(title)}"></span>')
    if left > 1e-9:
        spans.append(f'<span style="flex: {left:.6g} 0 0"></span>')
    return Drawn(f'<div class="bar{" small" if small else ""}" role="presentation">{"".join(spans)}</div>')


def draw_track(marks: Iterable[tuple[str, float, float]]) -> Drawn:
    """Return marks on a scale: their classes, and where each begins and ends, from 0 to 1."""
    drawn = "".join(
        f'<i class="{tone}" style="left: {start:.2%}; width: {end - start:.2%}"></i>'
        for tone, start, end in marks
    )
    return Drawn(f'<div class="track" role="presentation">{drawn}</div>')


def draw_ticks(ticks: Iterable[tuple[float, str]]) -> Drawn:
    """Return a scale's numbers, each at its place from 0 to 1."""
    drawn = "".join(f'<span style="left: {at:.2%}">{text}</span>' for at, text in ticks)
    return Drawn(f'<div class="ticks">{drawn}</div>')


def draw_article(title: str, body: str) -> str:
    """Return one thing of a section: its title, in one line, and HTML below it."""
    return f"\n<article>\n<h3>{show(title)}</h3>\n{body}</article>"


def draw_key(parts: Iterable[tuple[str, str]]) -> str:
    """Return what the colours of a chart mean."""
    rows = "".join(f'<li><i class="{tone}"></i>{show(name)}</li>' for tone, name in parts)
    return f'<ul class="key">{rows}</ul>'


def draw_section(title: str, body: str) -> str:
    """Return a section, or nothing where there is nothing to show."""
    return f"\n<section>\n<h2>{show(title)}</h2>\n{body}\n</section>" if body else ""


def draw_frame(
    title: str,
    body: str,
    *,
    heading: str,
    lead: str,
    verdict: str,
    tone: str = "",
    style: str = "",
    machine: Machine | None = None,
) -> str:
    """Return a whole page.

    Args:
        title: of the browser's window.
        body: HTML; and so is `lead`, the line below the heading.
        verdict: one sentence; `tone` is the class of its colour: good, or none for bad.
        style: rules beside those that all pages have.
        machine: where the command ran, for the foot of the page.
    """
    pictures = " img-src data:;" if "data:image/" in body else ""
    foot = "" if machine is None else f'<p class="soft"><small>{show(describe_machine(machine))}</small></p>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none';{pictures} style-src 'unsafe-inline'">
<title>{show(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
<h1>{show(heading)}</h1>
<p class="soft">{lead}</p>
<p class="{f"verdict {tone}".rstrip()}">{show(verdict)}</p>
{body}
{foot}
</body>
</html>
"""


def describe_machine(machine: Machine) -> str:
    """Return the line at the foot of a page: what was typed, and where."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    command = " ".join(("feedrate", *machine.command_line))
    return f"{command} | {machine.cpu_model}, Python {machine.python}, {versions}"
