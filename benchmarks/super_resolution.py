# SPDX-License-Identifier: Apache-2.0
"""Random parts of full-size photographs, in a job whose memory is smaller than the decoded pictures.

    python benchmarks/super_resolution.py [--images 160] [--limit 1.2GB] [--json OUT.json]

Makes the photographs (2.8 megapixels each), packs them, and runs examples/super_resolution.py once per feed,
each under the memory limit (a control group; needs root, else it says that there was none). Every epoch's
images per second go into the JSON; `--draw` draws docs/super-resolution.svg from the committed one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from feedrate.units import format_bytes, parse_bytes

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "super-resolution.json"
CHART = ROOT / "docs" / "super-resolution.svg"
EXAMPLE = ROOT / "examples" / "super_resolution.py"
LIMITER = ROOT / "tests" / "doctor_corpus" / "surroundings.py"
NOT_ALLOWED = 77
WIDTH, HEIGHT = 2040, 1356  # as the pictures of DIV2K
FEEDS = {
    "plain": "DataLoader + Pillow",
    "dictionary": "the same, and a dictionary",
    "cached": "feedrate.cached, same DataLoader",
    "loader": "feedrate.Loader with a cache",
}
EPOCH = re.compile(r"epoch (\d+): ([0-9.]+) images/s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--limit", type=parse_bytes, default="1.2GB", metavar="SIZE")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where the photographs are, or will be; default: a temporary one")
    parser.add_argument("--feeds", nargs="+", choices=FEEDS, default=list(FEEDS))
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--draw", action="store_true", help=f"only draw {CHART.name} from {RESULT.name}")
    arguments = parser.parse_args()
    if arguments.draw:
        CHART.write_text(render(json.loads(RESULT.read_text())))
        return 0
    with tempfile.TemporaryDirectory(prefix="feedrate-super-") as temporary:
        folder = Path(arguments.folder or temporary)
        document = measure(arguments, folder)
    text = json.dumps(document, indent=1) + "\n"
    if arguments.json:
        Path(arguments.json).write_text(text)
    print(text if not arguments.json else draw_table(document))
    return 0


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from feedrate.machine.describe import describe_machine

    options = {
        "images": arguments.images,
        "limit": f"{arguments.limit // 10**6}MB",
        "epochs": arguments.epochs,
    }
    command = ["python", "benchmarks/super_resolution.py"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    photos, pack, scratch = prepare(folder, arguments.images)
    files = list(photos.glob("*.jpg"))
    runs = []
    for feed in arguments.feeds:
        say(f"{feed} ...")
        example = [
            sys.executable, str(EXAMPLE), str(photos), "--feed", feed, "--pack", str(pack),
            "--scratch", str(scratch), "--epochs", str(arguments.epochs), "--workers", str(arguments.workers),
        ]  # fmt: skip
        run = run_under_limit(example, arguments.limit)
        runs.append({"feed": feed, **run})
        say(f"{feed}: {', '.join(f'{rate:.0f}' for rate in run['images_per_s'])} images/s; {run['end']}")
    return {
        "benchmark": "super-resolution",
        "machine": asdict(describe_machine(command)),
        "images": len(files),
        "width": WIDTH,
        "height": HEIGHT,
        "file_bytes": sum(path.stat().st_size for path in files),
        "decoded_bytes": len(files) * WIDTH * HEIGHT * 3,
        "limit_bytes": arguments.limit,
        "workers": arguments.workers,
        "runs": runs,
    }


def prepare(folder: Path, images: int) -> tuple[Path, Path, Path]:
    from decoders import make_camera_picture

    from feedrate import PackOptions, pack

    photos, scratch = folder / "photos", folder / "scratch"
    for path in (photos, scratch):
        path.mkdir(parents=True, exist_ok=True)
    for number in range(images):
        path = photos / f"{number:04d}.jpg"
        if not path.exists():
            path.write_bytes(make_camera_picture(number, width=WIDTH, height=HEIGHT))
    packed = folder / f"photos-{images}.pack"
    if not (packed / "pack.json").exists():
        pack(photos, packed, PackOptions())
    return photos, packed, scratch


def run_under_limit(command: list[str], limit_bytes: int) -> dict[str, Any]:
    limited = [sys.executable, str(LIMITER), "--memory", str(limit_bytes), "--", *command]
    shown = subprocess.run(limited, capture_output=True, text=True, check=False)
    is_limited = shown.returncode != NOT_ALLOWED
    if not is_limited:
        say("no memory limit can be set here (that needs root): running without")
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
    rates = [float(found[2]) for found in EPOCH.finditer(shown.stdout)]
    return {
        "images_per_s": rates,
        "end": say_end(shown),
        "is_limited": is_limited,
        "said": EPOCH.sub("", shown.stdout).split("\n")[len(rates) :],
    }


def say_end(shown: subprocess.CompletedProcess[str]) -> str:
    if shown.returncode == 0:
        return "finished"
    if (
        shown.returncode in (-9, 137)
        or "killed by signal: Killed" in shown.stderr
        or "is killed by signal" in shown.stderr
    ):
        return "killed: out of memory"
    last = shown.stderr.strip().splitlines()[-1:] or ["no message"]
    return f"failed: {last[0]}"


def draw_table(document: dict[str, Any]) -> str:
    lines = ["| images/s in epoch | " + " | ".join(str(n + 1) for n in range(longest(document))) + " | end |"]
    lines.append("|---" * (longest(document) + 2) + "|")
    for run in document["runs"]:
        cells = [f"{rate:.0f}" for rate in run["images_per_s"]]
        cells += [""] * (longest(document) - len(cells))
        lines.append(f"| {FEEDS[run['feed']]} | {' | '.join(cells)} | {run['end']} |")
    return "\n".join(lines)


def longest(document: dict[str, Any]) -> int:
    return max((len(run["images_per_s"]) for run in document["runs"]), default=0)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


PAGE, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 720, 64, 58, 420, 240
COLOURS = {"plain": "theirs", "dictionary": "bad", "cached": "ours", "loader": "best"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .soft { fill: #59636e; font-size: 12px; }
.line { fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round; }
.dot { fill: currentColor; } .grid { stroke: #d5dae0; stroke-width: 1; }
.theirs { color: #6b7683; } .bad { color: #c0272d; } .ours { color: #1f6feb; } .best { color: #1a7f37; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaef; } .soft { fill: #9aa5b1; } .grid { stroke: #363d46; }
  .theirs { color: #9aa5b1; } .bad { color: #ff7b72; } .ours { color: #4b90f5; } .best { color: #4ac26b; }
}
"""


