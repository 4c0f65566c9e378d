# SPDX-License-Identifier: Apache-2.0
"""What one way takes, for one set of values: the parts of a recipe, put through the cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from feedrate.figures import ASSUMED, Figure
from feedrate.machine.results import StoreSpeed
from feedrate.model import limits
from feedrate.model.pipeline import soft_max
from feedrate.model.ways import (
    DEFAULT_SHARD_BYTES,
    LOADER_START_S,
    PAGE_BYTES,
    WORKERS_START_S,
    Epoch,
    Load,
    Store,
    copy_s,
    epoch,
    find_unevenness,
    find_workers,
    lru_share,
    pack_s,
    pick_epochs,
    seen_share,
)
from feedrate.plan.recipes import GPU_CACHE_SHARE, MARGIN, Recipe, shrink_of
from feedrate.plan.results import FIRST, LATER, PACK, STAGE, Node, Survey, Way

_WORKER_BYTES = 250e6  # a DataLoader worker with torch: what it does not share
PROCESS_BYTES = 2e9  # the training process: torch, CUDA's context, pinned batches
_PACK_OVERHEAD_BYTES = 1800  # a sample's tar headers, padding, label, and row in the index
_ENTRY_SHARE = 0.024  # entry points, as a share of the JPEG bytes they belong to
_PLAIN = Figure.within(20e-6, 2, ASSUMED, "20 µs for a sample that nothing decodes")
_GPU_DECODE_CPU = 0.1  # of the CPU's decoding time: reading, checking, cutting out the bytes
_FIXED_SHARE = 0.1  # of the CPU's decoding time: what smaller images do not save
_TIERS = "as photographs of benchmarks/results/tiers.json"


def complete_survey(survey: Survey) -> Survey:
    """Return a survey with assumed figures where nothing could be measured."""
    # What could not be tried is not taken to be quick.
    ours, theirs = survey.feedrate_s, survey.pillow_s
    decoding = ours or (theirs and theirs.assumed("as Pillow decodes")) or _PLAIN
    six = ours and Figure.within(6 * ours.value, 2.0, ASSUMED, "Pillow: six times what feedrate takes")

    def times(factor: float) -> Figure:
        return Figure(decoding.value * factor, decoding.low * factor / 1.3, decoding.high * factor * 1.3,
                      ASSUMED, _TIERS)  # fmt: skip

    return replace(
        survey, feedrate_s=decoding, pillow_s=theirs or six or _PLAIN, source=complete_store(survey.source),
        whole_s=survey.whole_s or times(3.8), cached_s=survey.cached_s or times(0.5),
    )  # fmt: skip


def complete_store(store: StoreSpeed) -> StoreSpeed:
    """Return a store with assumed figures where nothing could be measured."""
    asking = store.file_s.scaled(0.3).assumed("asking for a size: a third of opening a file")
    opening = Figure.within(20e-6, 2, ASSUMED, "opening a file that is in memory: 20 µs")
    reading = Figure.within(4e9, 2, ASSUMED, "reading what is in memory: 4 GB/s")
    # Where no trial file may be written, writing is taken to be as fast as reading.
    writing = store.total_bytes_per_s.assumed("writing: as fast as reading")
    return replace(
        store, stat_s=store.stat_s or asking, warm_file_s=store.warm_file_s or opening,
        warm_bytes_per_s=store.warm_bytes_per_s or reading,
        write_bytes_per_s=store.write_bytes_per_s or writing,
        create_s=store.create_s or store.file_s.assumed("making a file: as long as opening one"),
    )  # fmt: skip


def value_store(store: StoreSpeed, *, keeps_pages: bool = True) -> Store:
    """Return the values of a complete store."""
    names = [name for name in Store.__slots__ if name != "keeps_pages"]
    found = {name: figure and figure.value for name in names for figure in (getattr(store, name),)}
    return Store(**found, keeps_pages=keeps_pages)


class Case:
    """One dataset on one kind of node, with the workers that the script's DataLoader has now.

    Args:
        survey, node: complete; of their figures the values count.
        error: a factor on times: what the formulas themselves err by.
    """

    def __init__(
        self, survey: Survey, node: Node, error: Figure, *, workers: int, batch_size: int, epochs: int
    ) -> None:
        self.survey, self.node, self.workers, self.batch_size = survey, node, workers, batch_size
        self.epochs, self._error = epochs, error.value
        self.is_pack = survey.kind == "pack"
        self.is_files = not self.is_pack and survey.files.value > 0.5 * survey.samples.value
        self.ranks = max(node.gpus, 1)
        self._source = value_store(survey.source, keeps_pages=survey.source.keeps_pages is not False)
        # A way that lacks scratch is shown as one that does not fit, with some numbers.
        self._scratch = value_store(node.scratch) if node.scratch else self._source
        shared = survey.source.shared_bytes_per_s
        self._shared = self._source.shared_by(node.nodes, None if shared is None else shared.value)

    def evaluate(self, recipe: Recipe) -> Way:
        """Return what a way takes; nothing is said yet of whether it fits, and what to type for it."""
        survey, node, scratch = self.survey, self.node, self._scratch
        store = scratch if recipe.is_local else self._shared
        samples = survey.samples.value
        is_packed = recipe.packed or self.is_pack
        shrink = shrink_of(survey) if recipe.resized else 1.0
        decoded = survey.decoded_bytes.value * shrink
        sample_bytes = survey.sample_bytes.value * shrink * (1 + _ENTRY_SHARE if recipe.packed else 1.0)
        size_bytes = samples * (sample_bytes + (_PACK_OVERHEAD_BYTES if is_packed else 0))
        parts: list[tuple[str, float]] = []
        if recipe.packed and not self.is_pack:
            parts.append((PACK, self._error * self._pack_s(recipe, size_bytes)))
        # The copier was tried on the dataset's files; what is copied of them in another form are shards.
        home = replace(self._shared, copy_bytes_per_s=None) if parts else self._shared
        files = max(size_bytes / DEFAULT_SHARD_BYTES, 1.0) if is_packed else survey.files.value
        copying = copy_s(files, size_bytes, home, scratch)
        if recipe.staged:
            parts.append((STAGE, self._error * copying))

        load = self._load(recipe, sample_bytes, shrink)
        workers = self.workers
        # Workers that wait for a store need no core, but each takes memory; none is there without a batch.
        batches = math.ceil(load.samples / self.batch_size / self.ranks)
        most = int(max(min(4 * node.cores.value / self.ranks, batches), workers))
        enough = workers if is_packed else max(find_workers(load, store, most, each=self.ranks), workers)
        if recipe.best_workers:
            workers = enough
            load = replace(load, workers=self._count_readers(load.samples, workers))
        processes = PROCESS_BYTES * self.ranks + (0 if is_packed else workers * self.ranks * _WORKER_BYTES)
        memory = (size_bytes + processes) / MARGIN if recipe.more_memory else node.memory_bytes.value
        on_scratch = size_bytes if recipe.is_local else 0.0
        copied = on_scratch if node.scratch is not None and node.scratch.is_memory else 0.0
        room = max(memory * MARGIN - processes - copied, 0.0)
        share = survey.trained_share
        wanted = max(decoded * samples * share, 1.0)
        kept = min(self._cache_room(recipe, room) / wanted, 1.0)
        in_memory = kept * wanted if recipe.cache == "ram" else 0.0
        # What one of several GPUs keeps, the others still read.
        is_own = recipe.cache == "gpu" and self.ranks > 1
        read_bytes = size_bytes * share * (1.0 if is_own else 1 - kept)
        held = (room - in_memory) / max(read_bytes, 1.0) if store.keeps_pages else 0.0
        held = 1.0 if copied else min(max(held, 0.0), 1.0)

        # What was just written is in memory, as far as there is room for it; a pack in that of one node.
        is_fresh = recipe.is_local or (recipe.packed and not self.is_pack and node.nodes == 1)
        filling = load
        if recipe.cache:
            filling = replace(load, fetch_cpu_s=_value(survey.whole_s) * shrink)
        first = epoch(filling, store, warm=held if is_fresh else survey.resident or 0.0)
        first = replace(first, seconds=first.seconds + (LOADER_START_S if is_packed else WORKERS_START_S))
        if recipe.live:
            first = _slower(first, Epoch(copying, limits.STORAGE))
        caching = _Caching(
            parts=node.nodes * (self.ranks if recipe.cache == "gpu" else 1), nodes=node.nodes,
            kept=kept, held=held, is_fresh=is_fresh, fill_s=filling.fetch_cpu_s,
            hit_s=0.0 if recipe.cache == "gpu" else _value(survey.cached_s),
        )  # fmt: skip
        on_disk_s = 0.0
        if recipe.cache == "disk":  # all of it, where every sample is a hit and none is in memory
            in_pages = lru_share(room / (kept * wanted or 1.0))
            on_disk_s = load.samples * decoded / scratch.total_bytes_per_s * (1 - in_pages)
        later = self._later(load, store, caching, on_disk_s)
        limit = later.limit if self.epochs > 1 else first.limit
        # Workers that are many enough, and still the limit, have too few whole batches to share.
        is_shared_out = not is_packed and workers >= enough > 0
        first_s, later_s = first.seconds * self._error, later.seconds * self._error
        before_s = math.fsum(seconds for _, seconds in parts)
        rest = [(LATER, (self.epochs - 1) * later_s)] if self.epochs > 1 else []
        pack_bytes = size_bytes if recipe.packed and not self.is_pack and not recipe.on_scratch else 0.0
        copy_bytes = on_scratch + (kept * wanted if recipe.cache == "disk" else 0.0)
        used = processes + in_memory + copied + (size_bytes if recipe.more_memory else 0.0)
        exactly = Figure.exactly
        return Way(
            code=recipe.code, name=recipe.name, needs=recipe.needs, is_smaller=recipe.resized,
            before_s=exactly(before_s), first_epoch_s=exactly(first_s), later_epoch_s=exactly(later_s),
            total_s=exactly(before_s + first_s + (self.epochs - 1) * later_s),
            disk_bytes=exactly(pack_bytes + copy_bytes), pack_bytes=pack_bytes, copy_bytes=copy_bytes,
            memory_bytes=exactly(used), workers=workers, kept=kept,
            limit=limits.IDLE_WORKERS if limit == limits.STARVED and is_shared_out else limit,
            timeline=(*parts, (FIRST, first_s), *rest),
            pays_after=None, gpu_hours_saved=exactly(0.0), why_not="", commands=(),
        )  # fmt: skip

    def _pack_s(self, recipe: Recipe, size_bytes: float) -> float:
        """The pack is made once, by one node."""
        survey = self.survey
        load = Load(
            samples=survey.samples.value,
            sample_bytes=survey.sample_bytes.value,
            is_files=self.is_files,
            fetch_cpu_s=survey.pack_s.value + (2 * _value(survey.pillow_s) if recipe.resized else 0.0),
            cores=self._gain(survey.feedrate_cores),
            workers=max(self.node.cores.value, 1.0),
            device_s=0.0,
        )
        home, warm = self._scratch if recipe.on_scratch else self._source, survey.resident or 0.0
        return pack_s(load, self._source, home, warm=warm, list_s=survey.list_s.value, size_bytes=size_bytes)

    def _gain(self, measured: float) -> float:
        """Return what all cores make, in units of one; `measured` is that of this machine's cores."""
        return max(measured * self.node.cores.value / self.survey.cores, 0.1)

    def _count_readers(self, samples: float, workers: int) -> float:
        """Return the workers of all ranks, less what whole batches in turn leave the last ones idle."""
        readers = float(workers * self.ranks)
        return max(readers / find_unevenness(samples, self.batch_size, readers), 1.0) if readers else 0.0

    def _load(self, recipe: Recipe, sample_bytes: float, shrink: float) -> Load:
        survey, node = self.survey, self.node
        is_packed = recipe.packed or self.is_pack
        device_s = 1 / (node.model_rate.value * self.ranks) if node.model_rate else 0.0
        if recipe.gpu_decode and node.gpu_decode_images_per_s:
            device_s += 1 / (node.gpu_decode_images_per_s.value * self.ranks)
        if node.to_device_bytes_per_s and survey.has_images:
            copying_s = 3 * survey.crop**2 / (node.to_device_bytes_per_s.value * self.ranks)
            device_s = max(device_s, copying_s)
        cpu_s = _value(survey.feedrate_s if is_packed else survey.pillow_s)
        cpu_s *= (_FIXED_SHARE + (1 - _FIXED_SHARE) * shrink) * (_GPU_DECODE_CPU if recipe.gpu_decode else 1)
        samples = survey.samples.value * survey.trained_share / node.nodes
        # A store's readahead suits some sizes of reads more than others: in place, Pillow itself was timed.
        is_in_place = not is_packed and not recipe.is_local
        shared = (sample_bytes + _PACK_OVERHEAD_BYTES) / (sample_bytes + PAGE_BYTES)
        waiting = survey.pillow_wait_s if is_in_place and self.is_files else None
        return Load(
            samples=samples,
            sample_bytes=sample_bytes,
            is_files=self.is_files and not recipe.packed,
            fetch_cpu_s=cpu_s,
            cores=self._gain(survey.feedrate_cores if is_packed else survey.pillow_cores),
            workers=max(node.cores.value, 1.0) if is_packed else self._count_readers(samples, self.workers),
            wait_s=None if waiting is None else waiting.value,
            read_cpu_s=_value(survey.pillow_read_s) if is_in_place else 0.0,
            server_s=survey.server_s if is_in_place else 0.0,
            reads=min(shared, 1.0) if survey.source.keeps_pages is not False else 1.0,
            device_s=device_s,
            ranks=self.ranks,
            # Where there is no GPU, the model takes the cores.
            device_cpu_s=device_s * node.cores.value if node.gpus == 0 else 0.0,
        )

    def _cache_room(self, recipe: Recipe, room: float) -> float:
        """Return the bytes that a cache may have; `room`: of memory."""
        if recipe.cache == "gpu":
            return _value(self.node.gpu_memory_bytes) * GPU_CACHE_SHARE
        if recipe.cache == "disk":
            return _value(self.node.scratch_free_bytes) * MARGIN
        return room if recipe.cache else 0.0

    def _later(self, load: Load, store: Store, caching: _Caching, on_disk_s: float) -> Epoch:
        """Return the mean of the epochs after the first; its limit is what most of their time waits for."""
        found: dict[str, float] = {}
        for number, count in pick_epochs(max(self.epochs, 2), caching.parts):
            hits, filled, warm = caching.look(number)
            cpu_s = hits * caching.hit_s + filled * caching.fill_s + (1 - hits - filled) * load.fetch_cpu_s
            mixed = replace(load, fetch_cpu_s=cpu_s, asked=1 - hits)
            one = _slower(epoch(mixed, store, warm=warm), Epoch(on_disk_s * hits, limits.STORAGE))
            found[one.limit] = found.get(one.limit, 0.0) + count * one.seconds
        longest = max(found, key=lambda limit: found[limit])
        return Epoch(math.fsum(found.values()) / max(self.epochs - 1, 1), longest)


