# SPDX-License-Identifier: Apache-2.0
"""DRAIN and AGAIN: the loader's batches taken without training, then the same samples once more.

Neither returns to the user's code, so the weights stay what they are.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

from .. import clock, layout
from ..record import loader_clone, other_loaders
from . import batches

LEAST_BATCHES = 12
MOST = 2.4  # times the least time
KEPT = 3  # batches for the replay
REMEMBERED = 2000  # index lists


class Source:
    """Where batches come from: an iterator, recorded or not. A copy's workers are ended by `close`."""

    def __init__(self, book: Any, loader: Any, iterator: Any = None) -> None:
        self._book = book
        self._loader = loader
        self.iterator = loader_clone.start(loader) if iterator is None else iterator

    def next(self) -> Any:
        """A batch, without a record."""
        return loader_clone.unhooked_next(self.iterator)(self.iterator)

    def next_recorded(self) -> Any:
        return self._book.take(self.iterator)

    def close(self) -> None:
        loader_clone.shut_down(self._loader, self.iterator)


class Stretch:
    """When enough batches were taken: whole rounds of the workers, whose batches come in bunches."""

    def __init__(self, workers: int, least_s: float) -> None:
        self._round = max(1, workers)
        self._least = -(-LEAST_BATCHES // self._round) * self._round
        self._least_s = least_s
        self.count = 0
        self.start_ns = time.perf_counter_ns()

    def is_enough(self) -> bool:
        elapsed = (time.perf_counter_ns() - self.start_ns) / 1e9
        if elapsed >= MOST * self._least_s:
            return True
        is_long = elapsed >= self._least_s and self.count >= self._least
        return is_long and self.count % self._round == 0

    def run(self, source: Any, note: Callable[[Any], None]) -> None:
        """Take them. A stream that ends earlier is measured as far as it goes."""
        while not self.is_enough():
            try:
                batch = source.next_recorded()
            except StopIteration:
                return
            self.count += 1
            note(batch)

    def span(self) -> tuple[int, int]:
        return self.start_ns, time.perf_counter_ns()


class Drained:
    """What DRAIN leaves for AGAIN and for the replay."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.digests: list[int | None] = []
        self.recent: Any = collections.deque(maxlen=KEPT)


def drain(book: Any, drained: Drained, loader: Any, source: Source, least_s: float) -> None:
    """Take batches as fast as the loader gives them. What it had ready before does not count."""
    book.phase = layout.DRAIN

    def note(batch: Any) -> None:
        drained.recent.append(batch)
        if len(drained.lists) < REMEMBERED:
            indices = loader_clone.indices_of_last(source.iterator, book.recent_indices(source.iterator))
            if indices is not None:
                drained.lists.append(indices)
                drained.digests.append(batches.digest_of(batch))

    discarded = discard(source.next, loader_clone.prefetched(loader), least_s, drained.recent.append)
    stretch = Stretch(loader.num_workers, least_s)
    stretch.run(source, note)
    book.measured(layout.DRAIN, stretch.span(), stretch.count, {"discarded": discarded})


def again(book: Any, drained: Drained, loader: Any, least_s: float) -> None:
    """The samples of DRAIN once more, through new workers. Their start is recorded, but not measured."""
    book.phase = layout.AGAIN
    is_iterable = loader_clone.is_iterable_style(loader)
    if not is_iterable and not drained.lists:
        book.skipped(layout.AGAIN, "the indices of the batches are not known")
        return
    digests: list[int | None] = []

    def note(batch: Any) -> None:
        digests.append(batches.digest_of(batch))

    copied = loader_clone.copy_loader(loader, loader.num_workers, None if is_iterable else drained.lists)
    source = Source(book, copied)
    try:
        discarded = discard(source.next_recorded, loader_clone.prefetched(loader), least_s, note)
        stretch = Stretch(loader.num_workers, least_s)
        stretch.run(source, note)
        same = None if is_iterable else are_same(drained.digests, digests)
        detail = {"same": same, "discarded": discarded}
        book.measured(layout.AGAIN, stretch.span(), stretch.count, detail)
    finally:
        source.close()


def drain_pack_loader(book: Any, drained: Drained, loader: Any, iterator: Any) -> None:
    """DRAIN and AGAIN for feedrate's Loader, with what its threads computed: nobody else computes now."""
    source = other_loaders.PackSource(loader, iterator)
    try:
        for phase in (layout.DRAIN, layout.AGAIN):
            book.phase = phase
            if phase == layout.AGAIN:
                source.again()
            digests: list[int | None] = []

            def note(batch: Any, digests: list[int | None] = digests) -> None:
                drained.recent.append(batch)
                digests.append(batches.digest_of(batch))

            discarded = discard(
                source.next, loader_clone.prefetched(loader), book.pace_s, drained.recent.append
            )
            stretch, began_s, read = Stretch(1, book.pace_s), time.process_time(), clock.read_io()[1]
            stretch.run(source, note)
            detail: dict[str, Any] = {
                "discarded": discarded,
                "cpu_s": time.process_time() - began_s,
                "device_bytes": clock.read_io()[1] - read,
            }
            if phase == layout.AGAIN:
                detail["same"] = are_same(drained.digests, digests)
            drained.digests = digests
            book.measured(phase, stretch.span(), stretch.count, detail)
    finally:
        source.close()


def discard(take: Callable[[], Any], count: int, most_s: float, note: Callable[[Any], None]) -> int:
    """Take what is ready or being made. `most_s` counts from the first batch: workers may be starting."""
    deadline = float("inf")
    done = 0
    while done < count and time.monotonic() < deadline:
        try:
            note(take())
        except StopIteration:
            break
        done += 1
        deadline = min(deadline, time.monotonic() + most_s)
    return done


def are_same(first: list[int | None], second: list[int | None]) -> bool | None:
    """Whether the same indices gave the same batches. Pairs in which one side is not known do not count."""
    known = [(a, second[n]) for n, a in enumerate(first) if n < len(second) and a is not None]
    known = [(a, b) for a, b in known if b is not None]
    return all(a == b for a, b in known) if known else None


def after_the_end(book: Any, loader: Any, least_s: float) -> None:
    """Both, on copies of the loader: the user's code is over.

    Always with workers, which have a guard: the process itself has code to run at its exit, which may write.
    """
    drained = Drained()
    copied = loader_clone.copy_loader(loader, loader.num_workers or 1)
    source = Source(book, copied)
    try:
        drain(book, drained, copied, source, least_s)
    finally:
        source.close()
    again(book, drained, copied, least_s)