def render(document: dict[str, Any]) -> str:
    """Return the plot: images per second over epochs, one line per feed; the scale is logarithmic."""
    epochs = max(longest(document), 2)
    rates = [rate for run in document["runs"] for rate in run["images_per_s"]]
    scale = Scale(min(rates), max(rates), epochs)
    heading = (
        f"Random {96}-pixel parts of {document['images']} photographs: images per second, epoch by epoch"
    )
    parts = [text(0, 22, heading, "title"), text(0, 41, describe_case(document), "soft")]
    for tick in scale.ticks():
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 8, y + 4, f"{tick:,}", "soft", "end"))
    below = TOP + PLOT_HEIGHT + 20
    parts += [text(scale.x(n), below, f"epoch {n}", "soft", "middle") for n in range(1, epochs + 1)]
    labels = []
    for run in document["runs"]:
        drawn, label = draw_run(run, scale)
        parts += drawn
        labels.append(label)
    parts += place_labels(labels)
    y = TOP + PLOT_HEIGHT + 48
    for line in describe_machine_lines(document):
        parts.append(text(0, y, line, "soft"))
        y += 17
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PAGE} {y}" width="{PAGE}" height="{y}" '
        f'role="img" aria-label="{escape(heading)}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


class Scale:
    """Rates on a logarithmic axis from a power of ten's 1, 2 or 5 to another."""

    def __init__(self, least: float, most: float, epochs: int) -> None:
        steps = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
        self.low = max((step for step in steps if step <= least), default=1)
        self.high = min((step for step in steps if step >= most), default=steps[-1])
        self.steps = [step for step in steps if self.low <= step <= self.high]
        self.epochs = epochs

    def ticks(self) -> list[int]:
        return self.steps

    def x(self, epoch: int) -> float:
        return LEFT + 24 + (PLOT_WIDTH - 48) * (epoch - 1) / (self.epochs - 1)

    def y(self, rate: float) -> float:
        from math import log

        share = log(max(rate, self.low) / self.low) / log(max(self.high / self.low, 1.01))
        return TOP + PLOT_HEIGHT * (1 - share)


def draw_run(run: dict[str, Any], scale: Scale) -> tuple[list[str], tuple[float, str, str]]:
    kind = COLOURS[run["feed"]]
    points = [(scale.x(number), scale.y(rate)) for number, rate in enumerate(run["images_per_s"], start=1)]
    parts = (
        [f'<path class="line {kind}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>']
        if points
        else []
    )
    parts += [f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points]
    words = FEEDS[run["feed"]]
    if run["end"] != "finished":
        x, y = points[-1] if points else (scale.x(1), TOP + PLOT_HEIGHT)
        cross = f"M{x - 6:.1f} {y - 6:.1f} l12 12 M{x - 6:.1f} {y + 6:.1f} l12 -12"
        parts.append(f'<path class="line {kind}" d="{cross}"/>')
        words += f": {run['end'].partition(':')[0]} in epoch {len(points) + 1}"
    return parts, (points[-1][1] if points else TOP + PLOT_HEIGHT, words, kind)


def place_labels(labels: list[tuple[float, str, str]]) -> list[str]:
    """Beside the lines' ends, moved apart where two are close."""
    parts, last = [], float("-inf")
    for wanted, words, kind in sorted(labels):
        y = last = max(wanted, last + 32)
        first, _, second = words.partition(", ")
        parts.append(f'<circle class="dot {kind}" cx="{LEFT + PLOT_WIDTH + 12}" cy="{y:.1f}" r="4"/>')
        parts.append(text(LEFT + PLOT_WIDTH + 22, y + (4 if not second else -2), first))
        if second:
            parts.append(text(LEFT + PLOT_WIDTH + 22, y + 12, second, "soft"))
    return parts


def describe_case(document: dict[str, Any]) -> str:
    files, decoded = format_bytes(document["file_bytes"]), format_bytes(document["decoded_bytes"])
    limit = format_bytes(document["limit_bytes"])
    job = (
        f"in a job limited to {limit}"
        if all(run["is_limited"] for run in document["runs"])
        else "without a limit"
    )
    size = f"{document['width']} x {document['height']}"
    return f"{size} pixels each; {files} as files, {decoded} decoded, {job}; {document['workers']} workers"


def describe_machine_lines(document: dict[str, Any]) -> list[str]:
    machine = document["machine"]
    return [
        f"{machine['cpu_model']}, {machine['usable_cores']} cores, Python {machine['python']}; "
        "a network of three convolutions is trained",
        " ".join(machine["command_line"]),
    ]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{style}{place}>{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main())
