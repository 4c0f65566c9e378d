# SPDX-License-Identifier: Apache-2.0
"""Times the making of each batch, in a worker or, without workers, in the training process."""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import clock, layout
from ..session import session
from ..wrapping import get_ident, name_of, unseen
from . import opened_files, parts, samples, stacks
from .describe import count_samples
from .parts import Fetch, here, open_fetches, wrap_methods

# Timing the parts may take this share of a fetch; where many short calls would take more, some are left out.
_MOST_SHARE = 0.007
_MOST_SHARE_LATER = 0.002  # once many were timed
_MANY_TIMED = 48  # fetches
_FIRST = 128
_LONG_REST = 4
_MOST_ENDS = 20  # of a worker's passes, that are written down


class _Samples(list):  # type: ignore[type-arg]
    """A batch's indices, which tells when the sample of each begins."""

    def __iter__(self) -> Any:
        for index in list.__iter__(self):
            samples.begin_sample()
            yield index
        samples.end_sample()


class Fetching:
    """The fetches of this process."""

    def __init__(self) -> None:
        self.number = 0
        self._worker = -1
        self._probe_from = 0  # the first fetch whose parts may be timed again
        self._timed = 0
        self._event_ns = 0
        self._last_end_ns = 0
        self._others_ns = 0
        self._ends = 0
        self._ended_at = 0  # the fetch at which the last pass was over

    @unseen
    def fetch(self, fetcher: Any, original: Any, indices: Any) -> Any:
        """Run a fetch and record it. Whatever goes wrong on our side, the original runs exactly once."""
        number = self.number
        if number == 0:
            self._worker = int(getattr(_worker_info(), "id", -1))
        worker = self._worker
        self.number = number + 1
        fetch: Fetch | None = None
        is_alone = False  # nothing but its wall clock is read
        start = (0, 0, 0)
        asked = indices
        if worker >= 0:
            session.follow_parent()
        try:
            if worker >= 0:
                session.begin_fetch(number)
            if number == 0:
                _begin(worker)
            is_alone = worker < 0 and not session.probing and session.ring.phase == layout.REAL
            start = (clock.wall_ns(), -1, -1) if is_alone else clock.read()
            if worker >= 0:
                self._record_handover(start)
            if session.probing and number >= self._probe_from:
                fetch = self._time_parts(start, fetcher)
                asked = _mark_samples(fetcher, indices)
        except Exception as error:
            session.note_error("fetch", error)
        here.is_fetching = session.fetching = True
        try:
            if session.scope is None:
                batch = original(fetcher, asked)
            else:
                with session.scope.lent():
                    batch = original(fetcher, asked)
        except StopIteration:
            self._note_end(worker, number)
            raise
        finally:
            here.is_fetching = session.fetching = False
            if fetch is not None:
                open_fetches.pop(get_ident(), None)
                samples.end_sample()
        try:
            count = _count(fetcher, indices, batch)
            if is_alone:
                wall = clock.wall_ns() - start[0]
                session.ring.write(layout.FETCH, 0, start[0], wall, -1, -1, count, worker, number)
                return batch
            end = clock.read()
            self._last_end_ns = end[0]
            spent = clock.between(start, end)
            session.ring.write(layout.FETCH, 0, start[0], *spent, count, worker, number)
            if fetch is not None:
                self._record_parts(number, fetch, start[0], end[0])
            if worker >= 0 and samples.views.is_looking:
                samples.views.look(batch)
        except Exception as error:
            session.note_error("fetch", error)
        return batch

    def _note_end(self, worker: int, number: int) -> None:
        """A worker's part of an iterable dataset is at its end; where it was empty, that comes at once."""
        batches, self._ended_at = number - self._ended_at, number + 1
        if worker < 0 or self._ends >= _MOST_ENDS or session.ring.phase != layout.REAL:
            return
        self._ends += 1
        try:
            # Hugging Face's iterable datasets say how many shards they have.
            shards = getattr(getattr(_worker_info(), "dataset", None), "num_shards", None)
            shards = shards if isinstance(shards, int) else None
            session.facts("worker-ended", worker_id=worker, batches=batches, shards=shards)
        except Exception as error:
            session.note_error("fetch", error)

    def _record_handover(self, now: clock.Reading) -> None:
        others = clock.process_cpu_ns() - now[1]
        if self._last_end_ns:
            session.ring.write(layout.HANDOVER, 0, self._last_end_ns, 0, a=others - self._others_ns)
        self._others_ns = others

    def _time_parts(self, start: clock.Reading, fetcher: Any) -> Fetch:
        wrap_methods(True)
        fetch = Fetch(start, clock.read_io())
        self._time_collate(fetcher)
        open_fetches[get_ident()] = fetch
        fetch.opening_ns = clock.wall_ns() - start[0]
        return fetch

    def _time_collate(self, fetcher: Any) -> None:
        collate = fetcher.collate_fn
        if getattr(collate, "_feedrate_collate", False):
            return
        name = f"collate:{name_of(collate)}"

        def timed_collate(made: Any) -> Any:
            fetch = open_fetches.get(get_ident())
            if fetch is None:
                return collate(made)
            samples.end_sample()
            if not fetch.enter("collate", name):
                return collate(made)
            try:
                return collate(made)
            finally:
                fetch.leave()

        timed_collate._feedrate_collate = True  # type: ignore[attr-defined]
        fetcher.collate_fn = unseen(timed_collate)

    def _record_parts(self, number: int, fetch: Fetch, start: int, end: int) -> None:
        write = session.ring.write
        before, after = fetch.io, clock.read_io()
        write(layout.IO, 0, start, 0, 0, 0, *(b - a for a, b in zip(before, after)))  # noqa: B905 (Python 3.8)
        for name, (wall, cpu, queue, calls) in fetch.times.items():
            write(layout.PART, session.ring.name(name), start, wall, cpu, queue, calls)
        if fetch.opened:
            opened_files.record_opened(fetch.opened, start)
        if session.ring.phase == layout.REAL:
            samples.write_calls()
        self._timed += 1
        self._spare(number, fetch.events, fetch.opening_ns + clock.wall_ns() - end, end - start)

    def _spare(self, number: int, events: int, recorded_ns: int, wall: int) -> None:
        """Leave out the next fetches when timing and recording this one's parts took too large a share."""
        if not self._event_ns:
            self._event_ns = _measure_event()
        if number < _FIRST:
            recorded_ns = 0  # names and paths are written once, most of them now
        share = (events * self._event_ns + recorded_ns) / max(wall, 1)
        most = _MOST_SHARE if self._timed < _MANY_TIMED else _MOST_SHARE_LATER
        if share > most:
            spared = int(share / most)
            self._probe_from = number + 1 + spared
            if spared >= _LONG_REST:
                wrap_methods(False)


