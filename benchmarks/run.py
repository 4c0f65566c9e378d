# SPDX-License-Identifier: Apache-2.0
"""What does `feedrate run` save? Scripts written as public ones are, bare and under it, in turn.

    python benchmarks/run.py --json benchmarks/results/run.json
    python benchmarks/run.py --only plain --rounds 1 --images 200

Each runs as a command, with a cache of entry points that is empty at first. The moments at which its lines
arrive, and the CPU time of all processes below it at those moments, give the first epoch (with the proof in
it) and the later ones; what happens before ("start") is noted beside them. Ratios are of neighbouring runs.
The cores that others used meanwhile stand in the JSON: figures of a busy machine show it.
An existing JSON file is added to: cases that are run again are replaced.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from peers import say  # noqa: E402
from run_data import make_data  # noqa: E402

from doctor_corpus.run_case import die_with_parent, end, foreign_cpu_s, tree_cpu_s  # noqa: E402
from feedrate.machine.describe import describe_machine  # noqa: E402

SCRIPTS = Path(__file__).parent / "run_scripts"
LOOKALIKES = REPOSITORY / "tests" / "lookalikes"
EPOCH = re.compile(r"epoch \d+: (\d+) images")
BARE, RUN = "bare", "run"


@dataclass(frozen=True)
class Case:
    """A script, what must be reached, and how many of all images make an epoch of some seconds."""

    name: str
    script: str
    later: float  # times less CPU time, and times the rate, at least
    first: float = 0.0
    share: float = 1.0  # of the images


CASES = (
    Case("plain", "train_imagefolder.py", 1.8, first=1.3),
    Case("bicubic", "pretrain_mae.py", 1.5),
    Case("masks", "train_segmentation.py", 1.5),
    Case("bytes", "train_bytes.py", 1.5),
    Case("crops by hand", "train_crops.py", 1.5),
    Case("clip", "embed_clip.py", 1.4),
    Case("ten crops", "pretrain_dino.py", 1.1, share=0.2),
    Case("validation", "validate.py", 1.4),
    Case("statistics", "measure_statistics.py", 0.98),
    Case("png", "train_png.py", 0.98),
    Case("cv2", "train_cv2.py", 0.98),
    Case("no images", "train_tokens.py", 0.98),
)


@dataclass(frozen=True)
class Part:
    """A part of a run: the start (no images), or an epoch."""

    images: int
    wall_s: float
    cpu_s: float


def main() -> int:
    arguments = parse()
    if arguments.draw:
        print(draw(json.loads(Path(arguments.draw).read_text())["rows"]))
        return 0
    target = Path(arguments.json) if arguments.json else None
    rows = json.loads(target.read_text())["rows"] if target and target.exists() else []
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        row = compare(case, arguments)
        rows = [known for known in rows if known["case"] != case.name] + [row]
        if target:
            document = {"question": (__doc__ or "").splitlines()[0], "rows": rows}
            target.write_text(json.dumps(document, indent=1) + "\n")
    print(draw(rows))
    return 0


def compare(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a script's epochs of all rounds, both ways, and the medians of the rounds' ratios."""
    count = max(64, round(arguments.images * case.share))
    data = make_data(Path(arguments.data), count, seed=arguments.seed, photos=arguments.photos)
    epochs: dict[str, list[list[dict[str, float]]]] = {BARE: [], RUN: []}
    others: list[float] = []
    reports = []
    for number in range(arguments.rounds):
        say(f"{case.name}, round {number + 1} of {arguments.rounds}")
        for way in (BARE, RUN) if number % 2 == 0 else (RUN, BARE):
            parts, foreign, report = measure(case, way, data, arguments)
            epochs[way].append([asdict(part) for part in parts])
            others.append(foreign)
            reports += [report] if report else []
    settings = ("rounds", "epochs", "workers", "images", "seed")
    return {
        "case": case.name,
        "bars": {"first": case.first, "later": case.later},
        "ratios": find_ratios(epochs),
        "start_and_epochs": epochs,
        "others_used_cores": others,
        "report": reports[-1] if reports else None,
        "settings": {name: getattr(arguments, name) for name in settings}
        | {
            "torchvision": find_torchvision(arguments)[0],
            "photos": "made" if not arguments.photos else "given",
        },
        "machine": asdict(describe_machine(["benchmarks/run.py"])),
    }


