# SPDX-License-Identifier: Apache-2.0
"""What does packing cost, against tar and against the writers of WebDataset, MDS, LitData and FFCV?

Two datasets: 60,000 tiny files, where the number of files is what counts, and photographs, where the scan
is; it makes the tiny ones, and photographs too unless a folder of them is named. All take turns, as commands
in fresh processes with warm files, for several rounds; wall-clock and processor time are those of the whole
command and its children. For photographs the scan alone is timed as well: packing may cost that and what tar
costs. Then the memory: the peak of a pack of 10,000 and of 1,000,000 tiny files.

    python benchmarks/packing.py --env litdata=envs/litdata/bin/python --json benchmarks/results/packing.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peer_writers import WRITERS

from feedrate import kernel
from feedrate.demo.run import write_photographs
from feedrate.kernel.pillow import encode_jpeg
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.stats import median
from feedrate.units import format_bytes, format_seconds

HERE = Path(__file__).parent
PACKED, UNSCANNED, TAR = "feedrate pack", "feedrate pack --no-scan", "tar cf"
NEEDS = {"webdataset": "webdataset", "mds": "streaming", "litdata": "litdata", "ffcv": "ffcv"}
TITLES = {"webdataset": "WebDataset ShardWriter", "mds": "MDSWriter", "litdata": "LitData optimize",
          "ffcv": "FFCV DatasetWriter"}  # fmt: skip
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int  # of the largest process


def main() -> int:
    arguments = parse()
    environments = {"feedrate": sys.executable, **dict(arguments.env)}
    peers = find_peers(environments)
    document: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "sets": {},
        "memory": [],
        "machine": asdict(describe_machine(["packing.py", *sys.argv[1:]])),
    }

    def keep() -> None:
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")

    with tempfile.TemporaryDirectory(prefix="feedrate-packing-", dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        if arguments.tiny:
            write_tiny(folder / "tiny", arguments.tiny)
            for found in compare(folder / "tiny", folder, peers, arguments.rounds):
                document["sets"]["tiny"] = found
                keep()
            shutil.rmtree(folder / "tiny")
        photographs = arguments.photographs
        if photographs is None and arguments.made_photographs:
            photographs = folder / "photographs"
            write_photographs(photographs, arguments.made_photographs, seed=0)
        if photographs is not None:
            scans: list[float] = []
            for found in compare(Path(photographs), folder, peers, arguments.rounds):
                scans.append(time_scan(Path(photographs)))
                allowed = median(scans) + found["rows"][TAR]["cpu_seconds"]
                found["scan_cpu_seconds"] = list(scans)
                found["cpu_over_scan_and_tar"] = found["rows"][PACKED]["cpu_seconds"] / allowed
                document["sets"]["photographs"] = found
                keep()
        for count in arguments.memory:
            document["memory"].append(measure_memory(folder, count))
            keep()
    draw(document)
    return 0


def find_peers(environments: dict[str, str]) -> dict[str, str]:
    """Return the Python of each writer that can be imported somewhere."""
    peers: dict[str, str] = {}
    for name, python in environments.items():
        for writer, module in NEEDS.items():
            words = [
                python,
                "-c",
                f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)",
            ]
            if writer not in peers and subprocess.run(words, check=False).returncode == 0:
                peers[writer] = python
                say(f"{TITLES[writer]}: {name}")
    return peers


def compare(source: Path, scratch: Path, peers: dict[str, str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield what is known after each round: a run that is cut short has measured something, too."""
    cores = str(count_usable_cores())
    target = scratch / "target"
    commands: dict[str, list[str]] = {
        TAR: ["tar", "cf", str(target / "all.tar"), "-C", str(source), "."],
        PACKED: [sys.executable, "-m", "feedrate", "pack", str(source), str(target / "pack")],
        UNSCANNED: [sys.executable, "-m", "feedrate", "pack", "--no-scan", str(source), str(target / "pack")],
    }
    for writer, python in peers.items():
        commands[TITLES[writer]] = [
            python, str(HERE / "peer_writers.py"), writer, str(source), str(target), cores
        ]  # fmt: skip
    files = [path for path in source.rglob("*") if path.is_file()]
    facts = {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
    runs: list[Run] = []
    failures: dict[str, str] = {}
    for number in range(rounds + 1):
        for name, command in commands.items():
            if name in failures:
                continue
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            run = run_command(name, command)
            if isinstance(run, str):
                if name in (TAR, PACKED):
                    raise SystemExit(f"error: '{' '.join(command)}' failed: {run}")
                failures[name] = run
                say(f"{name} is left out: {run}")
            elif number:  # the first round warms files and caches
                runs.append(run)
                say(f"round {number}: {name}: {format_seconds(run.seconds)}")
        if number:
            rows = {
                name: sum_up([run for run in runs if run.name == name])
                for name in commands
                if name not in failures
            }
            yield {**facts, "rows": rows, "failures": failures, "runs": [asdict(run) for run in runs]}
    shutil.rmtree(target, ignore_errors=True)


def run_command(name: str, command: Sequence[str]) -> Run | str:
    """Run a command in a process of its own; a middleman makes the usage that of this command alone."""
    middleman = [sys.executable, __file__, "--run", *command]
    done = subprocess.run(middleman, check=False, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1]
    return Run(name, **json.loads(done.stdout.splitlines()[-1]))


def run_here(command: Sequence[str]) -> int:
    begin = time.perf_counter()
    # What is installed has its bytecode, and a checkout makes it in the first round, if it may.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ
    )
    seconds = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    facts = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": usage.ru_maxrss * 1024}
    sys.stderr.buffer.write(done.stderr)
    print(json.dumps(facts))
    return done.returncode


