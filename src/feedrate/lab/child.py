# SPDX-License-Identifier: Apache-2.0
"""A function called in a fresh process: its result, and the memory of the process and its children.

`main` runs there: it needs none of feedrate's dependencies, so that the function may be one of another
environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Protocol, TypedDict, TypeVar

from feedrate.errors import FeedrateError
from feedrate.machine.isolated import isolated_command
from feedrate.machine.memory import measure_tree_memory
from feedrate.machine.process import is_alive
from feedrate.machine.process_tree import list_tree

Batch = TypeVar("Batch", covariant=True)
Clock = Callable[[], float]


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
    return math.fsum(one.cpu_s + one.ended_children_s for one in list_tree(os.getpid()))


# A look at a process of some hundred MB takes milliseconds of kernel time: seldom enough not to disturb, and
# often enough to see the peak of a run of seconds.
_LOOK_EVERY_S = 0.25
_LAST_LINES = 12
_LONGEST_END_S = 10.0  # of processes that were killed: one may wait for a disk


class RunFailed(FeedrateError):
    """A process ended without a result."""


def run_in_process(
    function: str,
    arguments: Mapping[str, object],
    *,
    python: str = sys.executable,
    timeout_s: float | None = None,
) -> tuple[dict[str, Any], int]:
    """Call `module:function` with keyword arguments that JSON can carry; return its result and peak memory.

    The memory is that of the whole tree, in bytes, see `measure_tree_memory`. `python` may be that of another
    environment.

    No process of the tree outlives this call, however it ends.

    Raises:
        RunFailed: the process ended without a result; carries its last lines.
    """
    with tempfile.TemporaryFile() as talk:
        process = subprocess.Popen(
            isolated_command("feedrate.lab.child:main", function, python=python),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=talk,
        )  # fmt: skip
        watch = _MemoryWatch(process.pid)
        try:
            watch.start()
            output, _ = process.communicate(json.dumps(dict(arguments)).encode(), timeout_s)
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"the process of {function} did not end in {timeout_s:.0f} s") from error
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
    if process.poll() is not None:
        return
    below = list_tree(process.pid)[1:]
    process.kill()
    for child in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + _LONGEST_END_S  # a signal takes a moment to arrive
    while any(is_alive(one.pid, one.start) for one in below) and time.monotonic() < until:
        time.sleep(0.01)


def _describe_failure(function: str, code: int, talk: IO[bytes]) -> str:
    talk.seek(0)
    lines = talk.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == -9:
        how += " (out of memory?)"
    said = "; its last lines:\n  " + "\n  ".join(lines) if lines else " and said nothing"
    return f"the process of {function} {how}{said}"


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
