# SPDX-License-Identifier: Apache-2.0
"""`Loader`: the public face. What it promises is in docs/loader.md; the modules beside this one keep it.

A loader has a cursor (epoch, samples given). `iter()` begins at the cursor; each batch that is *given* moves
it on, what is only prefetched, also of the next epoch, does not. One iteration lives at a time: a new
`iter()` ends the one before.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from feedrate.cache.results import CacheStats
from feedrate.errors import UsageError
from feedrate.format.pack import Pack
from feedrate.loader import options as checks
from feedrate.loader import order as orders
from feedrate.loader.arguments import check_whole, takes
from feedrate.loader.batch import Batch, Ring
from feedrate.loader.iteration import BatchSampler, Cursor, LoaderIterator, Resources, Run
from feedrate.loader.options import Options, Wanted
from feedrate.loader.packs import open_pack
from feedrate.loader.pipeline import Feed
from feedrate.loader.ranks import Rank, Shares
from feedrate.loader.results import LoaderStats
from feedrate.loader.setup import Epoch, Setup
from feedrate.loader.threads import ShareController, ThreadController
from feedrate.remote.pack import RemotePack


class Loader:
    """Feeds batches from a pack.

    Args:
        pack: the pack's folder, its address ("s3://...", "https://...", "sftp://..."), or an opened `Pack`.
        batch_size: samples per batch and rank.
        shuffle: a fresh permutation of all samples in every epoch; else the stored order.
        seed: every random choice follows from it, the epoch and the sample's number.
        fields: what a batch holds, in this order: names of the pack's fields, "key", "number", `View`s. None:
            image and label (or labels), where the pack has them.
        image: where to cut and how large; None: whole images, which must then share one size.
        flip: mirror left to right; True: half of the samples; a number: that share.
        order: "windowed" (large sequential reads), "staged" (so in the first epoch alone: the default with
            `scratch`), "shuffled", positions, or a function from epoch to positions.
        weights: draw with replacement: one weight per sample, or "balanced" for equal shares of the classes.
        split: a part of the samples that 'feedrate split' made: "train", "train+validation", "fold:2"; or a
            fixed share of them, (0, 0.9) and (0.9, 1), which does not depend on the seed; or "all".
        drop_last: drop the last global batch when it is not full.
        pad: fill the last global batch up with samples from the epoch's beginning, so that ranks get equal
            numbers.
        rank, world_size: this process among all; None: as torch.distributed says, else RANK and WORLD_SIZE.
            world_size=1: this process gets all samples, also where there are others.
        transform: called with a dict of one sample's fields, in threads.
        collate: makes a batch of a list of samples; None with a transform: stack what stacks.
        scratch: a folder on a disk of this machine, or "auto" to look for one: the pack is copied there while
            it is read, once for all processes of the machine.
        cache: a `Cache` that keeps decoded samples near, in memory, on a disk or on the GPU, so that further
            epochs decode less.
        threads: for reading and decoding; None: as many as the loop gains from, at most the cores that this
            process may use, divided among the ranks of its node; `stats().threads` tells.
        prefetch: how many batches to make ahead, at an epoch's end of the next; None: enough to keep the
            threads busy.
        on_bad_sample: "raise", "skip" (the batch is then smaller), or a function that is told and then skips.
            Storage that cannot be read raises in any case, and so does more than a tenth of an epoch.
        output: "torch" or "numpy"; None: torch where it is installed.
        device: "cuda", "cuda:1", a number, a torch.device, "mps" or "cpu": batches arrive there, copied while
            the one before is trained on; "cuda" is the device that is current when an iteration begins.
        dtype: torch.float32, torch.float16 or torch.bfloat16: images come in it, from 0 to 1; None: uint8, or
            uint16 where `depth` says so.
        normalize: (mean, std), each with a number per channel in units of 0 to 1, or "imagenet"; images then
            come as float32 unless `dtype` says otherwise.
        on_device: what else is done to images where they arrive: a list of `ColorJitter`, `Grayscale`,
            `GaussianBlur`, `Solarize` and functions on the batch of images, then `RandomErasing`, then
            `MixUp` and `CutMix`, which give soft labels.
        mode: "RGB", or "L": images with one channel, as Pillow's `convert("L")` makes it of the colours.
        depth: what becomes of gray of more than 8 bits, which is an error without it: "clip" cuts at 255, as
            Pillow's `convert("L")` does; "uint16": images come as uint16, values as they are, and those of 8
            bits times 257; (low, high): that range becomes 0 to 255. Colours of 16 bits keep their high byte.
        decode: with device="cuda", where images are decoded: "cpu", "gpu", or "auto": on the GPU as much as
            the loop gains from. Pixels are the same; `stats()` tells.
        allow_addresses: hosts, ["s3://bucket"], where files may be that the pack names: it needs them for a
            pack that names files elsewhere, and is no index that this user made.
    """

    @takes(Options)
    def __init__(self, options: Options) -> None:
        self._options, self._cache = options, options.cache
        pack, scratch = options.pack, options.scratch
        owns_pack = not isinstance(pack, Pack)
        if not isinstance(pack, Pack):
            scratch = None if scratch is None else os.fspath(scratch)
            pack = open_pack(pack, scratch, allow_addresses=options.allow_addresses)
        try:
            self._setup = setup = Setup(options, pack)
        except BaseException:
            if owns_pack:
                pack.close()
            raise
        # The doctor's hook reads these: what was asked for, and what came of it.
        self._subset, self._threads, self._prefetch = setup.subset, setup.threads, setup.prefetch
        self.ranks = setup.ranks
        self._cursor = Cursor()
        self._closed = False
        self._acquire(pack, owns_pack)

    def _acquire(self, pack: Pack, owns_pack: bool) -> None:
        """Set up what belongs to one process."""
        setup, options = self._setup, self._options
        gpu_share = ShareController() if options.decode == "auto" and setup.cpu_reason is None else None
        controller = None
        if options.threads is None or gpu_share is not None:
            controller = ThreadController(setup.threads, is_fixed=options.threads is not None)
        rings = {
            # Two: the last batch of some ranks when the others hold one.
            w.name: Ring((max(2, options.batch_size), *w.out_size, w.channels), setup.prefetch + 2, w.dtype)
            for w in setup.wanted
            if w.field is not None and w.out_size is not None
        }
        cached = None
        if self._cache is not None and self._cache.tiers:
            from feedrate.loader.cached_pixels import CachedPixels

            cached = CachedPixels(pack, self._cache, setup.wanted, setup.sampler)
        self._resources = Resources(pack, owns_pack, rings, cached, controller, gpu_share)
        self._finalizer = weakref.finalize(self, self._resources.release)
        self._live: weakref.ref[LoaderIterator] | None = None

    def __len__(self) -> int:
        """Return how many batches the epoch has, also where `load_state_dict` leaves only a part of them.

        Frameworks compare it with the batches they have counted, those of before a resume included. What is
        still to come is `len(iter(loader))`.
        """
        return len(self._plan(Cursor(self._upcoming().epoch)).shares)

    def _plan(self, cursor: Cursor) -> Epoch:
        return self._setup.plan_epoch(cursor.epoch, cursor.samples, self.ranks.use())

    def _upcoming(self) -> Cursor:
        if self._cursor.is_used:
            return Cursor(self._cursor.epoch + 1)
        return self._cursor

    def __iter__(self) -> LoaderIterator:
        """Begin an epoch. An iteration of this loader that still lives is over."""
        if self._closed:
            raise UsageError("this loader is closed; make a new one to iterate")
        self._adopt()
        self._end_live()
        iterator = LoaderIterator(self, *self._begin())
        self._live = weakref.ref(iterator)
        return iterator

    def _begin(self) -> tuple[Feed[Batch], Shares, Cursor]:
        setup, resources = self._setup, self._resources
        self._cursor = cursor = self._upcoming()
        epoch = self._plan(cursor)
        if not cursor.samples and len(setup.subset):
            epoch.shares.check_not_empty(cursor.epoch)
        run = resources.run
        if run is None or not run.expects(epoch):
            resources.stop()
            run = resources.run = Run(setup, resources, epoch.shares.world)
        # A cache, or a copy on scratch, is to be full before an epoch is made of it.
        fills = setup.options.cache is not None or setup.options.scratch is not None
        is_filling = fills and not resources.has_begun
        looks_ahead = setup.looks_ahead and not is_filling
        feed = run.begin(epoch, self._plan(Cursor(cursor.epoch + 1)) if looks_ahead else None)
        return feed, epoch.shares, cursor

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter()` give epoch `epoch` from its beginning.

        So does an iteration that has begun and not given a batch yet. A position in that epoch which came
        from `load_state_dict` is kept until a batch was given from it.
        """
        check_whole("epoch", epoch, least=0)
        if self._cursor.epoch != epoch or self._cursor.is_used:
            self._cursor = Cursor(int(epoch))

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning tells the epoch, and finds the batch size; it gives no indices."""
        return BatchSampler(self._options.batch_size, self.set_epoch)

    @property
    def dataset(self) -> NoReturn:
        """There is none: a framework that asks for it would sample it anew, or skip batches once more."""
        raise AttributeError(
            "a feedrate Loader has no dataset to be sampled, sharded or skipped anew: its batches are shared "
            "out among the ranks already, and go on where load_state_dict says. Trainer of transformers: "
            "ignore_data_skip=True; Accelerate: no skip_first_batches (docs/frameworks.md)"
        )

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank."""
        return self._options.batch_size

    @property
    def output(self) -> str:
        """What arrays of a batch are: "torch" or "numpy"."""
        return self._setup.output

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """What a batch holds, in this order."""
        return self._setup.wanted

    @property
    def has_functions(self) -> bool:
        """Whether a transform or a collate decides what a batch is."""
        return self._setup.has_functions

    @property
    def epoch(self) -> int:
        """The epoch that is being given, or that the next `iter()` gives."""
        return self._cursor.epoch

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(checks.find_label(self._resources.pack).classes or ())

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: plain numbers and words that JSON can hold.

        Counts samples given on all ranks together, so it may be loaded with another number of ranks or batch
        size.
        """
        return self._dump_state((self._cursor.epoch, self._cursor.samples, self._cursor.skipped))

    def _dump_state(self, place: tuple[int, int, int]) -> dict[str, Any]:
        setup = self._setup
        return orders.dump_state(setup.fingerprint, setup.options, setup.subset, setup.order, place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` go on where `state` was taken.

        Raises:
            UsageError: the state is of another pack, seed or order; the message names the difference.
        """
        epoch, samples, skipped = orders.check_state(state, self._dump_state((0, 0, 0)))
        length = self._setup.order.at(epoch).length
        if samples > length:
            raise UsageError(f"the state has given {samples} samples of an epoch that holds {length}")
        self._cursor = Cursor(epoch, samples, skipped)

    def stats(self) -> LoaderStats:
        """Return what each stage did since the loader was made, and which one is the slowest."""
        self._adopt()
        resources = self._resources
        pack, controller, gpu = resources.pack, resources.controller, resources.gpu
        return replace(
            resources.meter.read(),
            gpu_share=0.0 if gpu is None else gpu.share,
            threads=self._threads if controller is None else controller.threads,
            thread_changes=0 if controller is None else controller.changes,
            fetch=pack.fetch_stats() if isinstance(pack, RemotePack) else None,
            cache=self._cache_stats(),
        )

    def _cache_stats(self) -> CacheStats | None:
        setup, cached, tier = self._setup, self._resources.cached, self._resources.tier
        positions = orders.members(setup.subset)
        if tier is None:
            return None if cached is None else cached.stats(positions, setup.wanted)
        there, (made, others) = tier.stats(positions, setup.stored_fields), tier.misses
        samples = len(setup.stored_fields) * len(positions)
        if cached is None:
            return CacheStats(samples, (there,), made + others, 0, 0)
        stats = cached.stats(positions, setup.wanted, tier)
        # Of those that came another way, the host's tiers know.
        tiers, misses = (there, *stats.tiers), stats.misses + made
        return replace(stats, samples=max(samples, stats.samples), tiers=tiers, misses=misses)

    def close(self) -> None:
        """End a living iteration, drop what was made ahead, close the files; batches stay valid."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError(
            "a Loader cannot be sent to another process: it has threads and open files",
            hint="make it there from the pack's path; or use Dataset with a DataLoader",
        )

    def _adopt(self) -> None:
        """In a forked child, begin anew and share nothing: threads are gone, and may have held locks."""
        if os.getpid() != self._resources.process and not self._closed:
            self._finalizer()
            if self._setup.finish is not None:
                self._setup.finish = self._setup.finish.renew()
            self._acquire(self._resources.pack.reopen(), owns_pack=True)

    def _end_live(self) -> None:
        live = self._live() if self._live is not None else None
        if live is not None:
            live.end("a newer iteration of this loader has begun, and this one is over")
        self._live = None


_FRAMEWORKS = {
    "tf.distribute": (
        "feedrate.tensorflow",
        "map the dataset: .map(function); TensorFlow places its tensors",
    ),
    "jax": ("feedrate.jax", "do it to the batch, in your jitted function; device= is jax.device_put's"),
}


def open_for(
    framework: str,
    rank: Rank | None,
    pack: str | os.PathLike[str] | Pack | Loader,
    options: Mapping[str, Any],
) -> Loader:
    """Return a loader of numpy arrays: a new one, or that of the user, who then has given it its options.

    Args:
        rank: (rank, world size) as the framework knows them; None: it knows of one process, and the loader
            looks for others itself.

    Raises:
        UsageError: the loader gives torch tensors, is asked to work on them, or took itself for another rank.
    """
    if not isinstance(pack, Loader):
        ours, instead = _FRAMEWORKS[framework]
        for name in ("device", "dtype", "normalize", "on_device"):
            if options.get(name) is not None:
                raise UsageError(f"{name}= works on torch tensors, and {ours} gives none", hint=instead)
        has_rank = {"rank", "world_size"} & options.keys()
        known = {} if rank is None or has_rank else {"rank": rank[0], "world_size": rank[1]}
        return Loader(pack, **{**known, **options, "output": "numpy"})
    if options:
        raise UsageError(f"the loader is made already; give it {', '.join(options)} itself")
    if pack.output != "numpy":
        raise UsageError('this loader gives torch tensors; make it with output="numpy"')
    pack.ranks.adopt(rank, framework)
    return pack
