# SPDX-License-Identifier: Apache-2.0
"""`Loader`: the public face. What it promises is in docs/loader.md; the modules beside this one keep it.

A loader has a cursor (epoch, samples given). `iter()` begins at the cursor; each batch that is *given* moves
it on, what is only prefetched does not. One iteration lives at a time: a new `iter()` ends the one before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from feedrate import kernel
from feedrate.arrays import I64, Flags
from feedrate.cache.results import CacheStats
from feedrate.errors import UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader import options as checks
from feedrate.loader import order as orders
from feedrate.loader.arguments import check_whole, takes
from feedrate.loader.batch import Assembler, Batch, Ring, choose_prefetch
from feedrate.loader.device.finish import check_finish
from feedrate.loader.device.transfer import Placement, Transfer, check_device, choose_placement
from feedrate.loader.geometry import CropSampler
from feedrate.loader.image import RandomCrop
from feedrate.loader.iteration import BatchSampler, Cursor, LoaderIterator, Resources
from feedrate.loader.options import Options, Wanted
from feedrate.loader.packs import open_pack
from feedrate.loader.pipeline import Feed, Meter
from feedrate.loader.ranks import Rank, Ranks, Shares
from feedrate.loader.results import LoaderStats
from feedrate.loader.threads import ShareController, ThreadController
from feedrate.loader.values import choose_output, make_collate
from feedrate.machine.cpu import count_rank_cores, find_near_cores
from feedrate.remote.pack import RemotePack
from feedrate.remote.prefetch import Ahead

if TYPE_CHECKING:
    from feedrate.loader.cached_pixels import CachedPixels
    from feedrate.loader.device.gpu_decode import GpuDecoder
    from feedrate.loader.device.gpu_tier import StoredPixels

log = logging.getLogger("feedrate")

# How much the decoding threads give way to the loop, as nice(1) counts. Where threads outnumber cores, the
# one that launches a GPU's work would get half a core beside one of them, and the GPU would wait for it.
# Threads that run Python give way to nobody: one that had to wait would hold the interpreter's lock.
DECODING_NICE = 10


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
        prefetch: how many batches to make ahead; None: enough to keep the threads busy.
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
            self._prepare(pack)
        except BaseException:
            if owns_pack:
                pack.close()
            raise
        self._acquire(pack, owns_pack)

    def _prepare(self, opened: Pack) -> None:
        """Check what was asked for against the pack."""
        options = self._options
        self._wanted = checks.resolve_fields(
            opened, options.fields, options.image, options.mode, options.depth
        )
        if options.image is None:
            checks.check_shapes(opened, self._wanted, options.batch_size)
        reference = checks.find_reference(opened, options.image, options.flip)
        self._sampler = None
        if reference is not None:
            self._sampler = CropSampler(
                reference, options.image, checks.flip_probability(options.flip), options.seed,
                is_shown=any(w.out_size is not None for w in self._wanted),
                has_choices=any(len(w.filters or ()) > 1 for w in self._wanted),
            )  # fmt: skip
        self._subset = orders.find_split(opened, options.split)
        # Positions and weights of samples say by themselves which are meant.
        is_open = all(isinstance(given, str | None) for given in (options.order, options.weights))
        if options.split is None and is_open and (parts := orders.find_parts(opened)):
            orders.tell_parts(opened.name, parts)
        self._order = orders.choose_order(opened, options, self._subset)
        self._fingerprint = orders.fingerprint(opened.manifest)
        self._output = choose_output(options.output, options.depth)
        self._device = check_device(options.device, self._output)
        self._finish = check_finish(options, self._wanted, opened, self._output)
        self.ranks = Ranks(options.given_rank)
        rank = self.ranks.look()
        self._threads = options.threads or count_rank_cores(rank[1])
        pixels = sum(w.channels * w.out_size[0] * w.out_size[1] for w in self._wanted if w.out_size)
        wide = max(w.dtype.itemsize for w in self._wanted)
        wide = self._finish.dtype.itemsize if self._finish is not None and self._finish.dtype else wide
        self._is_sent = self._device is not None and self._device.type == "cuda"
        self._is_padded = isinstance(options.image, RandomCrop) and options.image.is_padded
        self._cpu_reason = self._explain_cpu()
        self._stored_fields = self._choose_stored()
        # A transform runs in the makers, so there should be as many as threads. A loop that launches work for
        # a GPU takes batches unevenly, and the GPU should not feel it when decoding is late once.
        makers = self._threads if options.transform else 4 if self._is_sent else 1
        self._prefetch = options.prefetch or choose_prefetch(pixels * wide * options.batch_size, makers)
        self._cursor = Cursor()
        self._closed = False
        if len(self._subset):  # a pack without samples gives none, which is no mistake of its user
            self._shares(self._order.at(0), 0, rank).check_not_empty(0)

    def _explain_cpu(self) -> str | None:
        """Return why the CPU decodes whatever happens; None: the GPU may."""
        options = self._options
        if options.decode == "gpu" and not self._is_sent:
            raise UsageError(
                'decode="gpu" decodes images on the GPU that batches go to, and this loader has none',
                hint='device="cuda", or leave out decode',
            )
        if options.decode == "gpu":
            self._check_narrow('decode="gpu"')
        if options.decode == "cpu" or not self._is_sent:
            return "so it was asked for"
        from feedrate.loader.device.gpu_decode import explain_cpu

        reason = explain_cpu(
            has_functions=self.has_functions,
            has_cache=self._cache is not None and bool(self._cache.tiers),
            is_padded=self._is_padded,
            is_wide=options.depth == "uint16",
            fields=[w.field for w in self._wanted if w.field is not None],
        )
        if reason is not None and options.decode == "gpu":
            log.warning('decode="gpu": all images are decoded on the CPU, since %s', reason)
        return reason

    def _check_narrow(self, option: str) -> None:
        if self._options.depth == "uint16":
            raise UsageError(
                f'{option} makes pixels of 8 bits on the GPU, and depth="uint16" asks for 16: '
                "depth=(low, high) goes with it, or leave it out"
            )

    def _choose_stored(self) -> list[str]:
        """Return the fields of images that the cache may keep on the GPU."""
        if self._cache is None or self._cache.gpu is None:
            return []
        option = f"cache=Cache(gpu={self._cache.gpu.asked!r})"
        if not self._is_sent:
            raise UsageError(
                f"{option} keeps samples on the GPU that batches go to, and this loader has none",
                hint='device="cuda", or leave out gpu',
            )
        self._check_narrow(option)
        from feedrate.loader.device.gpu_decode import explain_host

        names = {w.field.name for w in self._wanted if w.field is not None and w.field.kind is Kind.IMAGE}
        reason = explain_host(has_functions=self.has_functions, is_padded=self._is_padded)
        if reason is None and not names:
            reason = "no field of images is asked for"
        if reason is not None:
            log.warning("%s: nothing is kept on the GPU, since %s", option, reason)
            return []
        return sorted(names)

    def _acquire(self, pack: Pack, owns_pack: bool) -> None:
        """Set up what belongs to one process: opened files, buffers, counters."""
        options = self._options
        gpu_share = ShareController() if options.decode == "auto" and self._cpu_reason is None else None
        controller = None
        if options.threads is None or gpu_share is not None:
            controller = ThreadController(self._threads, is_fixed=options.threads is not None)
        self._resources = Resources(pack, owns_pack, self._open_cache(pack), controller, gpu_share)
        self._finalizer = weakref.finalize(self, self._resources.release)
        self._live: weakref.ref[LoaderIterator] | None = None
        self._meter = Meter()
        self._rings = {
            w.name: Ring(
                # Two: the last batch of some ranks when the others hold one.
                (max(2, self._options.batch_size), *w.out_size, w.channels),
                self._prefetch + 2,
                w.dtype,
            )
            for w in self._wanted
            if w.field is not None and w.out_size is not None
        }

    def _open_cache(self, pack: Pack) -> CachedPixels | None:
        if self._cache is None or not self._cache.tiers:
            return None
        from feedrate.loader.cached_pixels import CachedPixels

        return CachedPixels(pack, self._cache, self._wanted, self._sampler)

    def _shares(self, order: orders.EpochOrder, start: int, rank: Rank) -> Shares:
        options = self._options
        return Shares(order.length, options.batch_size, *rank, options.drop_last, options.pad, start)

    def __len__(self) -> int:
        """Return how many batches the epoch has, also where `load_state_dict` leaves only a part of them.

        Frameworks compare it with the batches they have counted, those of before a resume included. What is
        still to come is `len(iter(loader))`.
        """
        return len(self._shares(self._order.at(self._upcoming().epoch), 0, self.ranks.use()))

    def _upcoming(self) -> Cursor:
        if self._cursor.is_used:
            return Cursor(self._cursor.epoch + 1)
        return self._cursor

    def __iter__(self) -> LoaderIterator:
        """Begin an epoch. An iteration of this loader that still lives is over."""
        self._check_open()
        self._end_live()
        iterator = LoaderIterator(self, *self._begin())
        self._live = weakref.ref(iterator)
        return iterator

    def _begin(self) -> tuple[Feed[Batch], Shares, Cursor]:
        """Start to make the batches of the upcoming epoch."""
        self._cursor = cursor = self._upcoming()
        order = self._order.at(cursor.epoch)
        shares = self._shares(order, cursor.samples, self.ranks.use())
        if not cursor.samples and len(self._subset):
            shares.check_not_empty(cursor.epoch)
        if self._resources.cached is not None:
            self._resources.cached.begin_epoch()
        feed = self._make_feed(order, shares, cursor.epoch)
        self._resources.feed = feed
        feed.start()
        return feed, shares, cursor

    def _make_feed(self, order: orders.EpochOrder, shares: Shares, epoch: int) -> Feed[Batch]:
        options, resources, subset, meter = self._options, self._resources, self._subset, self._meter
        repeats, stopping, controller = self._order.repeats, threading.Event(), resources.controller
        # Asked anew: a process group may have appeared since the loader was made.
        threads = options.threads or count_rank_cores(shares.world)
        pool = kernel.Pool(threads, nice=DECODING_NICE)
        placement = choose_placement(
            self._device, self._output, self._finish, prefetch=self._prefetch,
            is_plain=not self.has_functions,
        )  # fmt: skip
        gpu = resources.gpu = self._open_gpu(placement)
        stored = self._open_stored(gpu, placement)
        address = placement.find_pci_address()
        near = None if address is None else find_near_cores(address, threads)
        assembler = Assembler(
            pack=resources.pack, wanted=self._wanted, sampler=self._sampler, rings=self._rings,
            output=self._output, transform=options.transform,
            collate=options.collate or (make_collate(self._output) if options.transform else None),
            raises=options.on_bad_sample == "raise", meter=meter, pool=pool,
            cached=resources.cached, gpu=gpu, stored=stored, lend=placement.lend,
            is_stopping=stopping.is_set,
        )  # fmt: skip
        ahead = self._look_ahead(
            len(shares), lambda step: subset.positions(order.indices(shares.slots(step)))
        )

        def interrupt() -> None:
            stopping.set()
            pool.cancel()
            if ahead is not None:
                ahead.stop()

        def stop() -> None:
            pool.close()
            if gpu is not None:
                gpu.close()

        def wait(step: int) -> None:
            with meter.wait("makers for the device"):
                placement.wait(step)

        def make(step: int) -> Batch:
            with meter.stage("order"):
                slots = shares.slots(step)
                positions = subset.positions(order.indices(slots))
            with contextlib.ExitStack() as held:
                maker = assembler
                if ahead is not None:
                    with meter.stage("fetch"):
                        maker = replace(assembler, pack=held.enter_context(ahead.batch(step)))
                held.enter_context(placement.guard())
                # What is decoded there takes memory there, so that it waits before it begins.
                is_early = stored is not None or (gpu is not None and gpu.share > 0)
                if is_early:
                    wait(step)
                batch = maker.make(epoch, positions, slots if repeats else None)
                if not batch.samples:
                    return batch
                if not is_early:
                    wait(step)
                with meter.stage(placement.stage):
                    return placement.finish(batch, step)

        def adapt() -> None:
            assert controller is not None
            controller.note_batch()
            if controller.threads != pool.limit:
                pool.set_limit(controller.threads)
            if gpu is not None and resources.gpu_share is not None:
                if gpu.is_off:
                    resources.gpu_share.switch_off()
                gpu.set_share(resources.gpu_share.share)

        # While one maker is in the kernel, another prepares its batch and queues it there; a third may wait
        # for the GPU.
        makers = threads if self.has_functions else 3 if self._is_sent else 2
        feed = Feed(
            make, len(shares), prefetch=self._prefetch, makers=max(2, makers), meter=meter,
            on_stop=stop, interrupt=interrupt, on_take=None if controller is None else adapt,
            cores=near,
        )  # fmt: skip
        if controller is not None:
            controller.begin(
                pool.threads, feed.makers, self._prefetch,
                lambda: (*meter.waits(), pool.cpu_seconds(), time.process_time()),
                None if gpu is None else resources.gpu_share, count_rank_cores(shares.world),
            )  # fmt: skip
            pool.set_limit(controller.threads)
        return feed

    def _look_ahead(self, steps: int, positions_of: Callable[[int], I64]) -> Ahead | None:
        """Begin to fetch what the coming batches need; None: the pack is read where it is."""
        pack = self._resources.pack
        if not isinstance(pack, RemotePack):
            return None
        keepers = [one for one in (self._resources.tier, self._resources.cached) if one is not None]

        def is_kept(field: str, positions: I64) -> Flags:
            kept: Flags = np.any([one.has(field, positions) for one in keepers], axis=0)
            return kept

        ahead = Ahead(
            pack, steps, positions_of,
            list(dict.fromkeys(w.field.name for w in self._wanted if w.field is not None)),
            is_kept=is_kept if keepers else None,
        )  # fmt: skip
        ahead.start()
        return ahead

    def _open_gpu(self, placement: Placement) -> GpuDecoder | None:
        """Return what decodes on the device of an iteration that begins now; None: the CPU does."""
        is_wanted = self._cpu_reason is None or self._stored_fields
        if not is_wanted or not isinstance(placement, Transfer):
            return None
        from feedrate.loader.device.gpu_decode import open_decoder

        share = self._resources.gpu_share
        gpu = open_decoder(
            placement, self._meter, is_asked_for=self._options.decode == "gpu",
            is_needed=bool(self._stored_fields),
        )  # fmt: skip
        if gpu is not None and (share is not None or self._cpu_reason is not None):
            gpu.set_share(0.0 if share is None else share.share)
        return gpu

    def _open_stored(self, gpu: GpuDecoder | None, placement: Placement) -> StoredPixels | None:
        """Return what keeps images on the device of an iteration that begins now; what is there stays."""
        if gpu is None or not self._stored_fields or not isinstance(placement, Transfer):
            return None
        from feedrate.loader.device.gpu_tier import GpuTier, StoredPixels

        assert self._cache is not None
        assert self._cache.gpu is not None
        tier, pack = self._resources.tier, self._resources.pack
        if tier is not None and tier.device != gpu.device:
            tier.close()
            tier = None
        if tier is None:
            tier = GpuTier(gpu.device, gpu.stream, self._cache.gpu, self._stored_fields, len(pack))
        self._resources.tier = tier
        tier.begin_epoch()
        placement.beside["the cache"] = lambda: tier.memory_bytes
        return StoredPixels(tier, gpu, self._meter, decodes_there=self._options.decode != "cpu")

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
        return self._output

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """What a batch holds, in this order."""
        return self._wanted

    @property
    def has_functions(self) -> bool:
        """Whether a transform or a collate decides what a batch is."""
        return self._options.transform is not None or self._options.collate is not None

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
        return orders.dump_state(self._fingerprint, self._options, self._subset, self._order, place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` go on where `state` was taken.

        Raises:
            UsageError: the state is of another pack, seed or order; the message names the difference.
        """
        epoch, samples, skipped = orders.check_state(state, self._dump_state((0, 0, 0)))
        length = self._order.at(epoch).length
        if samples > length:
            raise UsageError(f"the state has given {samples} samples of an epoch that holds {length}")
        self._cursor = Cursor(epoch, samples, skipped)

    def stats(self) -> LoaderStats:
        """Return what each stage did since the loader was made, and which one is the slowest."""
        self._adopt()
        stats, pack = self._meter.read(), self._resources.pack
        controller, gpu = self._resources.controller, self._resources.gpu
        stats = replace(
            stats,
            gpu_share=0.0 if gpu is None else gpu.share,
            threads=self._threads if controller is None else controller.threads,
            thread_changes=0 if controller is None else controller.changes,
        )
        if isinstance(pack, RemotePack):
            stats = replace(stats, fetch=pack.fetch_stats())
        return replace(stats, cache=self._cache_stats())

    def _cache_stats(self) -> CacheStats | None:
        cached, tier, positions = self._resources.cached, self._resources.tier, orders.members(self._subset)
        if tier is None:
            return None if cached is None else cached.stats(positions, self._wanted)
        there, (made, others) = tier.stats(positions, self._stored_fields), tier.misses
        samples = len(self._stored_fields) * len(positions)
        if cached is None:
            return CacheStats(samples, (there,), made + others, 0, 0)
        stats = cached.stats(positions, self._wanted, tier)
        # Of those that came another way, the host's tiers know.
        return replace(
            stats,
            samples=max(samples, stats.samples),
            tiers=(there, *stats.tiers),
            misses=stats.misses + made,
        )

    def close(self) -> None:
        """End a living iteration and close the files; batches stay valid. May be called twice."""
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

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this loader is closed; make a new one to iterate")
        self._adopt()

    def _adopt(self) -> None:
        """In a forked child, begin anew and share nothing: threads are gone, and may have held locks."""
        if os.getpid() != self._resources.process and not self._closed:
            self._finalizer.detach()
            self._finish = self._finish.renew() if self._finish is not None else None
            self._acquire(self._resources.pack.reopen(), owns_pack=True)

    def _end_live(self) -> None:
        if self._resources.feed is not None:
            self._resources.feed.stop()
            self._resources.feed = None
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
