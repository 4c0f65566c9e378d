# SPDX-License-Identifier: Apache-2.0
"""Passes over a loader's epochs: a `Run` starts the threads that make their batches, and a `LoaderIterator`
gives those of one epoch to the loop and moves the loader's cursor on.

A run goes on from epoch to epoch: while the last batches of one wait for the loop, it makes the first ones of
the next. An iteration that is left early ends it, and so does one of another epoch. A run has the resolved
options (`Setup`) and this process's files and buffers (`Resources`), and knows neither the loader nor its
iterator: those can be garbage collected while the threads run, and then stop them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.arrays import I64, Flags
from feedrate.errors import PackError, UsageError
from feedrate.format.pack import Pack
from feedrate.loader import order as orders
from feedrate.loader.batch import Assembler, Batch, Ring
from feedrate.loader.device.transfer import Placement, Sent, Transfer, choose_placement
from feedrate.loader.pipeline import Feed, FeedStopped, Meter
from feedrate.loader.ranks import Shares
from feedrate.loader.setup import Epoch, Setup
from feedrate.loader.threads import ShareController, ThreadController
from feedrate.loader.values import make_collate
from feedrate.machine.cpu import count_rank_cores, find_near_cores
from feedrate.remote.pack import RemotePack
from feedrate.remote.prefetch import Ahead
from feedrate.units import format_count, shell_quote

if TYPE_CHECKING:
    from feedrate.loader.cached_pixels import CachedPixels
    from feedrate.loader.device.gpu_decode import GpuDecoder
    from feedrate.loader.device.gpu_tier import GpuTier, StoredPixels
    from feedrate.loader.loader import Loader

# How much the decoding threads give way to the loop, as nice(1) counts. Where threads outnumber cores, the
# one that launches a GPU's work would get half a core beside one of them, and the GPU would wait for it.
# Threads that run Python give way to nobody: one that had to wait would hold the interpreter's lock.
DECODING_NICE = 10


@dataclass(slots=True)
class Resources:
    """The files, buffers and counters of one process. The finaliser has them, too, and must not know the
    loader; `release` gives them back in the right order."""

    pack: Pack
    owns_pack: bool
    rings: dict[str, Ring]
    cached: CachedPixels | None = None
    controller: ThreadController | None = (
        None  # None: the user gave the threads, and the GPU's share is fixed
    )
    gpu_share: ShareController | None = None  # None: the GPU's share is fixed
    gpu: GpuDecoder | None = None  # of the iteration that lives, or lived last
    tier: GpuTier | None = None  # of the cache, on the GPU
    meter: Meter = field(default_factory=Meter)
    process: int = field(default_factory=os.getpid)
    run: Run | None = None  # with the iteration that lives, or with the first batches of the next

    has_begun: bool = False  # an epoch

    def begin_epoch(self) -> None:
        """Count hits and misses of the caches from here on."""
        self.has_begun = True
        for cache in (self.cached, self.tier):
            if cache is not None:
                cache.begin_epoch()

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()
            self.run = None

    def release(self) -> None:
        self.stop()
        if os.getpid() != self.process:
            return
        if self.tier is not None:
            self.tier.close()
        if self.cached is not None:
            self.cached.close()
        if self.owns_pack:
            self.pack.close()


class _Span(NamedTuple):
    """An epoch, and the run's step that its first batch is."""

    first: int
    epoch: Epoch


class _Fetch(NamedTuple):
    """Bytes of a remote pack for the steps of a run from `first` on."""

    first: int
    ahead: Ahead