def sum_up(runs: Sequence[Run]) -> dict[str, float]:
    return {
        "seconds": median([run.seconds for run in runs]),
        "cpu_seconds": median([run.cpu_seconds for run in runs]),
        "peak_bytes": median([run.peak_bytes for run in runs]),
    }


def time_scan(folder: Path) -> float:
    """Return the processor time of the kernel's scan alone, files in memory."""
    total = 0.0
    for path in folder.rglob("*"):
        if path.suffix.lower() in (".jpg", ".jpeg"):
            data = path.read_bytes()
            begin = time.process_time()
            kernel.scan(data)
            total += time.process_time() - begin
    return total


def write_tiny(folder: Path, count: int, encode: Callable[[Any], bytes] | None = None) -> None:
    """Write gray JPEGs of 28 x 28 pixels, no two the same, into class folders."""
    rng = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"class{number}").mkdir(parents=True)
    for number in range(count):
        coarse = rng.integers(0, 256, (7, 7), dtype=np.uint8)
        pixels = np.kron(coarse, np.ones((4, 4), np.uint8))
        data = (encode or encode_tiny)(pixels)
        (folder / f"class{number % CLASSES}" / f"{number:07d}.jpg").write_bytes(data)


def encode_tiny(pixels: Any) -> bytes:
    return encode_jpeg(pixels, quality=75, full_chroma=False, orientation=1)


def measure_memory(scratch: Path, count: int) -> dict[str, int]:
    """Return the peak memory of packing `count` tiny files in one process."""
    say(f"writing {count:,} files")
    write_tiny(scratch / "many", count)
    target = scratch / "target"
    command = [sys.executable, "-m", "feedrate", "pack", str(scratch / "many"), str(target), "--workers", "1"]
    run = run_command(PACKED, command)
    if isinstance(run, str):
        raise SystemExit(run)
    for folder in (scratch / "many", target):
        shutil.rmtree(folder)
    say(f"{count:,} files: {format_bytes(run.peak_bytes)}, {format_seconds(run.seconds)}")
    return {"files": count, "peak_bytes": run.peak_bytes, "seconds": round(run.seconds, 2)}  # type: ignore[dict-item]


def draw(document: dict[str, Any]) -> None:
    for name, found in document["sets"].items():
        print(f"\n{name}: {found['files']:,} files, {format_bytes(found['bytes'])}\n")
        print("| | wall-clock | x tar | processor time | peak memory of a process |\n|---|---|---|---|---|")
        tar = found["rows"][TAR]["seconds"]
        for title, row in sorted(found["rows"].items(), key=lambda item: item[1]["seconds"]):
            print(
                f"| {title} | {format_seconds(row['seconds'])} | {row['seconds'] / tar:.2f} | "
                f"{format_seconds(row['cpu_seconds'])} | {format_bytes(row['peak_bytes'])} |"
            )
        if "cpu_over_scan_and_tar" in found:
            print(f"\nprocessor time over that of the scan and of tar: {found['cpu_over_scan_and_tar']:.2f}")
    for one in document["memory"]:
        print(f"\n{one['files']:,} files: peak {format_bytes(one['peak_bytes'])}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", action="append", default=[], type=lambda text: tuple(text.split("=", 1)),
                        metavar="NAME=PYTHON", help="where other writers are installed")  # fmt: skip
    parser.add_argument("--tiny", type=int, default=60_000, metavar="N", help="tiny files (0: none)")
    parser.add_argument("--photographs", metavar="FOLDER", help="class folders of JPEGs")
    parser.add_argument("--made-photographs", type=int, default=500, metavar="N", help="without a folder")
    parser.add_argument("--memory", type=int, nargs="*", default=[10_000, 1_000_000], metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", metavar="FOLDER", help="for data (default: the system's)")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    folder = arguments.photographs
    if folder is not None and not any(Path(folder).rglob("*.[jJ][pP]*[gG]")):
        parser.error(f"--photographs: there is no folder with .jpg files at {folder}")
    return arguments


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    assert set(NEEDS) == set(WRITERS)
    sys.exit(run_here(sys.argv[2:]) if sys.argv[1:2] == ["--run"] else main())
