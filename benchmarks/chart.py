# SPDX-License-Identifier: Apache-2.0
"""Draw charts from benchmarks/results.

docs/kernel.svg     kernel-made.json: images per CPU second, decoder by decoder
docs/feeding.svg    feeding-cores.json: what a GPU gets of what it could train on, by cores and decoder

python benchmarks/chart.py          writes the charts anew; a test keeps them and the results together
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = Path(__file__).parent / "results", ROOT / "docs"
TITLES = {
    "photographs": "JPEG, 0.2 megapixel: made as hard to decode as ImageNet's photographs",
    "camera": "JPEG 4:2:0, 12 megapixel: made like pictures of a camera",
    "png": "PNG, 0.2 megapixel: feedrate leaves them to Pillow",
}
WIDTH, NAMES, BARS = 720, 190, 420  # the whole; the column of names; the longest bar
ROW, BAR = 24, 16
MODELS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "densenet121": "DenseNet-121"}
MODES = {"train": "training", "infer": "inference"}
DECODERS = {
    "cpu": 'decode="cpu"',
    "gpu": 'decode="gpu"',
    "auto": 'decode="auto", the default',
    "cache": "from a cache on the GPU",
}
# Two panels side by side: the column of cores, the bar of the ceiling, a bar, and what is between cores.
PANEL, CORES, CEILING, THIN, GAP = 366, 62, 240, 11, 7

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
FEEDING_STYLE = """
.small { font-size: 11px; } .ceiling { stroke: #59636e; stroke-dasharray: 3 3; }
.cpu { fill: #9aa5b1; } .gpu { fill: #7db0f7; } .auto { fill: #1f6feb; } .cache { fill: #2da44e; }
@media (prefers-color-scheme: dark) { .ceiling { stroke: #9aa5b1; } .cpu { fill: #6b7683; } }
"""


def render_kernel(result: dict[str, Any]) -> str:
    """Return the chart of decoders: a panel per set, each with a scale of its own: rates differ fortyfold.

    It shows the first job, crops; all of them are in a table (figures.py).
    """
    parts: list[str] = []
    y = 22
    heading = f"Images per second of CPU time: random crops to {result['image_side']} px, flips, one thread"
    parts.append(text(0, y, heading, "title"))
    for one in result["sets"]:
        y += 34
        parts.append(text(0, y, TITLES.get(one["name"], one["name"]), "title"))
        y += 10
        standings = one["tasks"][0]["standings"]
        most = max(standing["images_per_cpu_s"] for standing in standings)
        for standing in standings:
            parts.append(draw_bar(y, standing, most))
            y += ROW
    y += 24
    for line in describe(result):
        parts.append(text(0, y, line, "soft"))
        y += 17
    return frame(heading, parts, y)


def frame(heading: str, parts: list[str], height: int, style: str = STYLE) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(heading)}">\n'
        f"<style>{style}</style>\n{body}\n</svg>\n"
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
            rectangle(kind, NAMES, y, length, BAR),
            text(NAMES + length + 7, baseline, value, style),
        ]
    )


def describe(result: dict[str, Any]) -> list[str]:
    machine = result["machine"]
    versions = machine["versions"]
    names = {"pillow": "Pillow", "simplejpeg": "simplejpeg", "opencv-python-headless": "OpenCV"}
    shown = ", ".join(f"{name} {versions[key]}" for key, name in names.items() if key in versions)
    command = f"python benchmarks/{' '.join(machine['command_line'])}"
    tasks = [task for one in result["sets"] for task in one["tasks"]]
    ours = [s for task in tasks for s in task["standings"] if s["contestant"] == "feedrate"]
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


def render_feeding(result: dict[str, Any]) -> str:
    """Return the chart of fed GPUs: a panel per network, bars as long as the share of its ceiling."""
    heading = f"Share of what the {result['gpu']} can train on, by cores and by who decodes"
    parts = [text(0, 22, heading, "title")]
    shown = [kind for kind in DECODERS if any(one["decode"] == kind for one in result["results"])]
    x = 0.0
    for kind in shown:
        parts += [rectangle(kind, x, 34, 10, 10), text(x + 15, 43, DECODERS[kind], "soft")]
        x += 31 + 6.9 * len(DECODERS[kind])
    parts += [f'<path class="ceiling" d="M{x:.0f} 34v10"/>', text(x + 7, 43, "ceiling", "soft")]
    networks = list(dict.fromkeys((one["model"], one["mode"]) for one in result["results"]))
    y = 56
    for first in range(0, len(networks), 2):
        bottoms = []
        for column, network in enumerate(networks[first : first + 2]):
            runs = [one for one in result["results"] if (one["model"], one["mode"]) == network]
            drawn, bottom = draw_network(column * PANEL, y, network, runs, shown)
            parts += drawn
            bottoms.append(bottom)
        y = max(bottoms) + 8
    y += 14
    for line in describe_feeding(result):
        parts.append(text(0, y, line, "soft"))
        y += 17
    return frame(heading, parts, y, STYLE + FEEDING_STYLE)


def draw_network(
    x: int, y: int, network: tuple[str, str], runs: list[dict[str, Any]], shown: list[str]
) -> tuple[list[str], int]:
    """Return the parts of one panel, and where it ends."""
    model, mode = network
    ceiling = median(one["ceiling"] for one in runs)
    words = f"{MODELS.get(model, model)}, {MODES.get(mode, mode)}: {ceiling:,.0f} images/s"
    parts = [text(x, y + 16, words, "title")]
    top = y = y + 26
    for cores in sorted({one["cores"] for one in runs}):
        here = {one["decode"]: one["share_of_ceiling"] for one in runs if one["cores"] == cores}
        parts.append(text(x, y + 9, f"{cores} core{'s' * (cores > 1)}", "small"))
        for kind in (kind for kind in shown if kind in here):
            length = CEILING * here[kind]
            parts.append(rectangle(kind, x + CORES, y, length, THIN - 1))
            parts.append(text(x + CORES + max(length, CEILING) + 6, y + 9, f"{here[kind]:.0%}", "small"))
            y += THIN
        y += GAP
    parts.append(f'<path class="ceiling" d="M{x + CORES + CEILING} {top - 3}V{y - GAP + 2}"/>')
    return parts, y


def describe_feeding(result: dict[str, Any]) -> list[str]:
    call = result["calls"][-1]
    siblings = list(call["siblings"].values())
    groups = len(siblings) if None in siblings else len(set(siblings))
    cores = f"{len(siblings)} CPUs" + (f", hyperthreads of {groups} cores" if groups < len(siblings) else "")
    return [
        "the ceiling is the same loop on one batch that is on the GPU already; bf16, channels-last, batch "
        f"{result['batch']}",
        f"{call['machine']['cpu_model']}, {cores}, torch {result['torch']}; held to the cores by affinity",
        f"median of {call['rounds']} rounds of {call['seconds']:g} s: "
        "python benchmarks/feeding_cores.py FOLDER",
    ]


def rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" width="{max(width, 1.0):.1f}" height="{height:.0f}"'
    return f'<rect class="{kind}" {place} rx="2"/>'


CHARTS = (
    (RESULTS / "kernel-made.json", DOCS / "kernel.svg", render_kernel),
    (RESULTS / "feeding-cores.json", DOCS / "feeding.svg", render_feeding),
)

if __name__ == "__main__":
    for path, chart, render in CHARTS:
        if path.exists():
            chart.write_text(render(json.loads(path.read_text())))
