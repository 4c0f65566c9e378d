# SPDX-License-Identifier: Apache-2.0
"""DataLoaders under `feedrate run`: each is proved before its first batch, then fetches with recipes or bare.

The training process decides, and writes the decision down; a worker finds it by its parent and the seed that
torch gave both, whatever way it was started. Of every 64 fetches one is made bare, which gives the same
batch, so that the run itself says what was saved.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedrate.errors import clean
from feedrate.run.inside import counters, switch
from feedrate.run.inside.proof import SAMPLES, SECONDS, Proof, Verdict, explain, prove

STRICT_EXIT = 4
_BARE_OF, _BARE_FIRST = 64, 3  # fetches that are made bare, to compare; one of them soon
_SPREAD, _MOST_WORKERS = 7, 61  # odd: workers and epochs come to every place of 64
_SHORT_SAMPLES, _SHORT_SECONDS = 16, 0.5  # of a loader like one that was proved
_ASKED_SECONDS = 600.0  # for as many samples as --prove names
# Frames of such a file are passed over where a warning's line is looked for: it names the script's own.
_UNSEEN = "<feedrate importlib_bootstrap>"
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


class Taken:
    """A loader in this process: which way it fetches, and what that took."""

    def __init__(
        self, number: int, is_on: bool, folder: str, parent: int | None = None, *, fetches: int = 0
    ) -> None:
        self.number, self.is_on = number, is_on
        self.counters = counters.open_counters(folder, number, parent)
        self._fetches = fetches
        self._returned_ns = self._returned_cpu_ns = 0

    def fetch(self, original: Callable[..., Any], fetcher: Any, asked: Any) -> Any:
        self._fetches += 1
        is_bare = self._fetches % _BARE_OF == _BARE_FIRST
        outer = switch.here.is_on, counters.here.current
        switch.here.is_on, counters.here.current = not is_bare, self.counters
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        try:
            return original(fetcher, asked)
        finally:
            switch.here.is_on, counters.here.current = outer
            cpu_ns, wall_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
            way, add = "bare" if is_bare else "lazy", self.counters.add
            add(f"{way}_fetches")
            add(f"{way}_samples", len(asked) if isinstance(asked, (list, tuple)) else 1)
            add(f"{way}_cpu_ns", cpu_ns)
            add(f"{way}_wall_ns", wall_ns)
            add(f"{way}_wall_ms2", (wall_ns / 1e6) ** 2)

    def next(self, original: Callable[..., Any], iterator: Any) -> Any:
        """Return the next batch; note how long that took, and how long the script was busy before it."""
        began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        # The first batch of an epoch waits for workers to begin, which no recipe shortens.
        is_first = not getattr(iterator, "_feedrate_begun", False)
        if not is_first:
            self.counters.add("busy_ns", began_ns - self._returned_ns)
            self.counters.add("main_cpu_ns", cpu_ns - self._returned_cpu_ns)
        try:
            batch = original(iterator)
        except StopIteration:
            iterator._feedrate_begun = False  # with persistent workers it goes on
            raise
        self._returned_ns, self._returned_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        self.counters.add("batches")
        if is_first:
            iterator._feedrate_begun = True
        else:
            self.counters.add("wait_ns", self._returned_ns - began_ns)
            self.counters.add("main_cpu_ns", self._returned_cpu_ns - cpu_ns)
        return batch


class _Thread(threading.local):
    """What a thread does at this moment: other threads may iterate over loaders that run bare."""

    running: Taken | None = None
    is_fetching = False


class Loaders:
    """All loaders of this process, or what a worker fetches for."""

    def __init__(self, folder: str, settings: dict[str, Any], watch: Any) -> None:
        self._folder, self._settings, self._watch = folder, settings, watch
        self._by_dataset: dict[int, tuple[Any, Any, Taken]] = {}
        self._by_kind: dict[tuple[str, ...], Taken] = {}
        self._count = 0
        self._problem: str | None = None
        self._said: set[str] = set()
        self._mine: Taken | None = None
        self._is_asked = False
        self._lock = threading.Lock()
        self.here = _Thread()

    def is_part(self) -> bool:
        """Return whether a loader that begins now is part of a sample or of a proof."""
        info = sys.modules["torch"].utils.data.get_worker_info()
        return info is not None or switch.is_proof or self.here.is_fetching

    def prepare(self, loader: Any) -> Taken | None:
        """Return how a loader fetches, proved where it is new; called before its iterator is made."""
        try:
            with self._lock:
                return self._prepare(loader)
        except Exception as error:  # of the user's code, or no process could be begun
            why = f"a loader could not be looked at: {error!r}"
            self.note({"kind": "bare", "why": why})
            if why not in self._said:
                say(why)
            self._said.add(why)
            self._end_if_strict()
            return None

    def _prepare(self, loader: Any) -> Taken:
        kind, transform = _describe_kind(loader), _get_transform(loader.dataset)
        dataset, its_transform, known = self._by_dataset.get(id(loader.dataset), (lambda: None, None, None))
        is_same = (
            its_transform is None if transform is None else its_transform and its_transform() is transform
        )
        if known is not None and dataset() is loader.dataset and is_same and self._by_kind.get(kind) is known:
            return known
        before = self._by_kind.get(kind)
        if before is None or (before.is_on and not self._is_still_good(before, loader)):
            taken = self._look(loader)
        else:
            taken = before
        self._by_kind[kind] = taken
        with contextlib.suppress(TypeError):  # no weak references to them: proved each time
            references = weakref.ref(loader.dataset), None if transform is None else weakref.ref(transform)
            self._by_dataset[id(loader.dataset)] = (*references, taken)
        return taken

    def _is_still_good(self, taken: Taken, loader: Any) -> bool:
        again = prove(loader, _SHORT_SAMPLES, _SHORT_SECONDS)
        self.note({"kind": "proof", "loader": taken.number, "proof_s": again.seconds})
        return again.verdict.is_good

    def _look(self, loader: Any) -> Taken:
        number, self._count = self._count, self._count + 1
        problem = self.arm()
        asked = self._settings["prove"]
        if problem or _is_pipe(loader.dataset):
            proof = Proof(Verdict.NOT_POSSIBLE)
        else:
            proof = prove(loader, asked or SAMPLES, _ASKED_SECONDS if asked else SECONDS)
        taken = Taken(number, proof.verdict is Verdict.EQUAL, self._folder)
        length = _measure_length(loader.dataset)
        self.note({
            "kind": "loader", "loader": number, "dataset": type(loader.dataset).__name__, "length": length,
            "workers": loader.num_workers, "batch_size": loader.batch_size, "verdict": proof.verdict.value,
            "problem": problem, "samples": proof.samples, "gain": proof.gain, "gain_first": proof.gain_first,
            "sample": proof.sample, "left": proof.left, "proof_s": proof.seconds,
        })  # fmt: skip
        say(_say_loader(loader, number, length, problem, proof))
        if problem or proof.verdict.is_fault:
            self._end_if_strict()
        return taken

    def _end_if_strict(self) -> None:
        if self._settings["strict"]:
            self.note({"kind": "strict"})
            say("--strict: a loader that would run bare ends the run")
            raise SystemExit(STRICT_EXIT)

    def arm(self) -> str:
        """Make Pillow ready once; return why that cannot be, or ""."""
        if self._problem is None:
            try:
                arming = importlib.import_module("feedrate.run.inside.arming")
                self._problem = arming.arm(self._settings, self._watch, self.note)
            except Exception as error:
                self._problem = f"feedrate's kernel cannot be used there: {error!r}"
        return self._problem

    def write_decision(self, taken: Taken, seed: int) -> None:
        """Tell workers that are about to be started."""
        path = _decision_path(self._folder, os.getpid(), seed)
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(f"{taken.number} {int(taken.is_on)} {int(taken.counters.get('epochs'))}")

    def in_worker(self) -> Taken | None:
        """Return how this worker fetches, as the training process decided it."""
        if not self._is_asked:
            self._is_asked = True
            with contextlib.suppress(Exception):
                self._mine = self._find_mine()
        return self._mine

    def _find_mine(self) -> Taken | None:
        import multiprocessing

        from torch.utils.data import get_worker_info

        info: Any = get_worker_info()
        parent: Any = multiprocessing.parent_process()
        path = _decision_path(self._folder, parent.pid, info.seed - info.id)
        with open(path, encoding="utf-8") as file:
            number, is_on, epoch = map(int, file.read().split())
        if not is_on or self.arm():
            return None
        # Each worker and epoch begins at another place, so that short epochs have bare fetches, too.
        place = epoch * _MOST_WORKERS + info.id
        fetches = _BARE_FIRST + _SPREAD * place if place else 0
        return Taken(number, True, self._folder, parent.pid, fetches=fetches)

    def after_fork(self) -> None:
        switch.here.is_on = False
        counters.here.current = counters.open_counters("", 0)
        self._mine, self._is_asked = None, False
        # A process that goes on training has loaders, and files of numbers, of its own.
        self._by_dataset, self._by_kind, self._count = {}, {}, 0
        self._lock = threading.Lock()  # another thread may have held it
        self.here = _Thread()

    def note(self, fact: dict[str, Any]) -> None:
        importlib.import_module("feedrate_run").note(self._folder, fact)


def install(module: Any, folder: str, settings: dict[str, Any], watch: Any) -> None:
    """Patch torch's `torch.utils.data.dataloader`, which is `module`."""
    loaders = Loaders(folder, settings, watch)
    os.register_at_fork(after_in_child=loaders.after_fork)
    base, fetch = module._BaseDataLoaderIter, module._utils.fetch
    _hide(Taken.fetch)
    _hide(Taken.next)

    def begin(original: Any) -> Any:
        def __init__(self: Any, loader: Any) -> None:
            if loaders.is_part():
                original(self, loader)
                return
            try:
                taken = loaders.prepare(loader)
            except BaseException:
                self._shutdown = True  # its __del__ looks for workers that were not begun
                raise
            original(self, loader)
            if taken is None:
                return
            self._feedrate = taken
            if self._num_workers:
                loaders.write_decision(taken, self._base_seed)
            taken.counters.add("epochs")

        return __init__

    def go_on(original: Any) -> Any:
        def __next__(self: Any) -> Any:
            taken: Taken | None = getattr(self, "_feedrate", None)
            if taken is None:
                return original(self)
            here = loaders.here
            outer, here.running = here.running, taken
            try:
                return taken.next(original, self)
            finally:
                here.running = outer

        return __next__

    def make(original: Any) -> Any:
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            here = loaders.here
            if here.is_fetching:
                return original(self, possibly_batched_index)
            is_main = module._utils.worker._worker_info is None
            taken = here.running if is_main else loaders.in_worker()
            here.is_fetching = True
            try:
                if taken is None or not taken.is_on:
                    return original(self, possibly_batched_index)
                return taken.fetch(original, self, possibly_batched_index)
            finally:
                here.is_fetching = False

        return fetch

    names = [
        _wrap(base, "__init__", begin),
        _wrap(base, "__next__", go_on),
        _wrap(fetch._MapDatasetFetcher, "fetch", make),
        _wrap(fetch._IterableDatasetFetcher, "fetch", make),
    ]
    loaders.note({"kind": "patched", "names": names})


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> str:
    """Put another function in a method's place, named as the method is; return its full name."""
    original = getattr(owner, name)
    wrapper = _hide(make(original))
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(wrapper, attribute, getattr(original, attribute))
    wrapper.__wrapped__ = original
    setattr(owner, name, wrapper)
    return f"{owner.__module__}.{owner.__qualname__}.{name}"


