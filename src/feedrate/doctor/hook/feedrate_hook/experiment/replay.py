# SPDX-License-Identifier: Apache-2.0
"""What the user's loop is fed with: kept batches, whole or halved, or those of another number of workers."""

from __future__ import annotations

import abc
import sys
import time
from typing import Any

from .. import layout
from ..record import loader_clone


class Feed(abc.ABC):
    """One phase of the user's loop: `warmup` steps, then at least `least`, for a time.

    `least_s` and `most_s` bound that time, in units of the usual time of an experiment.

    With `fixed`, exactly that many steps: ranks must make the same number.
    """

    phase = layout.REPLAY
    warmup = 3
    least = 20
    least_s = 1.0
    most_s = 2.4

    def __init__(self, book: Any, fixed: int | None = None) -> None:
        self._book = book
        self._fixed = fixed
        self._given = 0
        self._start_ns = 0
        self._last_ns = 0

    def reason_not_to(self) -> str | None:
        """Why this phase is skipped: a sentence, or None."""
        return None

    def start(self) -> None:
        """Make ready. What it raises skips the phase, too."""
        return

    @abc.abstractmethod
    def give(self) -> Any:
        """Return the next batch for the user's loop."""

    def stop(self) -> None:
        """Leave the loop as it was."""
        return

    def detail(self) -> dict[str, Any]:
        return {}

    def next(self) -> Any:
        """The batch of the next step. The step before it is complete."""
        if self._given == self.warmup:
            synchronize()
            self._start_ns = time.perf_counter_ns()
        self._last_ns = time.perf_counter_ns()
        batch = self.give()
        self._given += 1
        return batch

    def is_over(self) -> bool:
        """Asked at the beginning of a next()."""
        steps = self._given - self.warmup
        if steps <= 0:
            return False
        if self._fixed is not None:
            return steps >= self._fixed
        elapsed = (time.perf_counter_ns() - self._start_ns) / 1e9 / self._book.pace_s
        return elapsed >= self.most_s or (elapsed >= self.least_s and steps >= self.least)

    def write(self, is_cut: bool = False) -> bool:
        """The fact of this phase. When the user's code has left the loop, its last step does not count.

        False: there were too few steps for one.
        """
        steps = self._given - self.warmup
        if not is_cut:
            synchronize()
            span = (self._start_ns, time.perf_counter_ns())
            self._book.measured(self.phase, span, steps, self.detail())
        elif steps >= 4:
            span = (self._start_ns, self._last_ns)
            self._book.measured(self.phase, span, steps - 1, dict(self.detail(), cut=True))
        else:
            return False
        return True


class Replay(Feed):
    """Kept batches in turn."""

    def __init__(self, book: Any, kept: list[Any], fixed: int | None = None) -> None:
        super().__init__(book, fixed)
        self._kept = kept

    def give(self) -> Any:
        return self._kept[self._given % len(self._kept)].again()

    def detail(self) -> dict[str, Any]:
        return {"samples": sum(kept.samples for kept in self._kept) / len(self._kept)}


class HalfBatch(Replay):
    phase = layout.REPLAY_HALF_BATCH
    warmup = 4
    least = 15
    least_s = 0.0

    def reason_not_to(self) -> str | None:
        # Ranks decide alike: with a fixed number of steps, a rank without halves makes them on whole batches.
        if self._fixed is None and any(kept.half() is None for kept in self._kept):
            return "the tensors of a batch do not share a first dimension of at least 2"
        return why_compiled()

    def start(self) -> None:
        self._kept = [kept.half() or kept for kept in self._kept]


