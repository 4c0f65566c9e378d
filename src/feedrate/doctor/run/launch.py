# SPDX-License-Identifier: Apache-2.0
"""Runs the user's command with the hook inside it and the sampler beside it, and leaves nothing behind.

Signals reach the command once: what went to the whole process group it has got itself, what went to the
doctor alone is passed on (see `sampler.relay`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from feedrate.doctor.facts import read_facts, read_samples
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.run import sampler
from feedrate.doctor.run.processes import (
    end_members,
    find_sessions,
    remove_folder,
    remove_shared_memory,
)
from feedrate.doctor.run.standstill import Standstill
from feedrate.errors import StorageError
from feedrate.hooking.launch import (
    Child,
    Hook,
    Signals,
    make_environment,
    make_run_folder,
    needs_shared_folder,
)
from feedrate.machine.command import check_command
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.isolated import isolated_command
from feedrate.machine.process import is_pending
from feedrate.units import format_count, format_seconds

HOOK = Hook("doctor", layout.ENVIRONMENT, Path(layout.__file__).resolve().parents[1])
SETTINGS_VERSION = 1
_STACK_HZ = 25
_START_S = 10.0  # a loaded machine starts a Python process in seconds
_RELAY_S = 0.05
_GRACE_S = 3.0  # for workers to notice that their parent is gone
_GRACE_AFTER_EXPERIMENTS_S = 0.5  # it ended without telling them: nothing is to be waited for

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Observed:
    """How a command went.

    Attributes:
        exit_code: what a shell would report: 128 + n after signal n; 0 when the doctor ended it.
        signal: the signal that ended it, if one did.
        started_ns: perf_counter_ns when it was started.
        interrupted: the doctor got a signal meanwhile (Ctrl-C, scancel ...).
        ended_by_doctor: it ended because the experiments were done.
        is_shared: its processes may have run on other nodes; the sampler sees this one only.
        standstill: why it was ended before there were experiments: it did nothing for so long.
    """

    command: tuple[str, ...]
    run_folder: Path
    exit_code: int
    signal: int | None
    seconds: float
    started_ns: int
    interrupted: bool
    ended_by_doctor: bool
    is_shared: bool = False
    standstill: str | None = None


@contextmanager
def run_command(
    command: Sequence[str], options: DoctorOptions, *, watch: Watch = lambda _: None
) -> Iterator[Observed]:
    """Run a command to its end; its run folder can be read inside the `with` and is gone after it.

    No process that belongs to the command outlives the call, however it ends. Daemons, which made a session
    of their own, do.

    Raises:
        UsageError, NotFound: it cannot be run, see `check_command`.
        StorageError: there is no place for the run folder.
    """
    check_command(command, "feedrate doctor")
    is_shared = needs_shared_folder(command)
    run = make_run_folder(HOOK, is_shared)
    watcher: SamplerProcess | None = None
    observed: Observed | None = None
    try:
        environment = prepare(run, options, is_shared)
        watcher = SamplerProcess(run)
        standstill = Standstill(run, options, is_shared=is_shared, watch=watch)
        observed = _run(tuple(command), run, environment, watcher, watch, standstill)
        yield replace(observed, is_shared=is_shared)
    finally:
        known = _read_members(run)
        if observed is None:
            end_members(run, known, grace_s=0.0, sessions=find_sessions(run, os.getsid(0)))
        names = [name for sample in read_samples(run) for name in sample.get("shared_names") or ()]
        remove_shared_memory(run, known, names)
        remove_folder(run)
        if watcher is not None:
            watcher.close()


def _run(
    command: tuple[str, ...],
    run: Path,
    environment: Mapping[str, str],
    watcher: SamplerProcess,
    watch: Watch,
    standstill: Standstill,
) -> Observed:
    with Signals() as signals:
        started_ns = time.perf_counter_ns()
        child = Child(command, environment)
        kill_s = math.inf
        try:
            while not child.has_ended():
                for number in signals.wait():
                    if not watcher.saw(number):
                        child.send(number)
                if standstill.look():
                    child.send(signal.SIGTERM)
                    kill_s = time.monotonic() + _GRACE_S
                elif time.monotonic() > kill_s:
                    child.send(signal.SIGKILL)
        except BaseException:
            child.send(signal.SIGTERM)
            raise
        seconds = (time.perf_counter_ns() - started_ns) / 1e9
        ended_by_doctor = any(
            fact.get("kind") == "end" and fact.get("how") == "experiments" for fact in read_facts(run)
        )
        watcher.stop()
        why = ": the experiments are done, nothing more of it was written" if ended_by_doctor else ""
        watch(f"the command ended after {format_seconds(seconds)}{why}")
        is_ended = ended_by_doctor or standstill.reason is not None
        by_itself = child.signal is None and not is_ended and not signals.seen
        own = os.getsid(0)
        left = end_members(
            run,
            _read_members(run),
            grace_s=_GRACE_AFTER_EXPERIMENTS_S if ended_by_doctor else _GRACE_S,
            # What a command that ended well left in a session of its own is a daemon, even one that trains.
            sessions={own} if by_itself else find_sessions(run, own),
        )
        if left:
            watch(f"ended {format_count(left, 'process', 'processes')} that the command left behind")
    return Observed(
        command=command,
        run_folder=run,
        exit_code=0 if standstill.reason or (ended_by_doctor and child.signal is None) else child.exit_code,
        signal=None if standstill.reason else child.signal,
        seconds=seconds,
        started_ns=started_ns,
        interrupted=bool(signals.seen),
        ended_by_doctor=ended_by_doctor,
        standstill=standstill.reason,
    )


def prepare(run: Path, options: DoctorOptions, is_shared: bool) -> dict[str, str]:
    """Fill the run folder; return the command's environment."""
    try:
        write_settings(run, options)
        return make_environment(HOOK, run, is_shared)
    except OSError as error:
        raise StorageError(
            f"cannot write to {run}: {error.strerror}", hint="set TMPDIR to a folder with room"
        ) from error


