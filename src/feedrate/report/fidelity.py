# SPDX-License-Identifier: Apache-2.0
"""`feedrate fidelity` in words for the terminal, and as a page that says the same and shows the pictures."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from feedrate.fidelity.results import Comparison, Fidelity, ImageDifference, Picture, Pictures
from feedrate.progress import Rejection
from feedrate.report.lines import Line, count_words, lay_out
from feedrate.report.page import draw_frame, draw_section, show
from feedrate.units import format_count

_FEW = 3
_EQUAL_PAIRS = 2
_SMALLEST_PX = 200  # smaller crops are shown enlarged, larger ones as they are where there is room
_LEVELS = ("identical", "differ by 1 level of 255", "differ by 2", "differ by more")
_STYLE = """
:root { --unsure: #8a5a00; --level0: #3b7dd8; --level1: #9cc3f5; --level2: #f2b84b; --level3: #d8483b; }
@media (prefers-color-scheme: dark) {
  :root { --unsure: #e3b341; --level1: #86b3ec; --level2: #e0a93f; --level3: #e5604f; } }
.verdict.unsure { border-color: var(--unsure); }
.bar { height: .9rem; } .bar span { min-width: 2px; }
.l0 { background: var(--level0); } .l1 { background: var(--level1); }
.l2 { background: var(--level2); } .l3 { background: var(--level3); }
.trio { display: grid; grid-template-columns: repeat(3, minmax(0, var(--side))); gap: .75rem;
  margin-top: .5rem; }
figcaption { color: var(--soft); }
img { display: block; width: 100%; height: auto; outline: 1px solid var(--line); background: #000; }
@media (max-width: 34rem) { .trio { gap: .4rem; } }
"""


def draw_fidelity(result: Fidelity, width: int | None = None) -> str:
    """Return plain lines, at most a screen of them."""
    lines: list[Line] = [describe_sample(result)]
    for title, comparison in list_comparisons(result):
        lines += ["", title, *describe_comparison(comparison)]
    rest = describe_rest(result)
    lines += ["", *rest] if rest else []
    return lay_out([*lines, "", describe_verdict(result)], width)


def describe_sample(result: Fidelity) -> str:
    if result.sampled == result.dataset_images:
        sample = f"all {format_count(result.sampled, 'image')}"
    else:
        sample = f"{result.sampled:,} of {format_count(result.dataset_images, 'image')}"
    side = result.image_side
    how = "" if result.interpolation == "bilinear" else f" ({result.interpolation})"
    crops = f"random crops resized to {side} x {side}{how} and flips"
    return f"{result.source}: {sample}, {crops}, seed {result.seed}"


def list_comparisons(result: Fidelity) -> list[tuple[str, Comparison]]:
    """Return each comparison under its title."""
    found = []
    if result.pillow is not None:
        images = format_count(result.pillow.images, "image")
        found.append((f"against Pillow, on the same files: {images} decoded by the kernel", result.pillow))
    if result.originals is not None:
        images = format_count(result.originals.images, "image")
        title = f"against the originals in {result.originals_folder}, through Pillow: {images}"
        found.append((title, result.originals))
    return found


def describe_comparison(found: Comparison) -> list[tuple[str, str]]:
    """Return name and text of each line of a comparison."""
    zero, one, two, more = found.level_shares
    if found.mean_psnr_db is None:
        return [("PSNR", "infinite: every pixel of every image is equal")]
    return [
        ("PSNR", f"{found.mean_psnr_db:.1f} dB on average, {found.lowest_psnr_db:.1f} dB at the lowest"
                 + (f", {found.equal_images:,} of them equal" if found.equal_images else "")),
        ("difference", f"at most {format_count(found.largest_difference, 'level')} of 255"),
        ("pixels", f"{format_share(zero)} identical, {format_share(one)} differ by 1 level, "
                   f"{format_share(two)} by 2, {format_share(more)} by more"),
        ("worst", f"{found.worst[0].name}: {describe_difference(found.worst[0])}"),
    ]  # fmt: skip


def describe_difference(one: ImageDifference) -> str:
    if one.psnr_db is None:
        return "every pixel is equal"
    levels = format_count(one.largest_difference, "level")
    return f"{one.psnr_db:.1f} dB, at most {levels}, {format_share(one.identical_share)} of pixels identical"


def describe_rest(result: Fidelity) -> list[str]:
    """Return what stands beside the comparisons: what proves nothing, and what could not be compared."""
    lines = []
    if result.by_pillow:
        count = sum(result.by_pillow.values())
        why = count_words(result.by_pillow, few=_FEW)
        lines.append(f"proves nothing: {format_count(count, 'image')} went through Pillow anyway ({why})")
    if result.settings and result.originals is None:
        lines.append(f"what {_settings(result.settings)} cost: --originals DIR, the folder it was made of")
    for title, rejections in (
        ("not compared", result.not_compared),
        ("cannot be loaded", result.refused),
        ("no original", result.missing),
    ):
        lines += _rejections(title, rejections)
    return lines


def describe_verdict(result: Fidelity) -> str:
    """Return one sentence, beginning with a word that says it all."""
    limits = f"{result.largest_difference_limit} levels and {result.lowest_psnr_limit_db:.0f} dB"
    outside = sum(c.outside for _, c in list_comparisons(result) if not c.is_good)
    if result.refused:
        images = format_count(len(result.refused), "image")
        return f"bad: {images} cannot be loaded. A pack: 'feedrate verify' it. Files: please report a bug."
    if outside:
        images = format_count(outside, "image")
        return f"bad: more than rounding in {images} (limits: {limits}). Please report this as a bug."
    if not result.is_good:
        return "bad: nothing could be compared."
    if result.pillow is None:
        return "nothing proven: none of these images is for the kernel, so all pixels are Pillow's own."
    if result.pillow.mean_psnr_db is None:
        verdict = "good: exactly Pillow's pixels"
    else:
        verdict = f"good: Pillow's pixels but for rounding (limits: {limits})"
    if result.settings:
        verdict += f" of what the pack holds ({_settings(result.settings)})"
        if result.originals is not None and result.originals.mean_psnr_db is not None:
            verdict += f"; {result.originals.mean_psnr_db:.1f} dB from the originals"
    return verdict + "."


def format_share(share: float) -> str:
    """Return a percentage that is 0 % or 100 % only where nothing is missing."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    return ">99.99%" if share > 0.9999 else f"{100 * share:.2f}%"


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _rejections(title: str, rejections: Sequence[Rejection]) -> list[str]:
    if not rejections:
        return []
    lines = [f"{title}: {format_count(len(rejections), 'image')}"]
    lines += [f"  {one.path}: {one.reason}" for one in rejections[:_FEW]]
    more = len(rejections) - _FEW
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def draw_fidelity_page(result: Fidelity, pictures: Pictures) -> str:
    """Return the page as HTML."""
    verdict = describe_verdict(result)
    kind = verdict.partition(":")[0]
    compared = list_comparisons(result)
    body = "".join(draw_section(title[:1].upper() + title[1:], _summary(found)) for title, found in compared)
    rest = "\n".join(map(show, describe_rest(result)))
    body += draw_section("Besides", f"<pre>{rest}</pre>" if rest else "")
    for _, found in compared:
        shown = pictures.originals if found is result.originals else pictures.pillow
        body += _pictures(found, shown, result)
    return draw_frame(
        f"feedrate fidelity: {result.source}",
        body,
        heading="Are these Pillow's pixels?",
        lead=show(describe_sample(result)),
        verdict=verdict[:1].upper() + verdict[1:],
        tone=kind if kind in ("good", "bad") else "unsure",
        style=_STYLE,
        machine=result.machine,
    )


def _summary(found: Comparison) -> str:
    # The bar and its key say what the line on pixels says.
    lines = "".join(
        f"<dt>{show(name)}</dt><dd>{show(text)}</dd>"
        for name, text in describe_comparison(found)
        if name != "pixels"
    )
    shares = list(enumerate(zip(found.level_shares, _LEVELS, strict=True)))
    parts = "".join(
        f'<span class="l{i}" style="flex: {share:.6f} 0 0"></span>' for i, (share, _) in shares if share
    )
    key = "".join(
        f'<li><i class="l{i}"></i>{show(format_share(share))} {name}</li>' for i, (share, name) in shares
    )
    bar = f'<div class="bar" role="presentation">{parts}</div><ul class="key">{key}</ul>'
    return f'<dl class="facts">{lines}</dl>\n{bar}'


def _pictures(found: Comparison, pictures: Sequence[Picture], result: Fidelity) -> str:
    is_pillow = found is result.pillow
    title = f"Differ most from {'Pillow' if is_pillow else 'the originals'}"
    if found.mean_psnr_db is None:
        # Equal pictures have nothing to show but that they are what one thinks they are.
        pictures, title = pictures[:_EQUAL_PAIRS], title.replace("Differ most from", "For a look: equal to")
    other = "Pillow" if is_pillow else "original, by Pillow"
    side = max(result.image_side, _SMALLEST_PX)
    shown = "".join(_article(one, other) for one in pictures)
    return draw_section(title, f'<div style="--side: {side}px">{shown}</div>')


def _article(picture: Picture, other: str) -> str:
    one = picture.difference
    left, top, right, bottom = one.box
    flipped = ", flipped" if one.flip else ""
    crop = f"{right - left} x {bottom - top} pixels at {left}, {top} of {one.width} x {one.height}{flipped}"
    gained = "no difference" if one.psnr_db is None else f"difference x {picture.gain}"
    figures = "".join(
        f'<figure><img alt="{show(alt)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{show(alt)}</figcaption></figure>"
        for alt, png in (("feedrate", picture.ours), (other, picture.theirs), (gained, picture.amplified))
    )
    return f"""
<article>
<h3>{show(one.name)}</h3>
<p class="soft">{show(describe_difference(one))}; {crop}</p>
<div class="trio">{figures}</div>
</article>"""