class HalfPrecision(Replay):
    """Under autocast, switched on from outside the user's code."""

    phase = layout.REPLAY_HALF_PRECISION
    warmup = 4
    least = 15
    least_s = 0.0

    def reason_not_to(self) -> str | None:
        return why_no_half_precision() or why_compiled()

    def start(self) -> None:
        switch_autocast(True)
        force_autocast(True)

    def stop(self) -> None:
        force_autocast(False)
        switch_autocast(False)

    def give(self) -> Any:
        # Outside of a `with`, nobody clears the weights that were cast for the step before.
        sys.modules["torch"].clear_autocast_cache()
        return super().give()

    def detail(self) -> dict[str, Any]:
        return dict(super().detail(), dtype=str(half_type()).replace("torch.", ""))


class Trial(Feed):
    """The same dataset through another number of workers, so that the loop runs as it would with them."""

    phase = layout.TRIAL
    least = 12
    least_s = 1.2
    most_s = 3.2

    def __init__(self, book: Any, scope: Any, loader: Any, workers: int) -> None:
        super().__init__(book)
        self._scope = scope
        self._loader = loader
        self._workers = workers
        self._copy: Any = None
        self._iterator: Any = None
        self._next: Any = None
        self.warmup = workers * int(getattr(loader, "prefetch_factor", None) or 2) + 4

    def start(self) -> None:
        self._copy = loader_clone.copy_loader(self._loader, self._workers)
        self._iterator = loader_clone.start(self._copy)
        self._next = loader_clone.unhooked_next(self._iterator)

    def give(self) -> Any:
        with self._scope.own():
            try:
                return self._next(self._iterator)
            except StopIteration:
                self._iterator = loader_clone.start(self._copy)
                return self._next(self._iterator)

    def stop(self) -> None:
        with self._scope.own():
            loader_clone.shut_down(self._copy, self._iterator)
        self._copy = self._iterator = None

    def detail(self) -> dict[str, Any]:
        return {"workers": self._workers}


def synchronize() -> None:
    """Wait for the device, so that a stretch of steps ends when its work ends."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()


def half_type() -> Any:
    torch = sys.modules["torch"]
    return torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16


def switch_autocast(on: bool) -> None:
    torch = sys.modules["torch"]
    if hasattr(torch, "set_autocast_dtype"):
        torch.set_autocast_dtype("cuda", half_type())
        torch.set_autocast_enabled("cuda", on)
    else:
        torch.set_autocast_gpu_dtype(half_type())
        torch.set_autocast_enabled(on)
    torch.clear_autocast_cache()


def force_autocast(on: bool) -> None:
    """Let `torch.autocast("cuda", enabled=args.amp)` in the user's loop be on for once."""
    autocast = sys.modules["torch"].autocast
    if not on:
        if "__init__" in autocast_before:
            autocast.__init__ = autocast_before.pop("__init__")
        return
    original = autocast_before["__init__"] = autocast.__init__

    def begin(self: Any, device_type: str, *words: Any, **named: Any) -> None:
        if device_type == "cuda":
            original(self, device_type, dtype=half_type(), enabled=True)
        else:
            original(self, device_type, *words, **named)

    autocast.__init__ = begin


autocast_before: dict[str, Any] = {}


def why_compiled() -> str | None:
    """A new shape or type makes torch.compile compile, which takes longer than all the steps here."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return "the model is compiled" if counters.get("stats", {}).get("unique_graphs", 0) else None


def why_no_half_precision() -> str | None:
    """A sentence, or None when autocast can be tried."""
    torch = sys.modules["torch"]
    if not (torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0):
        return "no CUDA device is used"
    if half_seen:
        return "half precision is in use already"
    return None


half_seen: list[bool] = []


def watch_for_autocast() -> None:
    """Look, in the first forward pass from now on, whether it runs under autocast or with half weights."""
    torch = sys.modules["torch"]
    handles: list[Any] = []

    def look(module: Any, _inputs: Any) -> None:
        if handles:
            handles.pop().remove()
            first = next(module.parameters(), None)
            is_half = first is not None and first.dtype in (torch.float16, torch.bfloat16)
            if torch.is_autocast_enabled() or is_half:
                half_seen.append(True)

    handles.append(torch.nn.modules.module.register_module_forward_pre_hook(look))
