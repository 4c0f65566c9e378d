# SPDX-License-Identifier: Apache-2.0
"""One pass over a loader's epoch: gives the batches that the feed makes, and moves the loader's cursor on."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedrate.errors import PackError, UsageError
from feedrate.format.pack import Pack
from feedrate.loader.batch import Batch
from feedrate.loader.device.transfer import Sent
from feedrate.loader.pipeline import Feed, FeedStopped
from feedrate.loader.ranks import Shares
from feedrate.loader.threads import ThreadController
from feedrate.units import format_count, shell_quote

if TYPE_CHECKING:
    from feedrate.loader.cached_pixels import CachedPixels
    from feedrate.loader.device.gpu_decode import GpuDecoder
    from feedrate.loader.device.gpu_tier import GpuTier
    from feedrate.loader.loader import Loader
    from feedrate.loader.threads import ShareController

# Of an epoch's samples, so many may be skipped: more is no longer the dataset that training was meant for.
MOST_SKIPPED = 0.1


@dataclass(slots=True)
class Cursor:
    """Where an epoch stands. `is_used`: a batch was given, so the next `iter()` goes to another epoch.

    A cursor with samples that is not used yet came from `load_state_dict`. `skipped`: bad samples on all
    ranks together, where each takes the others for as bad as itself.
    """

    epoch: int = 0
    samples: int = 0
    skipped: int = 0
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class BatchSampler:
    """What a loader has in the place of a DataLoader's batch sampler, and of the sampler in that."""

    batch_size: int
    set_epoch: Callable[[int], None]

    @property
    def sampler(self) -> BatchSampler:
        return self


@dataclass(slots=True)
class Resources:
    """What must be given back, in this order; shared with the finaliser, which must not know the loader."""

    pack: Pack
    owns_pack: bool
    cached: CachedPixels | None = None
    controller: ThreadController | None = None  # None: the number of threads was given, and who decodes
    gpu_share: ShareController | None = None  # None: who decodes was given
    gpu: GpuDecoder | None = None  # of the iteration that lives, or lived last
    tier: GpuTier | None = None  # of the cache, on the GPU
    process: int = field(default_factory=os.getpid)
    feed: Feed[Batch] | None = None

    def release(self) -> None:
        if os.getpid() != self.process:
            return
        if self.feed is not None:
            self.feed.stop()
            self.feed = None
        if self.tier is not None:
            self.tier.close()
        if self.cached is not None:
            self.cached.close()
        if self.owns_pack:
            self.pack.close()


class LoaderIterator(Iterator[Any]):
    """One pass over an epoch, or over the rest of it."""

    def __init__(self, loader: Loader, feed: Feed[Batch], shares: Shares, cursor: Cursor) -> None:
        self._loader = loader
        self._step = 0
        self._skipped = 0  # here, and not before a resume
        self._has_begun = False
        self._ended: str | None = None
        self._set_up(feed, shares, cursor)

    def _set_up(self, feed: Feed[Batch], shares: Shares, cursor: Cursor) -> None:
        self._feed, self._shares, self._cursor = feed, shares, cursor
        self._finalizer = weakref.finalize(self, feed.stop)

    def __len__(self) -> int:
        """Return how many batches are still to come."""
        return len(self._shares) - self._step

    def __next__(self) -> Any:
        self._check_usable()
        if not self._has_begun:
            self._has_begun = True
            self._follow()
        while self._step < len(self._shares):
            batch = self._take()
            self._cursor.samples = self._shares.after(self._step)
            self._cursor.skipped += len(batch.bad) * self._shares.world
            self._cursor.is_used = True
            self._step += 1
            if batch.samples:
                return batch.data.receive() if isinstance(batch.data, Sent) else batch.data
        self._finish_epoch()
        raise StopIteration

    def _follow(self) -> None:
        """Go to the epoch that was set since `iter()`: Lightning calls that first, then sets the epoch."""
        loader = self._loader
        is_live = loader._live is not None and loader._live() is self
        if is_live and loader._cursor is not self._cursor:
            self._finalizer()
            self._set_up(*loader._begin())

    def _check_usable(self) -> None:
        if os.getpid() != self._feed.process:
            raise UsageError(
                f"this iterator belongs to process {self._feed.process}, and this is a fork of it",
                hint="call iter(loader) here for one of its own",
            )
        if self._loader._closed:
            raise UsageError("the loader of this iterator is closed")
        if self._ended is not None:
            raise UsageError(
                f"this iterator cannot go on: {self._ended}", hint="call iter(loader) for a new one"
            )

    def _take(self) -> Batch:
        policy = self._loader._options.on_bad_sample
        try:
            batch = self._feed.take()
            if callable(policy):
                for bad in batch.bad:
                    policy(bad)
            if batch.bad:
                self._check_skipped(batch)
        except FeedStopped:
            self._ended = self._ended or "it was stopped"
            self._check_usable()
            raise
        except BaseException as error:
            # Only words are kept: the error itself would hold this frame, and so this iterator, in a cycle.
            self._ended = f"it ended with {type(error).__name__}: {error}"
            self._finalizer()
            raise
        return batch

    def _check_skipped(self, batch: Batch) -> None:
        """Raise PackError where skipping bad samples would end in a hang, or in an epoch full of gaps."""
        shares = self._shares
        hint = f"look at the pack: feedrate verify {shell_quote(self._loader._resources.pack.name)}"
        if not batch.samples and shares.world > 1:
            raise PackError(
                f"none of the {len(batch.bad)} samples of batch {self._step} on rank {shares.rank} can be "
                f"used, and the other ranks would wait forever for it; the first: {batch.bad[0]}",
                hint=hint,
            )
        self._skipped += len(batch.bad)
        skipped = self._cursor.skipped // shares.world + len(batch.bad)
        share = -(-shares.length // shares.world)
        # Of the other ranks nothing is known, and where each has a few samples, one is more than a tenth.
        is_few = self._skipped == 1 and shares.world > 1
        if skipped > MOST_SKIPPED * shares.length / shares.world and not is_few:
            whose = f"on rank {shares.rank} " if shares.world > 1 else ""
            raise PackError(
                f"{skipped:,} of {share:,} samples of epoch {self._cursor.epoch} {whose}are bad and "
                f"were skipped, and at most {MOST_SKIPPED:.0%} may be; the last: {batch.bad[-1]}",
                hint=f"{hint}, or give the positions of good samples as order=",
            )

    def _finish_epoch(self) -> None:
        loader = self._loader
        self._finalizer()
        if loader._cursor is self._cursor:
            loader._cursor = Cursor(self._cursor.epoch + 1)
            self._tell_left_out()

    def _tell_left_out(self) -> None:
        left_out, shares = self._shares.left_out, self._shares
        self._loader._meter.count(left_out=left_out)
        if left_out and shares.rank == 0:
            warnings.warn(
                f"no rank gets the last {format_count(left_out, 'sample')} of epoch {self._cursor.epoch}: "
                f"fewer than there are ranks ({shares.world})",
                RuntimeWarning,
                stacklevel=4,
            )

    def end(self, why: str) -> None:
        """Stop this iteration; `why` is told to those who go on using it."""
        if len(self):
            self._ended = why
        self._finalizer()