def _hide(function: Any) -> Any:
    function.__code__ = function.__code__.replace(co_filename=_UNSEEN)
    return function


def _decision_path(folder: str, pid: int, seed: int) -> str:
    return os.path.join(folder, f"decision-{os.uname().nodename}-{pid}-{seed}")


def _describe_kind(loader: Any) -> tuple[str, ...]:
    """Return what makes loaders alike: one that is made anew each epoch is proved once."""
    transform = getattr(loader.dataset, "transform", None)
    collate = loader.collate_fn
    parts = (
        type(loader.dataset), type(transform), transform, type(loader.sampler), loader.batch_size,
        loader.num_workers, getattr(collate, "__qualname__", type(collate)),
    )  # fmt: skip
    return tuple(re.sub(r" at 0x[0-9a-fA-F]+", "", str(part)) for part in parts)


def _get_transform(dataset: Any) -> Any:
    """Return what a dataset does to its images; of a method its function, which does not hold the dataset."""
    transform = getattr(dataset, "transform", None)
    return getattr(transform, "__func__", transform)


def _is_pipe(dataset: Any) -> bool:
    """Return whether a dataset is one of torch's pipes: they keep state that a fork would not tell apart."""
    return any(kind.__name__ in ("IterDataPipe", "MapDataPipe") for kind in type(dataset).__mro__)


def _measure_length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # of any kind: it is the user's code
        return None


def say(text: str) -> None:
    """Write a line for people; of many ranks the first speaks."""
    if all(os.environ.get(name, "0") == "0" for name in _RANKS):
        with contextlib.suppress(Exception):
            sys.stderr.write(f"feedrate run: {clean(text)}\n")
            sys.stderr.flush()


def _say_loader(loader: Any, number: int, length: int | None, problem: str, proof: Proof) -> str:
    facts = [type(loader.dataset).__name__]
    if length is not None:
        facts.append(f"{length:,} samples" if length != 1 else "1 sample")
    workers = loader.num_workers
    facts.append("no workers" if not workers else "1 worker" if workers == 1 else f"{workers} workers")
    head = f"loader {number} ({', '.join(facts)})"
    if proof.verdict is Verdict.EQUAL:
        return (
            f"{head}: {proof.samples} samples made both ways are equal; {proof.gain:.1f}x less CPU time a "
            f"sample, {proof.gain_first:.1f}x in the first epoch"
        )
    return f"{head} runs bare: {problem or explain(proof.verdict, proof.sample, proof.left)}"
