# SPDX-License-Identifier: Apache-2.0
"""How fast is feedrate against other loaders at the same task, on your machine and your JPEGs?

The others live in environments of their own, since they rarely agree on versions. Name each by its Python;
what can be imported there takes part: torch's DataLoader (torch, simplejpeg, opencv-python-headless), litdata
(the same and litdata), DALI, tf.data (tensorflow) and FFCV (ffcv, torch, pillow). DataLoader + Pillow runs in
feedrate's own.

    python benchmarks/peers.py FOLDER --env torch=envs/torch/bin/python --json OUT.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peer_feeds.task import Task, list_jpegs

from feedrate import PackOptions, Recode, pack
from feedrate.bench.loader import Contestant, compare, run_rounds, sum_up
from feedrate.bench.results import BenchRun
from feedrate.lab.child import RunFailed, run_in_process
from feedrate.lab.loader import FILES, NAMES, PACK, FeedOptions
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.units import format_bytes, format_rate, format_seconds

ORIGINALS, RECODED = "feedrate", "feedrate, --quality 90"
RECODES = {ORIGINALS: Recode(), RECODED: Recode(quality=90)}


@dataclass(frozen=True, slots=True)
class Peer:
    """A module of `peer_feeds`, what it needs, and which pack of feedrate stores the same pixels."""

    title: str
    module: str
    needs: tuple[str, ...]
    has_pack: bool = False
    against: str = ORIGINALS


PEERS = (
    Peer("DataLoader + simplejpeg", "dataloader", ("torch", "simplejpeg", "cv2")),
    Peer("litdata + simplejpeg", "litdata_chunks", ("litdata", "torch", "simplejpeg", "cv2"), has_pack=True),
    Peer("DALI, CPU", "dali", ("nvidia.dali",)),
    Peer("tf.data", "tfdata", ("tensorflow",)),
    # FFCV encodes every image anew, which makes files smaller and faster to decode.
    Peer("FFCV, JPEG", "ffcv_beton", ("ffcv", "torch", "PIL"), has_pack=True, against=RECODED),
)
PACKAGES = ("torch", "numpy", "pillow", "simplejpeg", "opencv-python-headless", "opencv-python", "litdata",
            "ffcv", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "tensorflow", "tensorflow-cpu")  # fmt: skip
HEAD = """| loader | rate | feedrate is x times as fast | CPU per image | first batch | memory (PSS) |
|---|---|---|---|---|---|"""

# Runs in an environment that knows nothing of feedrate.
_LOOK = """
import importlib.metadata, importlib.util, json, sys

def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False

def find_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

