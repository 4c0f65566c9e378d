# SPDX-License-Identifier: Apache-2.0
"""Draw docs/kernel.svg from benchmarks/results/kernel-made.json: images per CPU second, decoder by decoder.

python benchmarks/chart.py          writes the chart anew; a test keeps the two together
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "kernel-made.json"
CHART = ROOT / "docs" / "kernel.svg"
TITLES = {
    "photographs": "JPEG, 0.2 megapixel: made as hard to decode as ImageNet's photographs",
    "camera": "JPEG 4:2:0, 12 megapixel: made like pictures of a camera",
    "png": "PNG, 0.2 megapixel: feedrate leaves them to Pillow",
}
WIDTH, NAMES, BARS = 720, 190, 420  # the whole; the column of names; the longest bar
ROW, BAR = 24, 16

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .soft { fill: #59636e; font-size: 12px; }
.ours { fill: #1f6feb; } .ours-text { font-weight: 600; } .theirs { fill: #9aa5b1; }
.reduced { fill: #cfd6dd; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaef; } .soft { fill: #9aa5b1; } .ours { fill: #4b90f5; } .theirs { fill: #6b7683; }
  .reduced { fill: #48515c; }
}
"""


def render(result: dict[str, Any]) -> str:
    """Return the chart: one panel per set, each with a scale of its own: rates differ fortyfold."""
    parts: list[str] = []
    y = 22
    heading = f"Images per second of CPU time: random crops to {result['image_side']} px, flips, one thread"
    parts.append(text(0, y, heading, "title"))
    for one in result["sets"]:
        y += 34
        parts.append(text(0, y, TITLES.get(one["name"], one["name"]), "title"))
        y += 10
        most = max(standing["images_per_cpu_s"] for standing in one["standings"])
        for standing in one["standings"]:
            parts.append(draw_bar(y, standing, most))
            y += ROW
    y += 24
    for line in describe(result):
        parts.append(text(0, y, line, "soft"))
        y += 17
    body = "\n".join(parts)
    label = escape(heading)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
        f'role="img" aria-label="{label}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def draw_bar(y: int, standing: dict[str, Any], most: float) -> str:
    name, rate = standing["contestant"], standing["images_per_cpu_s"]
    kind = "ours" if name == "feedrate" else "reduced" if name.endswith("reduced") else "theirs"
    length = max(1.0, BARS * rate / most)
    value = f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
    style = "ours-text" if kind == "ours" else ""
    baseline = y + BAR - 3
    return "\n".join(
        [
            text(0, baseline, name, style),
            f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>',
            text(NAMES + length + 7, baseline, value, style),
        ]
    )


def describe(result: dict[str, Any]) -> list[str]:
    machine = result["machine"]
    versions = machine["versions"]
    names = {"pillow": "Pillow", "simplejpeg": "simplejpeg", "opencv-python-headless": "OpenCV"}
    shown = ", ".join(f"{name} {versions[key]}" for key, name in names.items() if key in versions)
    command = " ".join(["feedrate", *machine["command_line"]])
    ours = [s for one in result["sets"] for s in one["standings"] if s["contestant"] == "feedrate"]
    is_equal = all(standing["lowest_psnr_db"] is None for standing in ours)
    return [
        "feedrate's pixels are Pillow's"
        + (", every one;" if is_equal else " but for rounding;")
        + " those of simplejpeg and OpenCV are not",
        "reduced: libjpeg decodes at 1/2, 1/4 or 1/8 where the crop allows it, which changes the pixels",
        f"{machine['cpu_model']}, Python {machine['python']}, {shown}",
        f"median of {result['rounds']} interleaved rounds: {command}",
    ]


def text(x: float, y: float, words: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{style}>{escape(words)}</text>'


if __name__ == "__main__":
    CHART.write_text(render(json.loads(RESULT.read_text())))
