# SPDX-License-Identifier: Apache-2.0
"""Run contestants in turn, each time in a fresh process, and sum their runs up: for `bench` and `demo`.

The memory of the fresh process and its workers is watched from outside; rates, waiting and CPU time are
measured inside of it, by `measure`. `main` is what runs there: it needs none of feedrate's dependencies but
psutil, so that loaders of other environments can be contestants, too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypedDict, TypeVar

from feedrate.bench.results import BenchRun, Standing
from feedrate.errors import FeedrateError, need
from feedrate.machine.isolated import isolated_command
from feedrate.machine.memory import measure_tree_memory
from feedrate.stats import median, median_ratio, spread

# A look at a process of some hundred MB takes milliseconds of kernel time: seldom enough not to disturb, and
# often enough to see the peak of a run of seconds.
_LOOK_EVERY_S = 0.25
_LAST_LINES = 12

Say = Callable[[str], None]
Runner = Callable[[str, Mapping[str, object]], tuple[dict[str, Any], int]]
Batch = TypeVar("Batch", covariant=True)
Clock = Callable[[], float]


class RunFailed(FeedrateError):
    """A process of the benchmark ended without a result."""


def run_in_process(
    function: str, arguments: Mapping[str, object], *, python: str = sys.executable
) -> tuple[dict[str, Any], int]:
    """Call `module:function` with keyword arguments that JSON can carry; return its result and peak memory.

    The memory is that of the whole tree, in bytes, see `measure_tree_memory`. `python` may be that of another
    environment: what starts there needs none of feedrate's dependencies.

    No process of the tree outlives this call, however it ends.

    Raises:
        RunFailed: the process ended without a result; carries its last lines.
    """
    with tempfile.TemporaryFile() as talk:
        process = subprocess.Popen(
            isolated_command("feedrate.bench.process:main", function, python=python),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=talk,
        )  # fmt: skip
        watch = _MemoryWatch(process.pid)
        try:
            watch.start()
            output, _ = process.communicate(json.dumps(dict(arguments)).encode())
        finally:
            watch.stop()
            _end_tree(process)
        if process.returncode != 0 or not output:
            raise RunFailed(_describe_failure(function, process.returncode, talk))
        return json.loads(output), watch.peak_bytes


class _MemoryWatch(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True, name="feedrate-memory-watch")
        self.peak_bytes = 0
        self._pid = pid
        self._halt = threading.Event()

    def run(self) -> None:
        while not self._halt.wait(_LOOK_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, measure_tree_memory(self._pid))

    def stop(self) -> None:
        self._halt.set()
        self.join()


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    psutil = need("psutil")

    if process.poll() is not None:
        return
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        children = []
    process.kill()
    for child in children:
        try:
            child.kill()
        except psutil.Error:
            continue
    process.communicate()
    # A signal takes a moment to arrive.
    psutil.wait_procs(children, timeout=10)


def _describe_failure(function: str, code: int, talk: IO[bytes]) -> str:
    talk.seek(0)
    lines = talk.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == -9:
        how += " (out of memory?)"
    said = "; its last lines:\n  " + "\n  ".join(lines) if lines else " and said nothing"
    return f"the process of {function} {how}{said}"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A function `module:name` that returns `Readings`, and what to call it with."""

    name: str
    function: str
    arguments: Mapping[str, object]


def run_rounds(
    contestants: Sequence[Contestant], rounds: int, *, say: Say, runner: Runner = run_in_process
) -> tuple[BenchRun, ...]:
    """Run A B A B ...: neighbours in time see the same machine, so their ratio is steadier than their rates.

    Raises:
        RunFailed: a process ended without a result; names the contestant.
    """
    runs = []
    for number in range(rounds):
        for contestant in contestants:
            say(contestant.name + (f", round {number + 1} of {rounds}" if rounds > 1 else ""))
            try:
                readings, peak_bytes = runner(contestant.function, contestant.arguments)
            except RunFailed as error:
                raise RunFailed(f"{contestant.name}: {error.message}", hint=error.hint) from None
            readings = readings | {name: tuple(readings[name]) for name in ("images", "seconds")}
            runs.append(BenchRun(contestant.name, number, **readings, peak_memory_bytes=peak_bytes))
    return tuple(runs)