modules, packages = json.loads(sys.argv[1])
print(json.dumps([[m for m in modules if is_there(m)], {p: v for p in packages if (v := find_version(p))}]))
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A peer in an environment."""

    peer: Peer
    name: str
    python: str


def main() -> int:
    arguments = parse()
    found, versions = find_entries(dict(arguments.env))
    images = len(list_jpegs(arguments.folder))
    if not images:
        return fail(f"no JPEGs in {arguments.folder}")
    with tempfile.TemporaryDirectory(prefix="feedrate-peers-", dir=arguments.scratch) as scratch:
        repeat = max(1, math.ceil(arguments.epoch_images / images))
        task = Task(arguments.folder, scratch, arguments.batch_size, arguments.threads, repeat)
        entries, failures = try_entries(found, task)
        contestants, pythons = line_up(entries, task, arguments.epochs, images)
        runs = run_rounds(
            contestants,
            arguments.rounds,
            say=say,
            runner=lambda function, values: run_in_process(
                function, values, python=pythons.get(function, sys.executable)
            ),
        )
    rows = [describe(contestant.name, runs, entries) for contestant in contestants]
    print(HEAD)
    for row in sorted(rows, key=lambda row: -row["images_per_s"]):
        print(draw(row))
    if arguments.json:
        kept = ("rounds", "epochs", "epoch_images", "batch_size", "threads")
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "rows": rows,
            "images": images,
            "repeat": repeat,
            "settings": {name: getattr(arguments, name) for name in kept},
            "versions": versions,
            "failures": failures,
            "runs": [asdict(run) for run in runs],
            "machine": asdict(describe_machine(["peers.py", "FOLDER"])),
        }
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def find_entries(environments: Mapping[str, str]) -> tuple[list[Entry], dict[str, dict[str, str]]]:
    """Return which peers can run where, and the versions of what is installed there."""
    entries: list[Entry] = []
    versions = {}
    modules = sorted({module for peer in PEERS for module in peer.needs})
    for name, python in environments.items():
        asked = json.dumps([modules, PACKAGES])
        done = subprocess.run([python, "-c", _LOOK, asked], capture_output=True, text=True, check=True)
        there, versions[name] = json.loads(done.stdout)
        able = [peer for peer in PEERS if set(peer.needs) <= set(there)]
        taken = {entry.peer.module for entry in entries}
        entries += [Entry(peer, peer.title, python) for peer in able if peer.module not in taken]
        say(f"{name}: {', '.join(peer.title for peer in able) or 'no peer that I know'}")
    return entries, versions


def try_entries(found: Sequence[Entry], task: Task) -> tuple[list[Entry], dict[str, str]]:
    """Let peers pack, and run one epoch of each; return who goes on, and why others do not."""
    entries, failures = [], {}
    for entry in found:
        say(f"trying {entry.name}")
        module, values = f"peer_feeds.{entry.peer.module}", {"task": asdict(place(task, entry))}
        try:
            if entry.peer.has_pack:
                run_in_process(f"{module}:pack", values, python=entry.python)
            run_in_process(f"{module}:run", {**values, "epochs": 0}, python=entry.python)
        except RunFailed as error:
            failures[entry.name] = error.message
            say(f"{entry.name} is left out: {error.message}")
        else:
            entries.append(entry)
    return entries, failures


def place(task: Task, entry: Entry) -> Task:
    return replace(task, pack=str(Path(task.pack) / entry.peer.module))


def line_up(
    entries: Sequence[Entry], task: Task, epochs: int, images: int
) -> tuple[list[Contestant], dict[str, str]]:
    """Return who runs, in which order, and the Python of each function that needs another one than ours."""
    feed = asdict(FeedOptions(task.batch_size, task.threads, task.side, repeat=task.repeat))
    contestants = [
        Contestant(NAMES[FILES], "feedrate.lab.loader:drain",
                   {"kind": FILES, "path": task.folder, "epochs": epochs, "options": feed})
    ]  # fmt: skip
    for name in dict.fromkeys([ORIGINALS, *(entry.peer.against for entry in entries)]):
        say(f"packing for {name}")
        target = Path(task.pack) / f"feedrate-{len(contestants)}"
        result = pack(task.folder, target, PackOptions(recode=RECODES[name]))
        if result.samples != images:
            say(f"note: {result.samples} images in the pack, {images} JPEGs for the others")
        contestants.append(
            Contestant(name, "feedrate.lab.loader:drain",
                       {"kind": PACK, "path": str(target), "epochs": epochs, "options": feed})
        )  # fmt: skip
    pythons = {}
    for entry in entries:
        function = f"peer_feeds.{entry.peer.module}:run"
        pythons[function] = entry.python
        values = {"task": asdict(place(task, entry)), "epochs": epochs}
        contestants.append(Contestant(entry.name, function, values))
    return contestants, pythons


def describe(name: str, runs: Sequence[BenchRun], entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what a loader did, and how many times as fast feedrate was with the same stored pixels."""
    against = next((entry.peer.against for entry in entries if entry.name == name), ORIGINALS)
    standing = asdict(sum_up(name, runs))
    del standing["accuracy"]
    is_ours = name in RECODES
    return {
        **standing,
        "against": None if is_ours else against,
        "feedrate_times_as_fast": None if is_ours else compare(against, name, runs),
    }


def draw(row: Mapping[str, Any]) -> str:
    """Return a row of a Markdown table under HEAD."""
    ratio = row["feedrate_times_as_fast"]
    cells = [
        row["contestant"],
        format_rate(row["images_per_s"], "images"),
        f"{ratio:.2f}" if ratio else "",
        format_seconds(row["cpu_s_per_image"]),
        format_seconds(row["first_batch_s"]),
        format_bytes(row["peak_memory_bytes"]),
    ]
    return f"| {' | '.join(cells)} |"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def fail(text: str) -> int:
    say(f"error: {text}")
    return 2


def environment(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals or not os.access(python, os.X_OK):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=PYTHON with a Python that can be run")
    return name, python


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="JPEGs, in class folders or not")
    parser.add_argument("--env", action="append", default=[], type=environment, metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--epoch-images", type=int, default=2000, help="at least so many images per epoch")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where packs are written")
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    # The fresh processes must find these modules, whatever is installed where they run.
    here = Path(__file__).resolve().parent
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(here), str(here.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.exit(main())
