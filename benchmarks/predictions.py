# SPDX-License-Identifier: Apache-2.0
"""Does `feedrate plan` say what a copy, a pack and an epoch then take?

What is compared was fixed in predictions.toml before the first measurement. Of each combination of store,
dataset and way, the plan is made first, by the functions of the command, on the store as it is then. After it
come the commands and epochs themselves, each in a fresh process on a fresh mount: `feedrate stage`,
`feedrate pack`, an epoch with DataLoader and Pillow or with `Loader`, without training. Stores are cold when
the plan is made and when the first command or epoch begins; what was copied or packed to scratch a moment ago
is in the page cache, as it is for a user. What takes under 20 s is done three times, and the median counts.
What other processes disturb, by the CPU time that they take meanwhile, is done again, `--tries` times in all.
Needs root.

    python benchmarks/predictions.py --json benchmarks/results/predictions.json
    python benchmarks/predictions.py --only "tiny files at 5 ms, staged" --json ...   # put in its place there
    python benchmarks/predictions.py --draw benchmarks/results/predictions.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tomllib
from PIL import Image

from feedrate.lab.photographs import CLASSES, cut_texture, draw_scene, make_photograph
from feedrate.machine.describe import describe_machine

FIXED = Path(__file__).with_suffix(".toml")
SURROUNDINGS = Path(__file__).parent.parent / "tests" / "doctor_corpus" / "surroundings.py"
SIDE, EPOCHS = 224, 90
SHORT_S, LATER_S = 20.0, 6.0
LOADED = "import torch, PIL.Image, feedrate.packing.build.pack, feedrate.scratch.commands; PIL.Image.init()"
OTHERS_CORES, TRIES = 0.1, 4  # `--tries` says how many
NOISE = 0.2  # levels: makes a PNG of about 6 MB
KEPT_BYTES = 10_000_000  # pages = "none": an index is smaller and stays, shards do not

# The codes of the plan's ways.
CODES = {"in-place": "in-place", "stage": "stage", "pack": "pack-scratch", "pack-cache": "ram"}
PACK_CODES = {
    "in-place": "in-place",
    "stage": "pack-stage",
    "train-while-staging": "pack-live",
    "cache": "ram",
}

OWN_TRIES = "FEEDRATE_PREDICTIONS_TRIES"
Facts = dict[str, Any]


def main() -> int:
    arguments = parse()
    if arguments.draw:
        print(draw(json.loads(Path(arguments.draw).read_text())))
        return 0
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](**json.loads(arguments.arguments))))
        return 0
    fixed = tomllib.loads(Path(arguments.fixed).read_text())
    names = [combination["name"] for combination in fixed["combinations"]]
    if unknown := set(arguments.only) - set(names):
        raise SystemExit(f"no combination {sorted(unknown)}; there are:\n" + "\n".join(names))
    work = Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    os.environ[OWN_TRIES] = str(arguments.tries)
    os.environ["XDG_STATE_HOME"] = str(work / "state")  # no copy of this stays in the user's registry
    for combination in fixed["combinations"]:
        if not arguments.only or combination["name"] in arguments.only:
            found = compare(combination, fixed, work)
            if arguments.json:
                # Results name no folder of the machine that made them.
                found = json.loads(json.dumps(found).replace(str(work), "WORK"))
                merge(Path(arguments.json), names, found)
            print(draw({"combinations": [found]}), flush=True)
    if arguments.json:
        print(draw(json.loads(Path(arguments.json).read_text())))
    return 0


def compare(combination: Facts, fixed: Facts, work: Path) -> Facts:
    """Predict a combination, then measure it."""
    say(f"{combination['name']}")
    store, dataset = fixed["stores"][combination["store"]], fixed["datasets"][combination["dataset"]]
    kind = "packs" if combination.get("is_pack") else "folders"
    source = make_source(work / "store", kind, combination["dataset"], dataset["images"])
    task = {"combination": combination, "batch_size": dataset["batch_size"], "scratch": str(work / "scratch")}
    predicted = run_alone(store, source, work, "predict", task)
    runs = [run_alone(store, source, work, "measure", task)]
    if all(runs[0][name] < SHORT_S for name in combination["quantities"]):
        runs += [run_alone(store, source, work, "measure", task) for _ in range(2)]
    rows = {}
    for name in combination["quantities"]:
        measured = statistics.median(run[name] for run in runs)
        error = abs(predicted["quantities"][name]["value"] / measured - 1)
        rows[name] = {"predicted": predicted["quantities"][name], "measured_s": measured, "error": error}
    return {
        **combination, "store": {"name": combination["store"], **store}, "quantities": rows,
        "dataset": {"name": combination["dataset"], **dataset}, "runs": runs,
        "survey": predicted["survey"], "node": predicted["node"],
        "others_cores_planning": predicted["others_cores"],
        "machine": asdict(describe_machine(["predictions.py"])),
    }  # fmt: skip


def run_alone(*task: Any) -> Facts:
    """Run a part, again while others take much of a core; return the run that they disturbed least."""
    tries = [run_on(*task)]
    while tries[-1]["others_cores"] > OTHERS_CORES and len(tries) < int(os.environ.get(OWN_TRIES, TRIES)):
        say(f"others took {tries[-1]['others_cores']:.2f} cores: again")
        tries.append(run_on(*task))
    return min(tries, key=lambda one: one["others_cores"])


def run_on(store: Facts, source: Path, work: Path, part: str, task: Facts) -> Facts:
    """Run a part in a fresh process, on a store mounted for it, or on a disk of which no page is kept."""
    shutil.rmtree(work / "scratch", ignore_errors=True)
    (work / "scratch").mkdir()
    subprocess.run(["sync"], check=True)
    own = [sys.executable, __file__, "--part", part, "--arguments"]
    if "latency_ms" not in store:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        subprocess.run([sys.executable, "-c", LOADED], check=True)  # programs are in memory, data is not
        return call_watched([*own, json.dumps({**task, "path": str(source)})])
    for path in source.rglob("*"):
        if path.is_file():
            path.read_bytes()  # the server has it in memory: its rate is the stated one
    late, mounted = str(store["latency_ms"]), work / "mounted"
    slow = [sys.executable, str(SURROUNDINGS), "--slow", str(source.parent), str(mounted), late, late]
    slow += [str(store["mb_per_s"])]
    slow += {"stay": ["--pages-stay"], "none": ["--kept", str(KEPT_BYTES)], "until-opened": []}[
        store["pages"]
    ]
    return call_watched([*slow, "--", *own, json.dumps({**task, "path": str(mounted / source.name)})])


def call_watched(command: list[str]) -> Facts:
    """Return what a part printed, and how many cores others used meanwhile."""
    began, machine_s, own_s = time.perf_counter(), read_busy(), measure_children()
    found = call(command)
    others_s = read_busy() - machine_s - (measure_children() - own_s)
    return {**found, "others_cores": max(others_s / (time.perf_counter() - began), 0.0)}


def read_busy() -> float:
    """Return the CPU seconds of the whole machine: user, nice, system, interrupts; not idle, not waiting."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split(None, 9)[1:9]]
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")


