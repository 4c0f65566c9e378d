# SPDX-License-Identifier: Apache-2.0
"""Runs the user's command with the hook inside it and the sampler beside it, and leaves nothing behind.

The command gets our terminal, our standard streams and our process group. Signals reach it once: what went to
the whole group it has got itself, what went to the doctor alone is passed on (see `sampler.relay`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from feedrate.doctor.facts import read_facts, read_samples
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.run import sampler
from feedrate.doctor.run.processes import (
    ENVIRONMENT,
    end_members,
    find_sessions,
    remove_folder,
    remove_shared_memory,
)
from feedrate.doctor.run.standstill import Standstill
from feedrate.errors import StorageError
from feedrate.machine.command import check_command, explain_failure
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.isolated import isolated_command
from feedrate.machine.process import is_pending
from feedrate.units import format_count, format_seconds

SETTINGS_VERSION = 1
_STACK_HZ = 25
_START_S = 10.0  # a loaded machine starts a Python process in seconds
_RELAY_S = 0.05
_GRACE_S = 3.0  # for workers to notice that their parent is gone
_GRACE_AFTER_EXPERIMENTS_S = 0.5  # it ended without telling them: nothing is to be waited for

_LAUNCHERS = {"srun", "salloc", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "aprun"}
# They pass the environment on and see the working folder, but not the rest of this machine.
_CONTAINERS = {"apptainer", "singularity", "ch-run", "enroot"}

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
    run = make_run_folder(is_shared)
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


def make_run_folder(is_shared: bool) -> Path:
    """Make a folder that only this user can enter: in the working folder, if other nodes have to see it."""
    try:
        if is_shared:
            return Path(tempfile.mkdtemp(prefix=".feedrate-doctor-", dir=Path.cwd()))
        return Path(tempfile.mkdtemp(prefix="feedrate-doctor-")).resolve()
    except OSError as error:
        where = "the working folder" if is_shared else tempfile.gettempdir()
        raise StorageError(
            f"cannot make a folder in {where} for what is measured: {error.strerror}",
            hint="start it where you may write" if is_shared else "set TMPDIR to a folder with room",
        ) from error


def prepare(run: Path, options: DoctorOptions, is_shared: bool) -> dict[str, str]:
    """Fill the run folder; return the command's environment."""
    try:
        write_settings(run, options)
        return make_environment(run, is_shared)
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


def make_environment(run: Path, is_shared: bool, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment that brings the hook into every Python process of the command."""
    hook = find_hook_folder()
    if is_shared:
        # Another node, or a container on it, need not have feedrate where this one has it.
        copy = run / "hook"
        shutil.copytree(hook, copy, ignore=shutil.ignore_patterns("__pycache__"))
        hook = copy
    path = environ.get("PYTHONPATH")
    # An empty entry would mean the working folder.
    return {
        **environ,
        ENVIRONMENT: str(run),
        "PYTHONPATH": os.pathsep.join([str(hook), *([path] if path else [])]),
    }


def _read_members(run: Path) -> dict[int, int]:
    """Return every process of the command that the sampler saw on this node: pid -> start."""
    known: dict[int, int] = {}
    for sample in read_samples(run):
        known |= {process["pid"]: process["start"] for process in sample.get("processes") or ()}
    return known


class Child:
    """The user's command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Python ignores these two, and a child would inherit that: `train | head` would never end.
        ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
        program = shutil.which(command[0]) or command[0]
        try:
            self.pid = os.posix_spawn(program, list(command), dict(environment), setsigdef=ignored)
        except OSError as error:
            raise explain_failure(command[0], error) from error
        self.signal: int | None = None
        self.exit_code = 0
        self._is_running = True

    def has_ended(self) -> bool:
        if self._is_running:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._is_running = False
                code = os.waitstatus_to_exitcode(status)
                self.signal = -code if code < 0 else None
                self.exit_code = 128 - code if code < 0 else code
        return not self._is_running

    def send(self, number: int) -> None:
        if self._is_running:
            os.kill(self.pid, number)


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


class Signals:
    """While it is entered, signals that would end the doctor are collected instead."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        # Python's handlers run in the main thread only, which may be waiting while another thread gets the
        # signal; the pipe wakes it up.
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.getsignal(number) for number in (*sampler.SIGNALS, signal.SIGCHLD)}
        for number, handler in self._before.items():
            # What was ignored (nohup) stays ignored, here and in the command.
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def wait(self) -> list[int]:
        """Wait until something happens, or half a second; return the signals that came, without SIGCHLD."""
        ready, _, _ = select.select([self._read], [], [], 0.5)
        numbers = [n for n in os.read(self._read, 4096) if n != signal.SIGCHLD] if ready else []
        self.seen += numbers
        return numbers


def needs_shared_folder(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether processes of the command may run on other nodes, or in a container of other folders."""
    if os.path.basename(command[0]) in _LAUNCHERS | _CONTAINERS:
        return True
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    return nodes.isdigit() and int(nodes) > 1


def find_hook_folder() -> Path:
    import feedrate.doctor.hook

    return Path(feedrate.doctor.hook.__file__).resolve().parent
