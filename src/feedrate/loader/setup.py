# SPDX-License-Identifier: Apache-2.0
"""What a loader was asked for, checked against its pack: what is the same in all its epochs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from feedrate.errors import UsageError
from feedrate.format.fields import Coding, Kind
from feedrate.format.pack import Pack
from feedrate.loader import options as checks
from feedrate.loader import order as orders
from feedrate.loader.batch import choose_prefetch
from feedrate.loader.device.finish import check_finish
from feedrate.loader.device.transfer import check_device
from feedrate.loader.image import RandomCrop
from feedrate.loader.options import Options
from feedrate.loader.ranks import Rank, Ranks, Shares
from feedrate.loader.values import choose_output
from feedrate.machine.cpu import count_rank_cores

log = logging.getLogger("feedrate")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One rank's part of an epoch, or of the rest of it; with the setup, its batches follow from it."""

    number: int
    shares: Shares
    order: orders.EpochOrder = field(compare=False)


class Setup:
    """What was asked for, resolved.

    Attributes:
        wanted: what a batch holds, in this order.
        sampler: makes the draws; None: the pack has no pixels.
        subset, order: which samples, and in which order.
        finish: what is done to batches where they arrive; None: nothing.
        is_sent: batches go to a GPU.
        cpu_reason: why the CPU decodes whatever happens; None: the GPU may.
        stored_fields: fields of images that the cache may keep on the GPU.
        threads: how many decode at the most, as far as was known when the loader was made.
        prefetch: how many batches are made ahead.
    """

    def __init__(self, options: Options, opened: Pack) -> None:
        self.options = options
        self.wanted = checks.resolve_fields(
            opened, options.fields, options.image, options.mode, options.depth
        )
        if options.image is None:
            checks.check_shapes(opened, self.wanted, options.batch_size)
        self.sampler = checks.make_sampler(opened, self.wanted, options.image, options.flip, options.seed)
        self.subset = orders.find_split(opened, options.split)
        # Positions and weights of samples say by themselves which are meant.
        is_open = all(isinstance(given, str | None) for given in (options.order, options.weights))
        if options.split is None and is_open and (parts := orders.find_parts(opened)):
            orders.tell_parts(opened.name, parts)
        self.order = orders.choose_order(opened, options, self.subset)
        self.fingerprint = orders.fingerprint(opened.manifest)
        self.output = choose_output(options.output, options.depth)
        self.device = check_device(options.device, self.output)
        self.finish = check_finish(options, self.wanted, opened, self.output)
        self.ranks = Ranks(None if options.world_size is None else (options.rank or 0, options.world_size))
        rank = self.ranks.look()
        self.threads = options.threads or count_rank_cores(rank[1])
        pixels = sum(w.channels * w.out_size[0] * w.out_size[1] for w in self.wanted if w.out_size)
        wide = max(w.dtype.itemsize for w in self.wanted)
        wide = self.finish.dtype.itemsize if self.finish is not None and self.finish.dtype else wide
        self.is_sent = self.device is not None and self.device.type == "cuda"
        self.cpu_reason = self._explain_cpu()
        self.stored_fields = self._choose_stored()
        # A transform runs in the makers, so there should be as many as threads. A loop that launches work for
        # a GPU takes batches unevenly, and the GPU should not feel it when decoding is late once.
        makers = self.threads if options.transform else 4 if self.is_sent else 1
        self.prefetch = options.prefetch or choose_prefetch(pixels * wide * options.batch_size, makers)
        if len(self.subset):  # a pack without samples gives none, which is no mistake of its user
            self.plan_epoch(0, 0, rank).shares.check_not_empty(0)

    def _explain_cpu(self) -> str | None:
        """Return why the CPU decodes whatever happens; None: the GPU may."""
        options = self.options
        if options.decode == "gpu" and not self.is_sent:
            raise UsageError(
                'decode="gpu" decodes images on the GPU that batches go to, and this loader has none',
                hint='device="cuda", or leave out decode',
            )
        if options.decode == "gpu":
            self._check_narrow('decode="gpu"')
        if options.decode == "cpu" or not self.is_sent:
            return "so it was asked for"
        reason = self._explain_host()
        images = [w.field for w in self.wanted if w.field is not None and w.field.kind is Kind.IMAGE]
        if options.depth == "uint16":
            reason = "pixels of 16 bits are made on the host"
        elif options.cache is not None and options.cache.tiers and not self.has_functions:
            reason = "the cache keeps decoded samples on the host"
        elif reason is None and all(field.coding is Coding.RAW for field in images):
            reason = "the images are stored as pixels" if images else "no field of images is asked for"
        if reason is not None and options.decode == "gpu":
            log.warning('decode="gpu": all images are decoded on the CPU, since %s', reason)
        return reason

    def _explain_host(self) -> str | None:
        """Return why pixels are needed on the host, whatever makes them; None: they are not."""
        if self.has_functions:
            return "transform and collate get pixels on the host"
        is_padded = isinstance(self.options.image, RandomCrop) and self.options.image.is_padded
        return "crops with padding are put together on the host" if is_padded else None

    def _check_narrow(self, option: str) -> None:
        if self.options.depth == "uint16":
            raise UsageError(
                f'{option} makes pixels of 8 bits on the GPU, and depth="uint16" asks for 16: '
                "depth=(low, high) goes with it, or leave it out"
            )

    def _choose_stored(self) -> list[str]:
        """Return the fields of images that the cache may keep on the GPU."""
        if self.options.cache is None or self.options.cache.gpu is None:
            return []
        option = f"cache=Cache(gpu={self.options.cache.gpu.asked!r})"
        if not self.is_sent:
            raise UsageError(
                f"{option} keeps samples on the GPU that batches go to, and this loader has none",
                hint='device="cuda", or leave out gpu',
            )
        self._check_narrow(option)
        names = {w.field.name for w in self.wanted if w.field is not None and w.field.kind is Kind.IMAGE}
        reason = self._explain_host()
        if reason is None and not names:
            reason = "no field of images is asked for"
        if reason is not None:
            log.warning("%s: nothing is kept on the GPU, since %s", option, reason)
            return []
        return sorted(names)

    @property
    def has_functions(self) -> bool:
        """Whether a transform or a collate decides what a batch is."""
        return self.options.transform is not None or self.options.collate is not None

    @property
    def looks_ahead(self) -> bool:
        """Whether an epoch's first batches may be made before it is begun.

        Not where a function of the user's takes part: what it does may change between epochs, and it must not
        be asked for what is never given.
        """
        has_functions = self.has_functions or (self.finish is not None and self.finish.has_functions)
        return not has_functions and not callable(self.options.order)

    def plan_epoch(self, number: int, start: int, rank: Rank) -> Epoch:
        """Return the part of one rank, from slot `start` of an epoch on."""
        options, order = self.options, self.order.at(number)
        shares = Shares(order.length, options.batch_size, *rank, options.drop_last, options.pad, start)
        return Epoch(number, shares, order)
