# SPDX-License-Identifier: Apache-2.0
"""Feeds the user's loop, phase by phase, and measures how fast the device takes a buffer of a batch's size.

The replay comes before the trials: a loop that counts its batches may leave at any step, and what the device
can take is the number that matters most. What may raise in user code comes last.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .. import layout
from ..record import loader_clone, other_loaders
from ..session import session
from . import batches, replay, watching
from .batches import torch

COPIES = 5
MOST_BYTES = 1 << 29


def measure_copies(size: int) -> None:
    """Write the fact "copy-rates". Without a CUDA device in use, nothing."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    size = min(size, MOST_BYTES)
    pageable = torch.ones(size, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    session.facts(
        "copy-rates",
        pageable_bytes_per_s=size / fastest(lambda: target.copy_(pageable)),
        pinned_bytes_per_s=size / fastest(lambda: target.copy_(pinned, non_blocking=True)),
    )


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of the middle one of a few goes, the device's work included."""
    synchronize = torch.cuda.synchronize
    times = []
    for _ in range(COPIES + 1):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[COPIES // 2]


class LoopLeft(BaseException):
    """The user's code has left its loop, or there is nothing left to measure."""


class Feeding:
    """Gives a batch for every next() of the training loader, and of loaders that go along with it."""

    def __init__(self, scope: Any, seen: Any, training: Any) -> None:
        self._scope = scope
        self._watching = seen
        self._training = training
        self._companions = seen.companions(training)
        self._kept: list[Any] = []
        self._kept_beside: dict[int, list[Any]] = {}
        self._iterator: Any = None
        self._left: int | None = None  # batches of the loop's epoch; it is fed with more of them
        self._feeds: list[Any] = []
        self._feed: Any = None

    def plan(self, loader: Any, kept: list[Any], agreed: dict[str, Any] | None) -> None:
        """`agreed`: what the ranks agreed on, None for a single process."""
        self._kept = kept
        counts = agreed or {}
        first = replay.NotingReplay(kept, counts.get("replay"))
        self._feeds = [first]
        if not other_loaders.is_pack_loader(loader):  # which has no workers
            self._plan_trials(loader, is_alone=agreed is None)
        self._feeds.append(replay.HalfPrecision(kept, counts.get("half")))
        if agreed is None:
            # Last of all: a model that takes views of its images raises in this layout.
            self._feeds.append(replay.ChannelsLast(kept, first.called))
            if all(batch.has_images() for batch in kept):
                self._feeds.append(replay.LoaderLayout(kept))
        else:
            session.skip("ranks share gradients in the layout they began with", layout.REPLAY_CHANNELS_LAST)

    def _plan_trials(self, loader: Any, is_alone: bool) -> None:
        why_not = ""
        if not is_alone:
            why_not = "ranks must make the same number of steps"
        elif loader_clone.is_iterable_style(loader):
            why_not = "an IterableDataset divides its data among its workers by itself"
        elif not loader.num_workers and sys.modules["multiprocessing"].get_start_method() != "fork":
            why_not = "the script may not be made for workers that are not forked"
        if why_not:
            session.skip(why_not, layout.TRIAL)
            return
        own = loader.num_workers
        others = [n for n in session.settings.get("try_workers", []) if n != own][:2]
        # The present number once more, next to each of the others: machines change their speed within
        # seconds, and what a trial is compared with has to be measured when it is.
        numbers = [*others[:1], own, *others[1:]] if others else []
        self._feeds += [replay.Trial(self._scope, loader, n) for n in numbers]

    def next(self, iterator: Any, take: Callable[[], Any]) -> Any:
        """The batch for a next() of this iterator. LoopLeft: the end."""
        seen = self._watching.seen_of(iterator)
        if seen in self._companions:
            return self._beside(seen, take)
        if seen is not self._training:
            raise LoopLeft("another loader was asked")
        if iterator is not self._iterator:
            with self._scope.own():
                loader = session.loaders.loader_of(iterator)
                self._left = watching.room_of(loader, iterator)[0] or None
                # Its workers would only disturb.
                loader_clone.shut_down(loader, iterator)
            self._iterator = iterator
        if self._left is not None:
            self._left -= 1
        if self._feed is not None and self._feed.is_over():
            self._close()
        while True:
            if self._feed is None:
                if not self._feeds:
                    raise LoopLeft("")
                self._open(self._feeds.pop(0))
                continue
            try:
                return self._feed.next()
            except Exception as error:
                session.skip(f"it failed: {type(error).__name__}: {error}", self._feed.phase)
                self._stop()

    def _open(self, feed: Any) -> None:
        with self._scope.own():
            session.phase = feed.phase
            try:
                why = feed.reason_not_to()
                if why is None:
                    feed.start()
                    self._feed = feed
                    return
            except Exception as error:
                why = f"it could not begin: {type(error).__name__}: {error}"
            session.skip(why, feed.phase)

    def _close(self) -> None:
        with self._scope.own():
            self._feed.write()
            is_replay = self._feed.phase == layout.REPLAY
            self._stop()
            if is_replay:
                try:
                    measure_copies(batches.bytes_of(self._kept[0].again()))
                except Exception as error:
                    session.note_error("experiments: copy rates", error)

    def _stop(self) -> None:
        feed, self._feed = self._feed, None
        try:
            feed.stop()
        except Exception as error:
            session.note_error("experiments: stop", error)

    def _beside(self, seen: Any, take: Callable[[], Any]) -> Any:
        """A loader that goes along with the training one: real batches in a trial, kept ones in a replay."""
        kept = self._kept_beside.setdefault(id(seen), [])
        if len(kept) >= 2 and (self._feed is None or self._feed.phase != layout.TRIAL):
            kept.append(kept.pop(0))
            return kept[-1].again()
        with self._scope.own():
            try:
                batch = take()
            except StopIteration:
                if not kept:
                    raise LoopLeft("a loader beside the training one was at its end") from None
                return kept[-1].again()
            if len(kept) < 2:
                kept.append(batches.Kept(batch))
            return batch

    def cut(self, error: str | None = None) -> None:
        """The user's code has left the loop: what was measured until then is worth keeping.

        `error`: why it is over; None, when all was measured.
        """
        current = self._feed
        if current is not None and not current.write(is_cut=True):
            self._feeds.insert(0, current)
        left, self._feed, self._feeds = self._feeds, None, []
        for feed in left:
            try:
                why = feed.reason_not_to() if feed is not current else None
            except Exception:
                why = None
            when = "when it was tried" if feed is current else "before it was tried"
            if error and self._left is not None and self._left < 0:
                when += ", past the last batch of its epoch"
            why = why or f"the loop was left {when}: {error or 'the run was ended'}"
            session.skip(why, feed.phase)
