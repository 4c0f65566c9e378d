# SPDX-License-Identifier: Apache-2.0
"""A command that takes no batch: say what is waited for, and end it where --seconds was given.

One that trains without a loader, or loops without torch, has shown after --seconds what can be seen of it,
and is ended then; one that computes with torch, without optimizer and loader, after ten times as long: it may
prepare its first batch.

A long import, an index that is built and a model that is compiled take no batch either, but they compute,
read or write. A command stands still when none of its processes does.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from feedrate.doctor.facts import read_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.run.processes import find_members
from feedrate.machine.process import read_file, read_stat
from feedrate.units import format_count, format_seconds

LOADERS = "DataLoader or feedrate.Loader"
_LOOK_EVERY_S = 2.0
_ASK_EVERY_S = 0.5
_ENOUGH_STEPS = 20  # from here on --seconds limits the steps: the hook's watching.py
# Threads that only wait wake up now and then: less than this is no work.
_CORES = 0.05
_COMPUTING_CORES = 0.2  # a loop that waits for its GPU takes more, one that polls for something less
_BYTES_PER_S = 100_000
_TORCH_FACTOR = 10  # times --seconds
_COUNT = struct.Struct("<q")


class Standstill:
    """What the doctor sees of a command's progress, besides the machine's curves."""

    def __init__(
        self, run: Path, options: DoctorOptions, *, is_shared: bool, watch: Callable[[str], None]
    ) -> None:
        self._run = run
        self._seconds = options.seconds
        # Processes on other nodes cannot be looked at.
        self._may_end = options.ends_standstill and not options.passive and not is_shared
        self._ends_alone = not options.passive and not is_shared
        self._alone_s: float | None = None  # when steps without a loader were first seen
        self._plain_pid: int | None = None  # of a loop without loader and optimizer
        self._plain_cpu_s: float | None = None  # that it had used at the last look
        self._knows_torch = False
        self._started_s = time.monotonic()
        self._watch = watch
        self._every_s = min(_LOOK_EVERY_S, self._seconds / 4)
        self._looked_s = self._recorded_s = self._wrote_s = self._moved_s = time.monotonic()
        self._tell_s = 0.0
        self._steps: int | None = None
        self._knows_loader, self._asked_s = False, 0.0
        self._written: dict[str, int] = {}
        self._used = self._use()
        self.reason: str | None = None

    def look(self) -> bool:
        """Return whether the command is to be ended now; `reason` then says why. Cheap when it goes on."""
        now = time.monotonic()
        if not self._knows_loader and now >= self._asked_s + _ASK_EVERY_S:
            self._asked_s = now
            self._ask_for_loader()
        if self.reason is not None or now < self._looked_s + self._every_s:
            return False
        passed_s, self._looked_s = now - self._looked_s, now
        if self._is_done_alone(now) or self._is_done_plain(now, passed_s):
            return True
        if self._has_recorded():
            self._recorded_s, self._tell_s, self._steps = now, 0.0, None
        self._note_use(now, passed_s)
        idle_s = now - self._recorded_s
        if idle_s < self._seconds:
            return False
        kinds = {str(fact.get("kind")) for fact in read_facts(self._run)}
        if "watched" in kinds:  # the experiments have limits of their own
            return False
        if self._steps is None:
            self._steps = self._count_steps() if "batch" in kinds else 0
        waits_for = _describe(kinds, self._steps)
        if self._may_end and self._is_over(now, self._steps):
            return self._end(f"the command stood still for {format_seconds(self._seconds)}, {waits_for}")
        if now >= self._tell_s:
            self._tell_s = now + idle_s
            told = f"no batch for {format_seconds(idle_s)}, {waits_for}"
            self._watch(f"{told}; Ctrl-C ends it, and what was seen is judged")
        return False

    def _is_done_alone(self, now: float) -> bool:
        if not self._ends_alone or self._alone_s is None or now - self._alone_s < self._seconds:
            return False
        if any(fact.get("kind") == "loader" for fact in read_facts(self._run)):
            self._alone_s = None
            return False
        trained = f"the command trained for {format_seconds(self._seconds)}"
        return self._end(f"{trained} and asked no {LOADERS} for a batch")

    def _end(self, reason: str) -> bool:
        self.reason = reason
        self._watch(f"{reason}: it is ended (--seconds)")
        return True

    def _is_done_plain(self, now: float, passed_s: float) -> bool:
        if not self._ends_alone or self._plain_pid is None:
            return False
        stat, before_s = read_stat(self._plain_pid), self._plain_cpu_s
        now_s = self._plain_cpu_s = None if stat is None else stat.cpu_s
        seconds = self._seconds * (_TORCH_FACTOR if self._knows_torch else 1)
        if now - self._started_s < seconds or self._knows_loader:
            return False
        if now_s is None or before_s is None or now_s - before_s <= _COMPUTING_CORES * passed_s:
            return False
        # It may have others at work, which train.
        if any(one.parent == self._plain_pid for one in find_members(self._run, {})):
            return False
        missing = "a step of an optimizer" if self._knows_torch else "torch"
        ran = f"the command ran for {format_seconds(seconds)} without {missing}"
        return self._end(f"{ran}, and asked no {LOADERS} for a batch")

    def _ask_for_loader(self) -> None:
        """Tell at once, and once, of steps that take their data from nowhere that can be seen."""
        for fact in read_facts(self._run):
            if fact.get("kind") == "plain":
                self._plain_pid = int(fact["pid"])
                self._knows_torch = self._knows_torch or bool(fact.get("torch"))
            is_torch = fact.get("kind") == "patched" and str(fact.get("module")).partition(".")[0] == "torch"
            self._knows_torch = self._knows_torch or is_torch
            self._knows_loader = self._knows_loader or fact.get("kind") in ("loader", "no-loader")
            if fact.get("kind") == "no-loader":
                self._alone_s = self._asked_s
                steps = format_count(int(fact["optimizer_steps"]), "optimizer step")
                told = f"{steps} of {format_seconds(float(fact['step_s']))}, and no {LOADERS} so far"
                self._watch(f"{told}: how it gets its data cannot be observed, what it does with them can")
                return

    def _is_over(self, now: float, steps: int) -> bool:
        since = self._wrote_s if steps >= _ENOUGH_STEPS else self._moved_s
        return now - max(since, self._recorded_s) >= self._seconds

    def _has_recorded(self) -> bool:
        """Return whether a process has recorded anything but looks at its stack, which go on in any case."""
        has_recorded = False
        for path in self._run.glob("*.ring"):
            before = self._written.get(path.name, 0)
            try:
                with path.open("rb") as file:
                    file.seek(layout.WRITTEN_OFFSET)
                    count = _COUNT.unpack(file.read(_COUNT.size))[0]
                    self._written[path.name] = count
                    for number in range(count - 1, max(before, count - layout.CAPACITY) - 1, -1):
                        slot = number % layout.CAPACITY
                        file.seek(layout.HEADER_BYTES + slot * layout.RECORD.size)
                        if layout.RECORD.unpack(file.read(layout.RECORD.size))[0] != layout.STACK:
                            has_recorded = True
                            break
            except (OSError, struct.error):
                continue
        return has_recorded

    def _note_use(self, now: float, passed_s: float) -> None:
        before, self._used = self._used, self._use()
        cpu_s = read = written = 0.0
        is_busy = False
        for process, (state, *used) in self._used.items():
            spent = [a - b for a, b in zip(used, before.get(process, (state, 0.0, 0, 0))[1:], strict=True)]
            cpu_s, read, written = cpu_s + spent[0], read + spent[1], written + spent[2]
            is_busy |= state in ("R", "D")
        if written > _BYTES_PER_S * passed_s:
            self._wrote_s = now
        if is_busy or cpu_s > _CORES * passed_s or max(read, written) > _BYTES_PER_S * passed_s:
            self._moved_s = now

    def _use(self) -> dict[tuple[int, int], tuple[str, float, int, int]]:
        """Return, of each process of the command: state, CPU time, bytes read and written."""
        if not self._may_end:
            return {}
        found = {}
        for stat in find_members(self._run, {}):
            words = (read_file(f"/proc/{stat.pid}/io") or b"rchar: 0\nwchar: 0").split()
            found[stat.pid, stat.start] = (stat.state, stat.cpu_s, int(words[1]), int(words[3]))
        return found

    def _count_steps(self) -> int:
        from feedrate.doctor.analyse.records import read_run
        from feedrate.doctor.analyse.timeline import count_steps

        return max((count_steps(process) for process in read_run(self._run).mains), default=0)


def _describe(kinds: set[str], steps: int) -> str:
    """Return what the command has not done so far."""
    if not kinds:
        return "and no Python process of it has loaded the hook so far"
    if "framework" in kinds and "loader" not in kinds:
        return "and what it loads by means of TensorFlow or JAX is not seen"
    if "loader" not in kinds:
        return f"waiting for it to ask a {LOADERS} for its first batch"
    if "batch" not in kinds:
        return "waiting for the first batch of its loader"
    return f"waiting for the next batch after {format_count(steps, 'step')}"