@dataclass(frozen=True, slots=True)
class _Caching:
    """What a node finds in memory, and a cache of its own or of each GPU, epoch after epoch.

    Attributes:
        parts: caches in the whole job, each filled by another slice of an epoch; `nodes`: page caches.
        kept: the share of the dataset that fits into a cache; `held`: of what is left, into the page cache.
        is_fresh: all of it was just written on each node, so the page cache need not meet a sample first.
        hit_s, fill_s: CPU time of a sample that is there, and of one that is put there.
    """

    parts: int
    nodes: int
    kept: float
    held: float
    is_fresh: bool
    hit_s: float
    fill_s: float

    def look(self, epoch: int) -> tuple[float, float, float]:
        """Return which shares of an epoch's samples a cache has and gets; of the others, those in memory."""
        hits, then = (min(seen_share(self.parts, one), self.kept) for one in (epoch, epoch + 1))
        since = math.inf if self.is_fresh else epoch
        seen, paged = seen_share(self.nodes, since), lru_share(self.held, self.nodes, since)
        # What a cache has was met; of the rest that was met, the page cache has its part.
        warm = paged * (seen - hits) / seen / (1 - hits) if hits < 1 else 0.0
        return hits, min((then - hits) * self.parts, 1 - hits), warm


def _value(figure: Figure | None) -> float:
    return figure.value if figure else 0.0


def _slower(one: Epoch, other: Epoch) -> Epoch:
    return Epoch(soft_max(one.seconds, other.seconds), max(one, other, key=lambda e: e.seconds).limit)