def write_settings(run: Path, options: DoctorOptions) -> None:
    cores = measure_usable_cores()
    settings = {
        "version": SETTINGS_VERSION,
        "passive": options.passive,
        "steps": options.steps,
        "warmup": options.warmup_steps,
        "seconds": options.seconds,
        "stack_hz": _STACK_HZ,
        "run": str(run),
        "doctor": os.getpid(),
        "usable_cores": cores,
        "try_workers": list_workers_to_try(cores),
        "started_ns": time.perf_counter_ns(),
    }
    (run / "settings.json").write_text(json.dumps(settings))


def list_workers_to_try(cores: float) -> list[int]:
    """Return numbers of workers worth a trial, the most telling first: one per core, half, twice as many.

    Twice as many only help where workers wait for a disk or a network.
    """
    whole = max(1, int(cores))
    return [n for n in (whole, whole // 2, 2 * whole) if n > 0]


def _read_members(run: Path) -> dict[int, int]:
    """Return every process of the command that the sampler saw on this node: pid -> start."""
    known: dict[int, int] = {}
    for sample in read_samples(run):
        known |= {process["pid"]: process["start"] for process in sample.get("processes") or ()}
    return known


class SamplerProcess:
    """The sampler and its relay of signals, as the doctor sees them; they end when it closes the pipe."""

    def __init__(self, run: Path) -> None:
        words = ("feedrate.doctor.run.sampler:relay", str(run), str(os.getpid()))
        self._process = subprocess.Popen(
            isolated_command(*words, has_site=False),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        # Of two signals that come together the later one may be asked about first.
        self._unclaimed: set[int] = set()
        self._wait_for(sampler.READY, _START_S)

    def saw(self, number: int) -> bool:
        """Return whether the whole process group got this signal."""
        if self._wait_for(number, _RELAY_S):
            return True
        # On a loaded machine the relay may not have had a core since, or got one between two questions.
        seconds = _START_S if is_pending(self._process.pid, number) else _RELAY_S
        return self._wait_for(number, seconds)

    def stop(self) -> None:
        """Let the sampler take its last sample."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(sampler.STOP)
        except OSError:
            return
        self._wait_for(sampler.STOPPED, _START_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_for(self, byte: int, seconds: float) -> bool:
        assert self._process.stdout is not None
        if byte in self._unclaimed:
            self._unclaimed.remove(byte)
            return True
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([descriptor], [], [], left)
            if ready:
                came = os.read(descriptor, 1)
                if came == b"":
                    return False
                if came[0] == byte:
                    return True
                self._unclaimed.add(came[0])
        return False