def measure_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def call(command: list[str]) -> Facts:
    found: Facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


# What is predicted.


def predict(path: str, combination: Facts, batch_size: int, scratch: str) -> Facts:
    """Make the plan that `feedrate plan` makes; return the figures of the combination's way."""
    from feedrate.plan.node import describe_node
    from feedrate.plan.survey import survey_dataset
    from feedrate.plan.ways import make_plan

    survey = survey_dataset(path, workers=combination.get("workers", 4), say=say)
    node = describe_node(path, scratch=scratch, say=say)
    plan = make_plan(
        survey, node, epochs=EPOCHS, workers=combination.get("workers", 4), batch_size=batch_size
    )
    codes = PACK_CODES if combination.get("is_pack") else CODES
    way = next(way for way in plan.ways if way.code == codes[combination["way"]])
    # Of the ways that are measured, each has one part before training: a copy or a pack.
    figures = {
        "copy": way.before_s,
        "pack": way.before_s,
        "first": way.first_epoch_s,
        "later": way.later_epoch_s,
    }
    quantities = {name: asdict(figures[name]) for name in combination["quantities"]}
    return {
        "quantities": quantities,
        "timeline": way.timeline,
        "survey": asdict(survey),
        "node": asdict(node),
    }


# What is measured.


def measure(path: str, combination: Facts, batch_size: int, scratch: str) -> Facts:
    """Do it as a user does, and return how long each part took."""
    found: Facts = {}
    way, options = combination["way"], {}
    if way in ("pack", "pack-cache"):
        found["pack"], path = time_pack(path, f"{scratch}/pack"), f"{scratch}/pack"
    elif way == "stage":
        found["copy"], path = time_stage(path, scratch)
    elif way == "train-while-staging":
        options = {"scratch": scratch}
    if "first" in combination["quantities"]:
        is_pack = bool(combination.get("is_pack")) or "pack" in found
        epochs = {
            "path": path, "batch_size": batch_size, "workers": None if is_pack else combination["workers"],
            "is_cached": way in ("cache", "pack-cache"), "options": options,
        }  # fmt: skip
        found |= call([sys.executable, __file__, "--part", "epochs", "--arguments", json.dumps(epochs)])
    return found