def sum_up(name: str, runs: Sequence[BenchRun]) -> Standing:
    mine = [run for run in runs if run.contestant == name]
    rates = [n / s for run in mine for n, s in zip(run.images, run.seconds, strict=True)]
    slow, fast = spread(rates)
    accuracies = [run.accuracy for run in mine if run.accuracy is not None]
    return Standing(
        contestant=name,
        images_per_s=median(run.images_per_s for run in mine),
        slow_images_per_s=slow,
        fast_images_per_s=fast,
        wait_s=median(run.wait_s for run in mine),
        wait_share=median(run.wait_s / sum(run.seconds) for run in mine),
        cpu_s_per_image=median(run.cpu_s_per_image for run in mine),
        first_batch_s=median(run.first_batch_s for run in mine),
        peak_memory_bytes=int(median(run.peak_memory_bytes for run in mine)),
        accuracy=median(accuracies) if accuracies else None,
    )


def compare(after: str, before: str, runs: Sequence[BenchRun]) -> float:
    """Return how many times as many images per second `after` gave as `before`, round by round."""
    return median_ratio(
        [run.images_per_s for run in runs if run.contestant == after],
        [run.images_per_s for run in runs if run.contestant == before],
    )


class Feed(Protocol[Batch]):
    """What gives batches: one iterator per epoch."""

    def epoch(self, number: int) -> Iterator[Batch]: ...


class Readings(TypedDict):
    """What a worker process sends back; see `BenchRun` for the meaning."""

    images: list[int]
    seconds: list[float]
    wait_s: float
    cpu_s: float
    first_batch_s: float
    accuracy: float | None


def measure(
    make_feed: Callable[[], Feed[Batch]],
    consume: Callable[[Batch], int],
    *,
    epochs: int,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> Readings:
    """Run one discarded and `epochs` timed epochs; `consume` takes a batch and returns its number of images.

    Epochs run back to back and an epoch's time is the distance between two epoch ends: a loader that fetches
    ahead over the boundary gains nothing, one that starts anew every epoch pays for it.
    """
    cpu_clock = cpu_clock or measure_tree_cpu
    made_at = clock()
    feed = make_feed()
    first_batch_s = wait_s = cpu_before = ended = 0.0
    images: list[int] = []
    seconds: list[float] = []
    for number in range(1 + epochs):
        count, waited = 0, 0.0
        batches = feed.epoch(number)
        while True:
            asked = clock()
            try:
                batch = next(batches)
            except StopIteration:
                break
            got = clock()
            waited += got - asked
            if number == 0 and count == 0:
                first_batch_s = got - made_at
            count += consume(batch)
        now = clock()
        if number == 0:
            # The discarded epoch ends here; asking for CPU time takes a moment, which belongs to nobody.
            cpu_before = cpu_clock()
            ended = clock()
            continue
        images.append(count)
        seconds.append(now - ended)
        wait_s += waited
        ended = now
    return Readings(
        images=images, seconds=seconds, wait_s=wait_s, cpu_s=cpu_clock() - cpu_before,
        first_batch_s=first_batch_s, accuracy=None,
    )  # fmt: skip


def measure_tree_cpu() -> float:
    """Return the CPU seconds of this process, of its live descendants, and of those that have ended."""
    psutil = need("psutil")

    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended just now: its parent counts it
        total += times.user + times.system + times.children_user + times.children_system
    return float(total)


def main() -> None:
    """Call a function: arguments come as JSON on standard input, the result goes to standard output.

    What the function itself prints goes to standard error.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = sys.argv[1].partition(":")
    found = getattr(importlib.import_module(module), function)(**json.load(sys.stdin))
    with results:
        json.dump(found, results)