def _begin(worker: int) -> None:
    if worker >= 0:
        parts.end_prelude(is_forgotten=True)
        session.is_worker = True
        session.become("worker")
        affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        session.facts("worker", worker_id=worker, affinity=affinity)
        opened_files.watch()
        stacks.start()
    opened_files.record_open()


def _mark_samples(fetcher: Any, indices: Any) -> Any:
    """Return indices that tell stacks of each sample, where the list is torch's own and nobody sees it."""
    if not fetcher.auto_collation or type(indices) is not list:
        samples.begin_sample()
        return indices
    dataset = fetcher.dataset
    if hasattr(dataset, "__getitems__") and type(dataset).__module__ != "torch.utils.data.dataset":
        return indices
    return _Samples(indices)


def _count(fetcher: Any, indices: Any, batch: Any) -> int:
    if isinstance(indices, (list, tuple)) and not getattr(fetcher, "ended", False):
        return len(indices)
    most = len(indices) if isinstance(indices, (list, tuple)) else None
    return count_samples(batch, most)


def _measure_event() -> int:
    """Return what one mark costs on this machine."""
    trial = Fetch(clock.read())
    start = clock.wall_ns()
    for _ in range(20):
        trial.mark()
    # A wrapper does a little more than to mark, and what it needs is in no cache after a part's work.
    return max(1, (clock.wall_ns() - start) // 20 * 5 // 2)


def _worker_info() -> Any:
    """Return what torch says about this worker; None: this is no worker."""
    return getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)


fetching = Fetching()


def after_fork() -> None:
    fetching.__init__()  # type: ignore[misc]
    open_fetches.clear()
    here.is_fetching = False


def _followed(original: Any) -> Any:
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        session.follow_parent()  # before worker_init_fn
        return original(*args, **kwargs)

    return _worker_loop


def _fetched(original: Any) -> Any:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        if here.is_fetching:
            return original(self, possibly_batched_index)  # a loader inside a dataset
        return fetching.fetch(self, original, possibly_batched_index)

    return fetch


PATCHES = {
    "torch.utils.data._utils.fetch": [
        ("_MapDatasetFetcher.fetch", _fetched),
        ("_IterableDatasetFetcher.fetch", _fetched),
    ],
    "torch.utils.data._utils.worker": [("_worker_loop", _followed)],
    "torchdata.stateful_dataloader.worker": [("_worker_loop", _followed)],
}
