# SPDX-License-Identifier: Apache-2.0
"""`feedrate fidelity` in words: for the terminal, and for the page, which says the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from feedrate.fidelity.results import Comparison, Fidelity, ImageDifference
from feedrate.progress import Rejection
from feedrate.report.lines import Line, lay_out
from feedrate.units import format_count

_FEW = 3


def draw_fidelity(result: Fidelity, width: int | None = None) -> str:
    """Return plain lines, at most a screen of them."""
    lines: list[Line] = [describe_sample(result)]
    for title, comparison in list_comparisons(result):
        lines += ["", title, *describe_comparison(comparison)]
    lines += ["", *describe_rest(result)] if describe_rest(result) else []
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
        ("worst", describe_image(found.worst[0])),
    ]  # fmt: skip


def describe_image(one: ImageDifference) -> str:
    return f"{one.name}: {describe_difference(one)}"


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
        why = _counts(result.by_pillow)
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


def _counts(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(_FEW)
    rest = sum(counts.values()) - sum(count for _, count in most)
    words = [f"{count:,} {reason}" for reason, count in most]
    return ", ".join([*words, *([f"{rest:,} others"] if rest else [])])


def _rejections(title: str, rejections: Sequence[Rejection]) -> list[str]:
    if not rejections:
        return []
    named = [f"  {one.path}: {one.reason}" for one in rejections[:_FEW]]
    more = len(rejections) - len(named)
    return [
        f"{title}: {format_count(len(rejections), 'image')}",
        *named,
        *([f"  and {more:,} more"] if more else []),
    ]
