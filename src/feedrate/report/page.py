# SPDX-License-Identifier: Apache-2.0
"""`feedrate fidelity --html`: one file that needs no network, no script and no other file.

Pictures stand in it as data: URIs. Its policy forbids the browser to fetch anything at all, and names of
files, which may come from strangers, are escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from feedrate.errors import clean
from feedrate.fidelity.results import Comparison, Fidelity, Picture, Pictures
from feedrate.machine.results import Machine
from feedrate.report.fidelity import (
    describe_comparison,
    describe_difference,
    describe_rest,
    describe_sample,
    describe_verdict,
    format_share,
    list_comparisons,
)

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --back: #ffffff; --panel: #f4f6f8;
  --line: #d5dae0; --good: #1a7f37; --bad: #c0272d; --unsure: #8a5a00;
  --level0: #3b7dd8; --level1: #9cc3f5; --level2: #f2b84b; --level3: #d8483b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6eaef; --soft: #9aa5b1; --back: #14171b; --panel: #1e2329; --line: #363d46;
    --good: #4ac26b; --bad: #ff7b72; --unsure: #e3b341;
    --level0: #3b7dd8; --level1: #86b3ec; --level2: #e0a93f; --level3: #e5604f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--back);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 0; }
p { margin: .25rem 0; } .soft { color: var(--soft); }
.verdict { border-left: .4rem solid var(--unsure); background: var(--panel); padding: .75rem 1rem;
  margin: 1rem 0; font-weight: 600; border-radius: .25rem; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.bar { display: flex; height: .9rem; border-radius: .25rem; overflow: hidden; background: var(--line);
  margin: .75rem 0 .35rem; }
.bar span { min-width: 2px; }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1.25rem; color: var(--soft); font-size: .875rem;
  padding: 0; margin: 0; list-style: none; }
.key i { display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin-right: .4rem; }
.l0 { background: var(--level0); } .l1 { background: var(--level1); }
.l2 { background: var(--level2); } .l3 { background: var(--level3); }
article { border-top: 1px solid var(--line); padding: 1rem 0; }
.trio { display: grid; grid-template-columns: repeat(3, minmax(0, var(--side))); gap: .75rem;
  margin-top: .5rem; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: .875rem; }
img { display: block; width: 100%; height: auto; outline: 1px solid var(--line); background: #000; }
pre { white-space: pre-wrap; background: var(--panel); padding: .75rem 1rem; border-radius: .25rem;
  font-size: .875rem; }
@media (max-width: 34rem) { .trio { gap: .4rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_EQUAL_PAIRS = 2
_SMALLEST_PX = 200  # smaller crops are shown enlarged, larger ones as they are where there is room
_LEVELS = ("identical", "differ by 1 level of 255", "differ by 2", "differ by more")


def show(text: str) -> str:
    """Return text for HTML, without anything that a browser or a terminal would obey: the pages' door."""
    return escape(clean(text))


def draw_page(result: Fidelity, pictures: Pictures) -> str:
    """Return the page as HTML."""
    verdict = describe_verdict(result)
    kind = verdict.partition(":")[0]
    compared = list_comparisons(result)
    pairs = [
        _pictures(found, pictures.originals if found is result.originals else pictures.pillow, result)
        for _, found in compared
    ]
    rest = describe_rest(result)
    aside = f"<h2>Besides</h2>\n<pre>{chr(10).join(map(show, rest))}</pre>" if rest else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>feedrate fidelity: {show(result.source)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Are these Pillow's pixels?</h1>
<p class="soft">{show(describe_sample(result))}</p>
<p class="verdict {kind if kind in ("good", "bad") else ""}">{show(verdict[:1].upper() + verdict[1:])}</p>
{"".join(_summary(title, found) for title, found in compared)}
{aside}
{"".join(pairs)}
<p class="soft"><small>{show(describe_machine(result.machine))}</small></p>
</body>
</html>
"""


def _summary(title: str, found: Comparison) -> str:
    # The bar and its key say what the line on pixels says.
    lines = "".join(
        f"<dt>{show(name)}</dt><dd>{show(text)}</dd>"
        for name, text in describe_comparison(found)
        if name != "pixels"
    )
    return f"""
<section>
<h2>{show(title[:1].upper() + title[1:])}</h2>
<dl>{lines}</dl>
{_bar(found)}
</section>"""


def _pictures(found: Comparison, pictures: Sequence[Picture], result: Fidelity) -> str:
    other = "Pillow" if found is result.pillow else "the originals"
    if found.mean_psnr_db is None:
        # Equal pictures have nothing to show but that they are what one thinks they are.
        pictures, title = pictures[:_EQUAL_PAIRS], f"For a look: equal to {other}"
    else:
        title = f"Differ most from {other}"
    return f"""
<section style="--side: {max(result.image_side, _SMALLEST_PX)}px">
<h2>{title}</h2>
{"".join(_article(one, "Pillow" if found is result.pillow else "original, by Pillow") for one in pictures)}
</section>"""


def _bar(found: Comparison) -> str:
    shares = list(zip(found.level_shares, _LEVELS, strict=True))
    parts = "".join(
        f'<span class="l{i}" style="flex: {share:.6f} 0 0"></span>'
        for i, (share, _) in enumerate(shares)
        if share
    )
    key = "".join(
        f'<li><i class="l{i}"></i>{format_share(share)} {name}</li>' for i, (share, name) in enumerate(shares)
    )
    return f'<div class="bar" role="presentation">{parts}</div><ul class="key">{key}</ul>'


def _article(picture: Picture, other: str) -> str:
    one = picture.difference
    left, top, right, bottom = one.box
    flipped = ", flipped" if one.flip else ""
    crop = f"{right - left} x {bottom - top} pixels at {left}, {top} of {one.width} x {one.height}{flipped}"
    figures = "".join(
        f'<figure><img alt="{show(alt)}" src="{_uri(png)}"><figcaption>{show(alt)}</figcaption></figure>'
        for alt, png in (
            ("feedrate", picture.ours),
            (other, picture.theirs),
            ("no difference" if one.psnr_db is None else f"difference x {picture.gain}", picture.amplified),
        )
    )
    return f"""
<article>
<h3>{show(one.name)}</h3>
<p class="soft">{show(describe_difference(one))}; {crop}</p>
<div class="trio">{figures}</div>
</article>"""


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def describe_machine(machine: Machine) -> str:
    """Return the line at the foot of a page: what was typed, and where."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    command = " ".join(("feedrate", *machine.command_line))
    return f"{command} | {machine.cpu_model}, Python {machine.python}, {versions}"