def time_stage(path: str, scratch: str) -> tuple[float, str]:
    began = time.perf_counter()
    command = [feedrate(), "stage", path, "--scratch", scratch]
    copy = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return time.perf_counter() - began, copy.stdout.strip()


def time_pack(path: str, target: str) -> float:
    began = time.perf_counter()
    silent = subprocess.DEVNULL
    subprocess.run([feedrate(), "pack", path, target], check=True, stdout=silent, stderr=silent)
    return time.perf_counter() - began


def feedrate() -> str:
    return str(Path(sys.executable).with_name("feedrate"))


def run_epochs(path: str, batch_size: int, workers: int | None, is_cached: bool, options: Facts) -> Facts:
    """Drain the first epoch and some later ones; an epoch ends where the next begins."""
    import torch  # noqa: F401 - importing it belongs to no epoch

    began = time.perf_counter()
    if workers is None:
        feed = open_loader(path, batch_size, is_cached, options)
    else:
        from feedrate.lab.loader import FeedOptions, FileFeed

        files = FileFeed(path, FeedOptions(batch_size, workers, SIDE))
        feed = iter(lambda: files.epoch(0), None)
    ends, first_batch_s = [time.perf_counter()], None
    while len(ends) < 3 or (ends[-1] - ends[1] < LATER_S and len(ends) < 12):
        for _ in next(feed):
            first_batch_s = first_batch_s or time.perf_counter() - ends[0]
        ends.append(time.perf_counter())
    seconds = [end - begin for begin, end in pairwise(ends)]
    return {
        "open_s": ends[0] - began, "first_batch_s": first_batch_s, "first": seconds[0],
        "later": statistics.mean(seconds[1:]), "epochs_s": seconds,
    }  # fmt: skip


def open_loader(path: str, batch_size: int, is_cached: bool, options: Facts) -> Iterator[Any]:
    from feedrate import Cache, Loader, RandomResizedCrop

    loader = Loader(
        path, batch_size=batch_size, image=RandomResizedCrop(SIDE), flip=True,
        cache=Cache() if is_cached else None, **options,
    )  # fmt: skip
    return iter(lambda: iter(loader), None)


PARTS = {"predict": predict, "measure": measure, "epochs": run_epochs}


# The datasets.