class Run:
    """Makes the batches of one rank, epoch after epoch, and the first ones of the next before it is begun."""

    def __init__(self, setup: Setup, resources: Resources, world: int) -> None:
        options = setup.options
        self._setup, self._resources, self._meter = setup, resources, resources.meter
        # Asked anew: a process group may have appeared since the loader was made.
        self._cores = count_rank_cores(world)
        self._threads = options.threads or self._cores
        self._stopping = threading.Event()
        self._pool = kernel.Pool(self._threads, nice=DECODING_NICE)
        self._placement = self._place()
        self._gpu = resources.gpu = self._open_gpu()
        self._stored = self._open_stored()
        self._assembler = Assembler(
            pack=resources.pack, wanted=setup.wanted, sampler=setup.sampler, rings=resources.rings,
            output=setup.output, transform=options.transform,
            collate=options.collate or (make_collate(setup.output) if options.transform else None),
            raises=options.on_bad_sample == "raise", meter=self._meter, pool=self._pool,
            cached=resources.cached, gpu=self._gpu, stored=self._stored, lend=self._placement.lend,
            is_stopping=self._stopping.is_set,
        )  # fmt: skip
        self._fetches: tuple[_Fetch, ...] = ()  # the last two
        self._fetched = 0  # up to this step
        # The epoch that is given, and the next one where its first batches are made ahead.
        self._spans: tuple[_Span, ...] = ()
        self._feed = self._open_feed()

    def _place(self) -> Placement:
        setup = self._setup
        return choose_placement(
            setup.device, setup.output, setup.finish, prefetch=setup.prefetch,
            is_plain=not setup.has_functions,
        )  # fmt: skip

    def _open_feed(self) -> Feed[Batch]:
        setup, address = self._setup, self._placement.find_pci_address()
        # While one maker is in the kernel, another prepares its batch and queues it there; a third may wait
        # for the GPU.
        makers = self._threads if setup.has_functions else 3 if setup.is_sent else 2
        return Feed(
            self._make, prefetch=setup.prefetch, makers=max(2, makers), meter=self._meter,
            on_rest=self._rest, interrupt=self._interrupt,
            on_take=None if self._resources.controller is None else self._adapt,
            cores=None if address is None else find_near_cores(address, self._threads),
        )  # fmt: skip

    def expects(self, epoch: Epoch) -> bool:
        """Return whether the batches that were made ahead are those that this epoch would begin with."""
        return (
            len(self._spans) > 1
            and self._spans[-1].epoch == epoch
            and self._feed.can_go_on
            and count_rank_cores(epoch.shares.world) == self._cores
            and self._place().is_like(self._placement)
        )

    def begin(self, epoch: Epoch, coming: Epoch | None) -> Feed[Batch]:
        """Begin an epoch that the run expects, or its first.

        Args:
            coming: the next epoch, whose first batches may be made ahead; None: none may.
        """
        resources, controller, first = self._resources, self._resources.controller, self._feed.steps
        steps = len(epoch.shares)
        ahead = 0 if coming is None else min(self._setup.prefetch, len(coming.shares))
        self._spans = (_Span(first, epoch),)
        if coming is not None and ahead:
            self._spans += (_Span(first + steps, coming),)
        resources.begin_epoch()
        if isinstance(resources.pack, RemotePack):
            self._fetch(resources.pack, first + steps + ahead)
        if controller is not None:
            controller.begin(
                self._threads, self._feed.makers, self._setup.prefetch, self._measure,
                None if self._gpu is None else resources.gpu_share, self._cores,
            )  # fmt: skip
            self._pool.set_limit(controller.threads)
        self._feed.begin(steps, ahead)
        return self._feed

    def stop(self) -> None:
        """End it for good."""
        self._feed.stop()
        del self._feed  # which has this run's methods, and would keep all its buffers with it

    def _make(self, step: int) -> Batch:
        with self._meter.stage("order"):
            epoch, slots, positions = self._find(step)
        with contextlib.ExitStack() as held:
            maker = self._assembler
            if self._fetches:
                first, ahead = next(one for one in reversed(self._fetches) if one.first <= step)
                with self._meter.stage("fetch"):
                    maker = replace(maker, pack=held.enter_context(ahead.batch(step - first)))
            held.enter_context(self._placement.guard())
            # Decoding there takes memory there, so that it waits before it begins.
            is_early = self._stored is not None or (self._gpu is not None and self._gpu.share > 0)
            if is_early:
                self._wait(step)
            batch = maker.make(epoch, positions, slots if self._setup.order.repeats else None)
            if not batch.samples:
                return batch
            if not is_early:
                self._wait(step)
            with self._meter.stage(self._placement.stage):
                return self._placement.finish(batch, step)

    def _find(self, step: int) -> tuple[int, I64, I64]:
        """Return the epoch of a step, its slots there, and the positions of these in the pack."""
        first, epoch = next(one for one in reversed(self._spans) if one.first <= step)
        slots = epoch.shares.slots(step - first)
        return epoch.number, slots, self._setup.subset.positions(epoch.order.indices(slots))

    def _wait(self, step: int) -> None:
        with self._meter.wait("makers for the device"):
            self._placement.wait(step)

    def _adapt(self) -> None:
        """Follow the controllers; in the loop's thread, which takes a batch."""
        controller, gpu, gpu_share = self._resources.controller, self._gpu, self._resources.gpu_share
        assert controller is not None
        controller.note_batch()
        if controller.threads != self._pool.limit:
            self._pool.set_limit(controller.threads)
        if gpu is not None and gpu_share is not None:
            if gpu.is_off:
                gpu_share.switch_off()
            gpu.set_share(gpu_share.share)

    def _measure(self) -> tuple[float, ...]:
        return (*self._meter.waits(), self._pool.cpu_seconds(), time.process_time())

    def _interrupt(self) -> None:
        """Wake makers that wait for something else than the loop."""
        self._stopping.set()
        self._pool.cancel()
        for _, ahead in self._fetches:
            ahead.stop()

    def _rest(self) -> None:
        """Give threads and buffers back, until there is something to make again; all makers have ended."""
        self._pool.rest()
        if self._gpu is not None:
            self._gpu.close()

    def _fetch(self, pack: RemotePack, end: int) -> None:
        """Begin to fetch the bytes of the coming batches, up to the step `end`."""
        setup, resources, first = self._setup, self._resources, self._fetched
        keepers = [one for one in (resources.tier, resources.cached) if one is not None]

        def is_kept(field: str, positions: I64) -> Flags:
            kept: Flags = np.any([one.has(field, positions) for one in keepers], axis=0)
            return kept

        ahead = Ahead(
            pack, end - first, lambda step: self._find(first + step)[2],
            list(dict.fromkeys(w.field.name for w in setup.wanted if w.field is not None)),
            follows_flow=setup.order.kind == orders.Staged.kind and self._spans[0].epoch.number == 0,
            is_kept=is_kept if keepers else None,
        )  # fmt: skip
        # Of the one before, some batches may still be in the making.
        self._fetches = (*self._fetches[-1:], _Fetch(first, ahead))
        self._fetched = end
        ahead.start()

    def _open_gpu(self) -> GpuDecoder | None:
        """Return the device's decoder; None: the CPU decodes."""
        setup, share = self._setup, self._resources.gpu_share
        is_wanted = setup.cpu_reason is None or setup.stored_fields
        if not is_wanted or not isinstance(self._placement, Transfer):
            return None
        from feedrate.loader.device.gpu_decode import open_decoder

        gpu = open_decoder(
            self._placement, self._meter, is_asked_for=setup.options.decode == "gpu",
            is_needed=bool(setup.stored_fields),
        )  # fmt: skip
        if gpu is not None and (share is not None or setup.cpu_reason is not None):
            gpu.set_share(0.0 if share is None else share.share)
        return gpu

    def _open_stored(self) -> StoredPixels | None:
        """Return the store of images on the device; those of earlier epochs stay."""
        setup, resources, gpu, placement = self._setup, self._resources, self._gpu, self._placement
        if gpu is None or not setup.stored_fields or not isinstance(placement, Transfer):
            return None
        from feedrate.loader.device.gpu_tier import GpuTier, StoredPixels

        cache, tier = setup.options.cache, resources.tier
        assert cache is not None
        assert cache.gpu is not None
        if tier is not None and tier.device != gpu.device:
            tier.close()
            tier = None
        if tier is None:
            tier = GpuTier(gpu.device, gpu.stream, cache.gpu, setup.stored_fields, len(resources.pack))
        resources.tier = tier
        placement.beside["the cache"] = lambda: tier.memory_bytes
        return StoredPixels(tier, gpu, self._meter, decodes_there=setup.options.decode != "cpu")


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
    """A stand-in for a DataLoader's batch sampler, and for the sampler in that."""

    batch_size: int
    set_epoch: Callable[[int], None]

    @property
    def sampler(self) -> BatchSampler:
        return self


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
        self._finalizer = weakref.finalize(self, feed.leave, feed.steps)

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
            self._feed.stop()
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
        if loader._cursor is not self._cursor:
            return
        loader._cursor = Cursor(self._cursor.epoch + 1)
        left_out, shares = self._shares.left_out, self._shares
        loader._resources.meter.count(left_out=left_out)
        if left_out and shares.rank == 0:
            warnings.warn(
                f"no rank gets the last {format_count(left_out, 'sample')} of epoch {self._cursor.epoch}: "
                f"fewer than there are ranks ({shares.world})",
                RuntimeWarning,
                stacklevel=3,
            )

    def end(self, why: str) -> None:
        """Stop this iteration; later uses of it raise an error with `why`."""
        if len(self):
            self._ended = why
        self._finalizer()