def measure(case: Case, way: str, data: Path, arguments: argparse.Namespace) -> tuple[list[Part], float, Any]:
    """Return the start and the epochs of one run, the cores that others used, and what `run` says it did."""
    with tempfile.TemporaryDirectory(prefix="feedrate-run-") as scratch, tempfile.TemporaryFile() as errors:
        began, foreign_s = time.perf_counter(), foreign_cpu_s()
        process = subprocess.Popen(
            make_command(case, way, data, Path(scratch), arguments),
            env=make_environ(arguments), stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        moments = [Part(0, began, 0.0)]
        for line in process.stdout or ():
            if line == "start\n" or EPOCH.match(line):
                found = EPOCH.match(line)
                images = int(found[1]) if found else 0
                moments.append(Part(images, time.perf_counter(), tree_cpu_s(process.pid)))
        code = process.wait()
        foreign_s = foreign_cpu_s() - foreign_s
        end(process)
        if code or len(moments) < 4:
            errors.seek(0)
            raise RuntimeError(f"{case.name}, {way}: exit code {code}\n{errors.read().decode()}")
        parts = [
            Part(after.images, after.wall_s - before.wall_s, after.cpu_s - before.cpu_s)
            for before, after in itertools.pairwise(moments)
        ]
        report = Path(scratch) / "run.json"
        said = json.loads(report.read_text()) if report.exists() else None
        return parts, max(0.0, foreign_s / (time.perf_counter() - began)), said


def make_command(case: Case, way: str, data: Path, scratch: Path, arguments: argparse.Namespace) -> list[str]:
    options = {"data": data, "epochs": arguments.epochs, "workers": arguments.workers, "seed": arguments.seed}
    words = [f"--{name}={value}" for name, value in options.items()]
    script = [sys.executable, str(SCRIPTS / case.script), *words]
    if way == BARE:
        return script
    tool = [sys.executable, "-m", "feedrate", "run", "--cache", str(scratch / "cache")]
    return [*tool, "--json", str(scratch / "run.json"), "--", *script]


def make_environ(arguments: argparse.Namespace) -> dict[str, str]:
    _, folder = find_torchvision(arguments)
    more = [folder] if folder else []
    path = os.pathsep.join([*more, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)


def find_torchvision(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """Return which torchvision the scripts import, and the folder that they find it in."""
    if arguments.torchvision:
        return "given", arguments.torchvision
    if importlib.util.find_spec("torchvision"):
        return "installed", None
    return "look-alike", str(LOOKALIKES)


def find_ratios(epochs: Mapping[str, list[list[dict[str, float]]]]) -> dict[str, float]:
    """Return how many times less CPU time an image takes under `run`, and how many times the rate it has."""
    seen: dict[str, list[float]] = {}
    for bare, run in zip(epochs[BARE], epochs[RUN], strict=True):
        for name, which in (("first", slice(1, 2)), ("later", slice(2, None))):
            for cost in ("cpu_s", "wall_s"):
                before, after = (median(e[cost] / e["images"] for e in way[which]) for way in (bare, run))
                seen.setdefault(f"{name}_{cost}", []).append(before / after)
    return {name: median(ratios) for name, ratios in seen.items()}


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown table."""
    lines = [
        "| script | bare, CPU time an image | later epochs: CPU time | rate | first epoch: CPU time | rate "
        "| wanted | others used |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        ratios, bars = row["ratios"], row["bars"]
        later = [e["cpu_s"] / e["images"] for run in row["start_and_epochs"][BARE] for e in run[2:]]
        cells = [row["case"], f"{1e3 * median(later):.2f} ms"]
        cells += [
            f"{ratios[f'{part}_{cost}']:.2f}x" for part in ("later", "first") for cost in ("cpu_s", "wall_s")
        ]
        wanted = f"{bars['later']}x" + (f", first {bars['first']}x" if bars["first"] else "")
        is_there = min(ratios["later_cpu_s"], ratios["later_wall_s"]) >= bars["later"]
        is_there &= min(ratios["first_cpu_s"], ratios["first_wall_s"]) >= bars["first"]
        cells += [f"{wanted}: {'there' if is_there else 'missed'}"]
        cells += [f"{median(row['others_used_cores']):.2f} cores"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of a run, at least 2: the first counts apart")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--photos", metavar="DIR", help="real photographs, in the place of made ones")
    parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "feedrate-run-data"))
    parser.add_argument("--torchvision", metavar="FOLDER", help="where the scripts find it; none: installed")
    parser.add_argument("--json")
    parser.add_argument("--draw", metavar="JSON", help="draw the table of a finished run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