def make_source(store: Path, kind: str, name: str, images: int) -> Path:
    """Return a folder of images, or its pack; made once."""
    target = store / kind / f"{name}-{images}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "packs":
        time_pack(str(make_source(store, "folders", name, images)), str(target))
        return target
    say(f"making {images} images: {name}")
    make, classes = DATASETS[name]
    with tempfile.TemporaryDirectory(dir=target.parent) as unfinished:
        for number in range(images):
            data = make(number)
            suffix = "png" if data[:4] == b"\x89PNG" else "jpg"
            path = Path(unfinished) / name / f"class{number % classes}" / f"{number:05d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (Path(unfinished) / name).rename(target)
    return target


def make_tiny(number: int) -> bytes:
    rng = np.random.default_rng((1, number))
    scene = draw_scene(rng, number % len(CLASSES), 64, 64)
    rough = 14 * cut_texture(rng, "rough", 64, 64)[..., None]
    return encode(np.asarray(scene) + rough, "JPEG", quality=int(rng.integers(86, 95)))


def make_large(number: int) -> bytes:
    """Return a PNG of 3000 x 2000 pixels: a scene under soft texture and the noise of a scanner."""
    rng = np.random.default_rng((2, number))
    scene = draw_scene(rng, number % len(CLASSES), 3000, 2000)
    rough = Image.fromarray(cut_texture(rng, "rough", 750, 500)).resize(
        (3000, 2000), Image.Resampling.BICUBIC
    )
    noise = NOISE * rng.standard_normal((2000, 3000, 3), np.float32)
    return encode(np.asarray(scene) + 20 * np.asarray(rough)[..., None] + noise, "PNG", compress_level=3)


def encode(pixels: Any, form: str, **options: Any) -> bytes:
    out = BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, form, **options)
    return out.getvalue()


def make_photo(number: int) -> bytes:
    return make_photograph(number).jpeg


DATASETS = {
    "tiny": (make_tiny, 10),
    "photographs": (make_photo, 10),
    "few-photographs": (make_photo, 10),
    "two-gb": (make_photo, 10),
    "large": (make_large, 2),
}


# The table.


def merge(path: Path, names: list[str], found: Facts) -> None:
    """Put a combination in its place among those that were measured before."""
    document = json.loads(path.read_text()) if path.exists() else {"combinations": []}
    others = [one for one in document["combinations"] if one["name"] != found["name"]]
    rows = sorted([*others, found], key=lambda one: names.index(one["name"]))
    errors = [row["error"] for one in rows for row in one["quantities"].values()]
    document = {
        "question": (__doc__ or "").splitlines()[0], "settings": {"epochs": EPOCHS, "side": SIDE},
        "missing": [name for name in names if name not in {one["name"] for one in rows}],
        "median_error": statistics.median(errors), "largest_error": max(errors), "combinations": rows,
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1) + "\n")


def draw(document: Facts) -> str:
    """Return the table in Markdown, with the errors in one line below it."""
    lines = ["| combination | what | predicted | from, to | measured | error |", "|---|---|---|---|---|---|"]
    errors = []
    for one in document["combinations"]:
        for name, row in one["quantities"].items():
            figure, measured_s = row["predicted"], row["measured_s"]
            errors.append(row["error"])
            interval = f"{figure['low']:.1f}, {figure['high']:.1f}"
            seconds = f"{figure['value']:.2f} s | {interval} | {measured_s:.2f} s"
            lines.append(f"| {one['name']} | {name} | {seconds} | {row['error']:.0%} |")
    summary = (
        f"{len(errors)} figures, median error {statistics.median(errors):.1%}, largest {max(errors):.0%}"
    )
    return "\n".join([*lines, "", summary])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="can be repeated")
    parser.add_argument("--work", default="/tmp/feedrate-predictions", help="datasets are kept there")
    parser.add_argument("--fixed", default=str(FIXED), help=argparse.SUPPRESS)
    parser.add_argument("--tries", type=int, default=TRIES, metavar="N", help="while others use the machine")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--draw", metavar="FILE", help="print the table of a result")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
