# SPDX-License-Identifier: Apache-2.0
"""What the hook knows about this process: settings, role, ring, and which of its steps are probed."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from . import clock, layout
from .ring import ParentPhase, Ring

# Of each eight steps (in a worker: fetches) the last ones are left alone, so that the cost of probing shows;
# once much was seen of short steps, all but one are, so that it hardly adds up.
_BLOCK = 8
_MANY_OF_BLOCK = 6
_STRIDE = 3  # the one is another in each block: a loop may do every fourth step what it does in no other
_SEEN_ENOUGH = 128
_SHORT_NS = 50_000_000


class ProbeSchedule:
    """Which steps, or in a worker which fetches, are probed. Asked for each in turn."""

    def __init__(self) -> None:
        self.are_short = False  # and much was seen of them
        self._since_ns = 0

    def is_probed(self, number: int) -> bool:
        if number % _SEEN_ENOUGH == 0:
            now = clock.wall_ns()
            self.are_short = number > 0 and now - self._since_ns < _SHORT_NS * _SEEN_ENOUGH
            self._since_ns = now
        block, place = divmod(number, _BLOCK)
        return place == block * _STRIDE % _BLOCK if self.are_short else place < _MANY_OF_BLOCK


_ALL_CALLS = 1 << 60
_MOST_ERRORS = 50


class Session:
    """One per process, the same object after a fork. Hot paths read its plain attributes."""

    def __init__(self) -> None:
        self.run = ""
        self.settings: dict[str, Any] = {}
        self.is_passive = False  # there will be no experiments
        self.pace_s = 2.5  # one experiment's usual time
        self.torch: Any = None
        self.scope: Any = None  # of the guard, once it is up in this process or the one it was forked from
        self.loaders: Any = None  # set by loaders.py: what is known about loaders and iterators
        self.calls_to_skip = 0  # that wait for the device, in this step: timing them all would slow it
        self._optimizer_steps_then = -1  # when the present step began
        self._asked: set[int] = set()  # the iterators that were asked in it
        self._errors: set[str] = set()
        self._begin(Ring(""))

    def _begin(self, ring: Ring) -> None:
        self.ring = ring
        self.role = "other"
        self.is_worker = False
        self.probing = False  # the optional probes are on
        self.thread = 0  # the thread that asks for batches
        self.native_thread = 0
        self.waiting = self.fetching = False
        self.steps = self.optimizer_steps = 0
        self.schedule = ProbeSchedule()
        self._experiments: Any = None
        self._has_tried_experiments = False
        self._parent_phase: ParentPhase | None = None

    @property
    def phase(self) -> int:
        return self.ring.phase

    @phase.setter
    def phase(self, phase: int) -> None:
        self.ring.set_phase(phase)

    def facts(self, kind: str, **fields: Any) -> None:
        """Write one fact: facts("skipped", phase=1, why=...)."""
        self.ring.append([{"kind": kind, "t_ns": time.perf_counter_ns(), **fields}])

    def skip(self, why: str, *phases: int) -> None:
        """Write that these experiments are not made."""
        for phase in phases:
            self.facts("skipped", phase=phase, why=why[:300])

    def failed(self, phase: int, error: BaseException) -> None:
        """A dataset that needs what it writes fails behind the guard."""
        self.note_error(f"experiments: {layout.PHASES[phase]}", error)
        self.skip(f"it failed: {type(error).__name__}: {error}", phase)

    def measured(self, phase: int, span_ns: tuple[int, int], batches: int, detail: dict[str, Any]) -> None:
        """Write one finished measurement of a phase."""
        start, end = span_ns
        self.facts("phase", phase=phase, start_ns=start, end_ns=end, batches=batches, detail=detail)

    def finish(self, how: str, error: str | None = None) -> None:
        """Write the last fact of this process."""
        self.facts("end", how=how, error=error)

    def start(self, run: str) -> None:
        self.run = run
        self.ring = Ring(run)

    def after_fork(self) -> None:
        """Begin anew in a child: the parent's ring, threads and open files are not ours."""
        clock.forget_files()
        phase = self.ring.phase
        self._begin(Ring(self.run))
        self.ring.phase = phase

    def load_settings(self) -> None:
        """Read settings.json, once; missing or damaged: a passive run."""
        if self.settings:
            return
        settings: dict[str, Any] = {"passive": True, "stack_hz": 50}
        try:
            with open(os.path.join(self.run, "settings.json"), encoding="utf-8") as file:
                settings.update(json.load(file))
        except (OSError, ValueError):
            pass
        self.settings = settings
        self.is_passive = bool(settings["passive"])
        self.pace_s = float(settings.get("experiment_seconds", self.pace_s))

    def become(self, role: str) -> None:
        """Note what this process turned out to be."""
        if self.role == role or (self.role == "main" and role == "worker"):
            return
        self.role = role
        self.load_settings()
        self.describe_process()

    def describe_process(self) -> None:
        environment = os.environ
        self.facts(
            "process",
            pid=os.getpid(),
            ppid=parent_pid(),
            python=sys.version.split()[0],
            role=self.role,
            rank=self._find_rank(),
            local_rank=_number(environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID"))),
            node=environment.get("SLURMD_NODENAME") or os.uname().nodename,
            cwd=_folder(),
            session=os.getsid(0),
        )

    def _find_rank(self) -> int | None:
        """Return the rank in torch's process group: spawned ranks have no variables."""
        group = getattr(self.torch, "distributed", None)
        if group is None or not group.is_available() or not group.is_initialized():
            return _number(os.environ.get("RANK", os.environ.get("SLURM_PROCID")))
        return int(group.get_rank())

    def note_error(self, where: str, error: BaseException) -> None:
        """Say once what failed in the hook."""
        if where not in self._errors and len(self._errors) < _MOST_ERRORS:
            self._errors.add(where)
            self.facts("hook-error", where=where, error=f"{type(error).__name__}: {error}"[:500])

    def begin_step(self, asker: int = 0) -> None:
        """A next() of a loader's iterator begins: decide whether it and the step after it are probed.

        Some loops ask several loaders in each step: all of that is one step, probed or not.
        """
        if self.thread != threading.get_ident():
            self.follow_thread()
        asked = self._asked
        if asked and asker not in asked and self._optimizer_steps_then == self.optimizer_steps:
            asked.add(asker)
            return
        self._asked = {asker}
        self._optimizer_steps_then = self.optimizer_steps
        # Experiments are timed as a whole; their parts would only push the real run's out of the ring.
        self.probing = self.schedule.is_probed(self.steps) and self.ring.phase == layout.REAL
        self.steps += 1
        self.calls_to_skip = 0 if self.probing else _ALL_CALLS

    def begin_fetch(self, number: int) -> None:
        """A worker begins a fetch: probed or not."""
        self.probing = self.schedule.is_probed(number)
        if number == 0:
            self.follow_thread()

    def follow_thread(self) -> None:
        """The calling thread is the one that asks for batches."""
        self.thread, self.native_thread = threading.get_ident(), threading.get_native_id()

    def follow_parent(self) -> None:
        """A worker is about to call the dataset: it takes over the training process's phase, and its guard.

        What this raises is the worker's own failure: a dataset must not write while experiments are made.
        """
        if self._parent_phase is None or not self._parent_phase.is_known:
            self._parent_phase = ParentPhase(self.run, parent_pid())
        self.ring.phase = self._parent_phase.read()
        if self.ring.phase != layout.REAL and self.scope is None:
            from .guard import guard

            self.load_settings()
            guard.follow()

    def experiments(self) -> Any:
        """Return the experiments of this run, or None when it is passive or they are missing."""
        if not self._has_tried_experiments:
            self._has_tried_experiments = True
            self.load_settings()
            if not self.is_passive:
                try:
                    from .experiment.experiments import Experiments

                    self._experiments = Experiments()
                except Exception as error:
                    self.is_passive = True
                    self.note_error("experiments", error)
        return self._experiments

    def forget_experiments(self) -> None:
        """The program is over: what they know must not keep the user's objects alive."""
        self._experiments = None


def parent_pid() -> int:
    """Return the process that made this one, also where a fork server stands between them."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = multiprocessing.parent_process() if multiprocessing is not None else None
    return int(parent.pid) if parent is not None and parent.pid else os.getppid()


class Noted:
    """Code of the hook's own: what fails in it is noted, and does not reach the user's program.

    In what runs at every step, `try` and `note_error` stand in its place: free where nothing fails.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        session.note_error(self._where, error)
        return True


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


session = Session()
