# SPDX-License-Identifier: Apache-2.0
"""Runs a case of the corpus: under the doctor, or bare to see what its remedy really gives.

    PYTHONPATH=tests python -m doctor_corpus.run_case NAME ... [--bare] [--data FOLDER]

The bare speed is taken from outside, from the moments at which the script's own progress lines ("step 40
...") arrive: nothing has to be built into the scripts, the tool that is being judged takes no part in it,
warm-up can be left out, and a run can be ended as soon as enough was seen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from doctor_corpus.cases import CASES, Case, Run
from doctor_corpus.data import KINDS, make_data

HERE = Path(__file__).parent
PROGRESS = re.compile(r"\b(?:step|iter|batch|it)\b\W{0,3}(\d+)")
NOT_ALLOWED = 77
ENOUGH_STEPS = 400
WATCHED_STEPS = 100  # by the doctor, before its experiments


class CannotRun(Exception):
    """This machine does not have or allow what a case needs."""


@dataclass(frozen=True)
class Place:
    """Where data lies and what the scripts write."""

    data: Path
    scratch: Path
    cores: int = len(os.sched_getaffinity(0))
    advised: int | None = None  # workers; None: nobody was asked

    def fill_in(self, text: str) -> list[str]:
        names = {
            "out": self.scratch / "out",
            "mount": self.scratch / "mount",
            "cores": self.cores,
            "many": 8 * self.cores,
            "advised": self.advised or self.cores,
        }
        for kind in KINDS:
            if "{" + kind + "}" in text:
                names[kind] = make_data(kind, self.data)
        return [re.sub(r"{([\w-]+)}", lambda match: str(names[match[1]]), word) for word in text.split()]


def find_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def why_not(case: Case) -> str | None:
    """Return why a case cannot run here, or None."""
    if "root" in case.needs and os.geteuid() != 0:
        return "needs root"
    if "fuse" in case.needs and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    if "gpu" in case.needs and not has_gpu():
        return "needs a GPU"
    return None


def has_gpu() -> bool:
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def make_command(
    case: Case,
    run: Run,
    place: Place,
    *,
    tool: Sequence[str] = (),
    script: Path | None = None,
    launcher: Sequence[str] | None = None,
) -> list[str]:
    """Return the command line: surroundings, a tool such as the doctor, the launcher, the script."""
    if launcher is None:
        launcher = [sys.executable]
        if case.launcher == "torchrun":
            launcher += [
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--standalone",
            ]  # any free port
    script = script or HERE / "scripts" / case.script
    command = [*tool, *launcher, str(script), *place.fill_in(run.arguments)]
    if run.surroundings:
        around = [sys.executable, str(HERE / "surroundings.py"), *place.fill_in(run.surroundings)]
        command = [*around, "--", *command]
    return command


def make_environ(run: Run, place: Place) -> dict[str, str]:
    extra = {name: place.fill_in(value)[0] for name, value in run.environ.items()}
    return {**os.environ, "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **extra}


def prepare(case: Case, run: Run, place: Place) -> None:
    shutil.rmtree(place.scratch / "out", ignore_errors=True)
    (place.scratch / "out").mkdir(parents=True)
    if case.prepare:
        command = make_command(case, Run(case.prepare), place)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if run.pages:
        for word in place.fill_in(run.arguments):
            if Path(word).is_dir():
                set_pages(Path(word), warm=run.pages == "warm")


def set_pages(folder: Path, *, warm: bool) -> None:
    """Bring the files of a folder into the page cache, or drop them from it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            if warm:
                while os.read(file, 1 << 22):
                    pass
            else:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def diagnose(
    case: Case, place: Place, options: Sequence[str] = (), *, run: Run | None = None
) -> dict[str, Any]:
    """Return the doctor's JSON on a case."""
    run = run or case.before
    prepare(case, run, place)
    target = place.scratch / "doctor.json"
    target.unlink(missing_ok=True)
    feedrate = [sys.executable, "-m", "feedrate", "doctor", "--json", str(target), *options, "--"]
    done = subprocess.run(
        make_command(case, run, place, tool=feedrate),
        env=make_environ(run, place), capture_output=True, text=True, check=False, timeout=400,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    if done.returncode == NOT_ALLOWED:
        raise CannotRun(done.stderr.strip().splitlines()[-1])
    if not target.exists():
        raise RuntimeError(
            f"no report on {case.name} (exit {done.returncode}):\n{done.stdout}\n{done.stderr}"
        )
    document: dict[str, Any] = json.loads(target.read_text())
    return document


@dataclass(frozen=True)
class Speed:
    """Steps per second, and how many cores other processes used meanwhile."""

    steps_per_s: float
    foreign_cores: float


def measure(case: Case, run: Run, place: Place, seconds: float = 12.0) -> Speed:
    """Return the speed of the bare script once it is warm."""
    prepare(case, run, place)
    launched = time.perf_counter()
    process = subprocess.Popen(
        make_command(case, run, place),
        env=make_environ(run, place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
    reader.start()
    moments, foreign_cores = watch(process, case, seconds)
    if case.from_start:
        moments = [(0, launched), *moments[-1:]]
    end(process)
    reader.join(5)
    if process.returncode == NOT_ALLOWED:
        raise CannotRun(errors[-1].strip())
    if len(moments) < 2:
        raise RuntimeError(f"{case.name}: too few lines of progress\n{''.join(errors)}")
    return Speed(rate(moments, case.period), foreign_cores)


def watch(
    process: subprocess.Popen[str], case: Case, seconds: float
) -> tuple[list[tuple[int, float]], float]:
    """Return (step, moment) of the lines of progress after the warm-up, and the cores that others used."""
    moments: list[tuple[int, float]] = []
    foreign = 0.0
    for line in process.stdout or ():
        found = PROGRESS.search(line)
        if not found or int(found[1]) < case.warm_up:
            continue
        moments.append((int(found[1]), time.perf_counter()))
        if len(moments) == 1:
            foreign = foreign_cpu_s(process.pid)
        steps = moments[-1][0] - moments[0][0]
        is_over = steps >= (WATCHED_STEPS if case.is_drifting else ENOUGH_STEPS)
        is_over |= moments[-1][1] - moments[0][1] >= seconds and not (case.is_drifting or case.from_start)
        if (is_over and len(moments) > 2) or (case.last_step and moments[-1][0] >= case.last_step):
            break
    if len(moments) < 2:
        return moments, 0.0
    return moments, max(0.0, (foreign_cpu_s(process.pid) - foreign) / (moments[-1][1] - moments[0][1]))


def foreign_cpu_s(pid: int = os.getpid()) -> float:
    """Return the CPU time of all processes of the machine less those below `pid` and this one."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    return float(
        busy - tree_cpu_s(pid) - (sum(psutil.Process().cpu_times()[:4]) if pid != os.getpid() else 0)
    )


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, of those below it, and of their children that have ended."""
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    used = 0.0
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:4])
    return used


def rate(moments: Sequence[tuple[int, float]], period: int) -> float:
    """Return steps per second over as many whole periods as were seen."""
    first_step, first = moments[0]
    whole = [(step, at) for step, at in moments[1:] if (step - first_step) % period == 0] or moments[-1:]
    last_step, last = whole[-1]
    return (last_step - first_step) / (last - first)


def end(process: subprocess.Popen[str]) -> None:
    """End a script and all that it started. It runs in a session of its own."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def measure_both(case: Case, place: Place, rounds: int = 2, seconds: float = 12.0) -> dict[str, Any]:
    """Return what the remedy really gives: before and after in turn, the median of the rounds' ratios."""
    if case.after is None:
        raise ValueError(f"{case.name} has no remedy")
    before, after = [], []
    for _ in range(rounds):
        before.append(measure(case, case.before, place, seconds))
        after.append(measure(case, case.after, place, seconds))
    ratios = [b.steps_per_s / a.steps_per_s for a, b in zip(before, after, strict=True)]
    return {
        "before": [asdict(speed) for speed in before],
        "after": [asdict(speed) for speed in after],
        "ratios": ratios,
        "speedup": median(ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases; none: all that can run here")
    parser.add_argument("--bare", action="store_true", help="measure the remedy instead of asking the doctor")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "feedrate-corpus")
    arguments = parser.parse_args()
    for case in [find_case(name) for name in arguments.names] or CASES:
        if (reason := why_not(case)) or (arguments.bare and case.after is None and case.crashes):
            print(f"{case.name:26} {reason or 'no bare run'}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="feedrate-case-") as scratch:
            place = Place(arguments.data, Path(scratch))
            print(f"{case.name:26} {show(case, place, arguments)}", flush=True)
    return 0


def show(case: Case, place: Place, arguments: argparse.Namespace) -> str:
    if arguments.bare:
        if case.after is None:
            speed = measure(case, case.before, place, arguments.seconds)
            return f"{1e3 / speed.steps_per_s:.1f} ms a step; others used {speed.foreign_cores:.2f} cores"
        result: Mapping[str, Any] = measure_both(case, place, arguments.rounds, arguments.seconds)
        rates = [
            median(1e3 / speed["steps_per_s"] for speed in result[which]) for which in ("before", "after")
        ]
        others = [f"{speed['foreign_cores']:.2f}" for which in ("before", "after") for speed in result[which]]
        gain = f"{rates[0]:.1f} -> {rates[1]:.1f} ms a step, {result['speedup']:.2f} x"
        return f"{gain}; others used {' '.join(others)} cores"
    document = diagnose(case, place)
    codes = [f"{finding['code']} {finding['share']:.0%}" for finding in document["findings"]]
    return f"expected {case.expected}, found {', '.join(codes) or 'nothing'}"


if __name__ == "__main__":
    sys.exit(main())
