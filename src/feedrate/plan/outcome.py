# SPDX-License-Identifier: Apache-2.0
"""What one way takes, for one set of values: the parts of a recipe, put through the cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from feedrate.figures import ASSUMED, Figure
from feedrate.machine.results import StoreSpeed
from feedrate.model.pipeline import soft_max
from feedrate.model.ways import (
    DEFAULT_SHARD_BYTES,
    LOADER_START_S,
    PAGE_BYTES,
    WORKERS,
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
from feedrate.plan.recipes import GPU_CACHE_SHARE, MARGIN, Outcome, Recipe, shrink_of
from feedrate.plan.results import Node, Survey

BATCHES = "batches"  # a limit: one is made whole by one worker
_WORKER_BYTES = 250e6  # a DataLoader worker with torch: what it does not share
PROCESS_BYTES = 2e9  # the training process: torch, CUDA's context, pinned batches
_PACK_OVERHEAD_BYTES = 1800  # a sample's tar headers, padding, label, and row in the index
_ENTRY_SHARE = 0.024  # entry points, as a share of the JPEG bytes they belong to
_PLAIN_S = 20e-6  # handing on a sample that nothing decodes
_GPU_DECODE_CPU = 0.1  # of the CPU's decoding time: reading, checking, cutting out the bytes
_FIXED_SHARE = 0.1  # of the CPU's decoding time: what smaller images do not save


def collect_figures(survey: Survey, node: Node) -> dict[str, Figure]:
    """Return all that ways depend on, by the names that `Case.evaluate` knows."""
    plain = Figure.within(_PLAIN_S, 2, ASSUMED, "20 µs for a sample that nothing decodes")
    # What could not be tried is not taken to be quick.
    pillow = survey.pillow_s or (survey.feedrate_s and _guess_pillow(survey.feedrate_s))
    decoding = survey.feedrate_s or (survey.pillow_s and survey.pillow_s.assumed("as Pillow decodes"))
    found = {
        "samples": survey.samples,
        "files": survey.files,
        "sample_bytes": survey.sample_bytes,
        "decoded_bytes": survey.decoded_bytes,
        "pack_s": survey.pack_s,
        "list_s": survey.list_s,
        "pillow_s": pillow or plain,
        "feedrate_s": decoding or plain,
        # As photographs in benchmarks/results/tiers.json, where this dataset was not tried.
        "whole_s": survey.whole_s or _guess(decoding or plain, 3.8),
        "cached_s": survey.cached_s or _guess(decoding or plain, 0.5),
        "memory_bytes": node.memory_bytes,
        "cores": node.cores,
    }
    if survey.pillow_wait_s is not None:
        found["pillow_wait_s"] = survey.pillow_wait_s
    if survey.pillow_read_s is not None:
        found["pillow_read_s"] = survey.pillow_read_s
    if survey.source.shared_bytes_per_s is not None:
        found["shared_bytes_per_s"] = survey.source.shared_bytes_per_s
    found |= name_store("source", survey.source)
    if node.scratch is not None:
        found |= name_store("scratch", node.scratch)
    for name in ("model_rate", "gpu_memory_bytes", "gpu_decode_images_per_s", "to_device_bytes_per_s"):
        if (figure := getattr(node, name)) is not None:
            found[name] = figure
    return found


def _guess_pillow(feedrate_s: Figure) -> Figure:
    """Return what Pillow may take where it could not be tried: as for photographs, within a factor of two."""
    return Figure.within(6 * feedrate_s.value, 2.0, ASSUMED, "Pillow: six times what feedrate takes")


def _guess(figure: Figure, factor: float) -> Figure:
    return Figure(
        figure.value * factor,
        figure.low * factor / 1.3,
        figure.high * factor * 1.3,
        ASSUMED,
        "as photographs of benchmarks/results/tiers.json",
    )


def name_store(name: str, store: StoreSpeed) -> dict[str, Figure]:
    found = {
        "stat_s": store.stat_s
        or store.file_s.scaled(0.3).assumed("asking for a size: a third of opening a file"),
        "file_s": store.file_s,
        "read_s": store.read_s,
        "stream_bytes_per_s": store.stream_bytes_per_s,
        "total_bytes_per_s": store.total_bytes_per_s,
        "files_per_s": store.files_per_s,
        "warm_file_s": store.warm_file_s
        or Figure.within(20e-6, 2, ASSUMED, "opening a file that is in memory: 20 µs"),
        "warm_bytes_per_s": store.warm_bytes_per_s
        or Figure.within(4e9, 2, ASSUMED, "reading what is in memory: 4 GB/s"),
        # Where no trial file may be written, writing is taken to be as fast as reading.
        "write_bytes_per_s": store.write_bytes_per_s
        or store.total_bytes_per_s.assumed("writing: as fast as reading"),
        "create_s": store.create_s or store.file_s.assumed("making a file: as long as opening one"),
    }
    if store.copy_bytes_per_s is not None:
        found["copy_bytes_per_s"] = store.copy_bytes_per_s
    return {f"{name}_{key}": figure for key, figure in found.items()}


def make_store(name: str, v: Mapping[str, float], *, keeps_pages: bool) -> Store:
    prefix = f"{name}_"
    values = {key.removeprefix(prefix): value for key, value in v.items() if key.startswith(prefix)}
    return Store(**values, keeps_pages=keeps_pages)


class Case:
    """One dataset on one kind of node, with the workers that the script's DataLoader has now."""

    def __init__(self, survey: Survey, node: Node, *, workers: int, batch_size: int, epochs: int) -> None:
        self.survey, self.node, self.workers, self.batch_size = survey, node, workers, batch_size
        self.epochs = epochs
        self.is_pack = survey.kind == "pack"
        self.is_files = not self.is_pack and survey.files.value > 0.5 * survey.samples.value
        self.ranks = max(node.gpus, 1)

    def evaluate(self, recipe: Recipe, v: Mapping[str, float]) -> Outcome:
        source = make_store("source", v, keeps_pages=self.survey.source.keeps_pages is not False)
        # A way that lacks scratch is shown as one that does not fit, with some numbers.
        scratch = make_store("scratch", v, keeps_pages=True) if "scratch_file_s" in v else source
        shared = source.shared_by(self.node.nodes, v.get("shared_bytes_per_s"))
        store = scratch if recipe.is_local else shared
        error = v.get("error", 1.0)

        is_packed = recipe.packed or self.is_pack
        shrink = shrink_of(self.survey) if recipe.resized else 1.0
        decoded = v["decoded_bytes"] * shrink
        sample_bytes = v["sample_bytes"] * shrink * (1 + _ENTRY_SHARE if recipe.packed else 1.0)
        size_bytes = v["samples"] * (sample_bytes + (_PACK_OVERHEAD_BYTES if is_packed else 0))
        parts: list[tuple[str, float]] = []
        if recipe.packed and not self.is_pack:
            home = scratch if recipe.on_scratch else source
            parts.append(("pack", error * self._pack_s(recipe, v, source, home, size_bytes)))
        shards = max(size_bytes / DEFAULT_SHARD_BYTES, 1.0)
        # The copier was tried on the dataset's files; what is copied of them in another form are shards.
        home = replace(shared, copy_bytes_per_s=None) if recipe.packed and not self.is_pack else shared
        copying = copy_s(shards if is_packed else v["files"], size_bytes, home, scratch)
        if recipe.staged:
            parts.append(("stage", error * copying))

        load = self._load(recipe, v, sample_bytes, shrink)
        workers = self.workers
        # Workers that wait for a store need no core, but each takes memory; none is there without a batch.
        batches = math.ceil(load.samples / self.batch_size / self.ranks)
        most = int(max(min(4 * v["cores"] / self.ranks, batches), workers))
        enough = workers if is_packed else max(find_workers(load, store, most, each=self.ranks), workers)
        if recipe.best_workers:
            workers = enough
            load = load.with_(readers=self._count_readers(load.samples, workers))
        processes = PROCESS_BYTES * self.ranks + (0 if is_packed else workers * self.ranks * _WORKER_BYTES)
        memory = (size_bytes + processes) / MARGIN if recipe.more_memory else v["memory_bytes"]
        on_scratch = size_bytes if recipe.is_local else 0.0
        is_in_memory = self.node.scratch is not None and self.node.scratch.is_memory
        copied = on_scratch if is_in_memory else 0.0
        room = max(memory * MARGIN - processes - copied, 0.0)
        share = self.survey.trained_share
        kept, cache_bytes = self._measure_cache(recipe, v, decoded * v["samples"] * share, room)
        in_memory = cache_bytes if recipe.cache == "ram" else 0.0
        # What one of several GPUs keeps, the others still read.
        is_own = recipe.cache == "gpu" and self.ranks > 1
        read_bytes = size_bytes * share * (1.0 if is_own else 1 - kept)
        held = (room - in_memory) / max(read_bytes, 1.0) if store.keeps_pages else 0.0
        held = 1.0 if copied else min(max(held, 0.0), 1.0)

        # What was just written is in memory, as far as there is room for it; a pack in that of one node.
        is_fresh = recipe.is_local or (recipe.packed and not self.is_pack and self.node.nodes == 1)
        name = "scratch" if recipe.is_local else "source"
        starting = LOADER_START_S if is_packed else WORKERS_START_S
        filling = load.with_(cpu_s=v["whole_s"] * shrink) if recipe.cache else load
        first = epoch(filling, store, warm=held if is_fresh else self.survey.resident or 0.0, name=name)
        first = Epoch(first.seconds + starting, first.limit)
        if recipe.live:
            first = _slower(first, Epoch(copying, "source"))
        caching = _Caching(
            parts=self.node.nodes * (self.ranks if recipe.cache == "gpu" else 1),
            nodes=self.node.nodes,
            kept=kept,
            held=held,
            is_fresh=is_fresh,
            hit_s=0.0 if recipe.cache == "gpu" else v["cached_s"],
            fill_s=filling.cpu_s,
        )
        on_disk_s = 0.0
        if recipe.cache == "disk":  # all of it, where every sample is a hit and none is in memory
            in_pages = lru_share(room / max(cache_bytes, 1.0))
            on_disk_s = load.samples * decoded / scratch.total_bytes_per_s * (1 - in_pages)
        later = self._later(load, store, caching, name, on_disk_s)
        # Workers that are many enough, and still the limit, have too few whole batches to share.
        is_shared_out = not is_packed and workers >= enough > 0
        first_limit, later_limit = (
            BATCHES if one.limit == WORKERS and is_shared_out else one.limit for one in (first, later)
        )
        return Outcome(
            parts=tuple(parts),
            first=Epoch(first.seconds * error, first_limit),
            later=Epoch(later.seconds * error, later_limit),
            pack_bytes=size_bytes if recipe.packed and not self.is_pack and not recipe.on_scratch else 0.0,
            copy_bytes=on_scratch + (cache_bytes if recipe.cache == "disk" else 0.0),
            memory_bytes=processes + in_memory + copied + (size_bytes if recipe.more_memory else 0.0),
            workers=workers,
            kept=kept,
        )

    def _pack_s(
        self, recipe: Recipe, v: Mapping[str, float], source: Store, home: Store, size_bytes: float
    ) -> float:
        """The pack is made once, by one node."""
        load = Load(
            samples=v["samples"],
            sample_bytes=v["sample_bytes"],
            is_files=self.is_files,
            cpu_s=v["pack_s"] + (2 * v["pillow_s"] if recipe.resized else 0.0),
            core_gain=self._gain(self.survey.feedrate_cores, v),
            readers=v["cores"],
            device_s=0.0,
        )
        warm = self.survey.resident or 0.0
        return pack_s(load, source, home, warm=warm, list_s=v["list_s"], size_bytes=size_bytes)

    def _gain(self, measured: float, v: Mapping[str, float]) -> float:
        """Return what all cores make, in units of one; `measured` is that of this machine's cores."""
        return max(measured * v["cores"] / self.survey.cores, 0.1)

    def _count_readers(self, samples: float, workers: int) -> float:
        """Return the workers of all ranks, less what whole batches in turn leave the last ones idle."""
        readers = float(workers * self.ranks)
        return readers / (find_unevenness(samples, self.batch_size, readers) if readers else 1.0)

    def _load(self, recipe: Recipe, v: Mapping[str, float], sample_bytes: float, shrink: float) -> Load:
        is_packed = recipe.packed or self.is_pack
        device_s = 1 / (v["model_rate"] * self.ranks) if "model_rate" in v else 0.0
        if recipe.gpu_decode and "gpu_decode_images_per_s" in v:
            device_s += 1 / (v["gpu_decode_images_per_s"] * self.ranks)
        if "to_device_bytes_per_s" in v and self.survey.has_images:
            device_s = max(device_s, 3 * self.survey.crop**2 / (v["to_device_bytes_per_s"] * self.ranks))
        cpu_s = v["feedrate_s" if is_packed else "pillow_s"] * (_FIXED_SHARE + (1 - _FIXED_SHARE) * shrink)
        cores = self.survey.feedrate_cores if is_packed else self.survey.pillow_cores
        samples = v["samples"] * self.survey.trained_share / self.node.nodes
        # A store's readahead suits some sizes of reads more than others: in place, Pillow itself was timed.
        is_in_place = not is_packed and not recipe.is_local
        shared = (sample_bytes + _PACK_OVERHEAD_BYTES) / (sample_bytes + PAGE_BYTES)
        return Load(
            samples=samples,
            sample_bytes=sample_bytes,
            is_files=self.is_files and not recipe.packed,
            cpu_s=cpu_s * (_GPU_DECODE_CPU if recipe.gpu_decode else 1.0),
            core_gain=self._gain(cores, v),
            readers=v["cores"] if is_packed else self._count_readers(samples, self.workers),
            wait_s=v.get("pillow_wait_s") if is_in_place and self.is_files else None,
            read_cpu_s=v.get("pillow_read_s", 0.0) if is_in_place else 0.0,
            server_s=self.survey.server_s if is_in_place else 0.0,
            reads=min(shared, 1.0) if self.survey.source.keeps_pages is not False else 1.0,
            device_s=device_s,
            ranks=self.ranks,
            # Where there is no GPU, the model takes the cores.
            device_cpu_s=device_s * v["cores"] if self.node.gpus == 0 else 0.0,
        )

    def _measure_cache(
        self, recipe: Recipe, v: Mapping[str, float], wanted: float, room: float
    ) -> tuple[float, float]:
        """Return which share of the decoded samples a cache holds, and its bytes."""
        if not recipe.cache:
            return 0.0, 0.0
        if recipe.cache == "gpu":
            room = v.get("gpu_memory_bytes", 0.0) * GPU_CACHE_SHARE
        elif recipe.cache == "disk":
            free = self.node.scratch_free_bytes
            room = 0.0 if free is None else free.value * MARGIN
        kept = min(room / max(wanted, 1.0), 1.0)
        return kept, kept * wanted

    def _later(self, load: Load, store: Store, caching: _Caching, name: str, on_disk_s: float) -> Epoch:
        """Return the mean of the epochs after the first; its limit is what most of their time waits for."""
        limits: dict[str, float] = {}
        for number, count in pick_epochs(max(self.epochs, 2), caching.parts):
            hits, filled, warm = caching.look(number)
            cpu_s = hits * caching.hit_s + filled * caching.fill_s + (1 - hits - filled) * load.cpu_s
            mixed = load.with_(cpu_s=cpu_s, asked=1 - hits)
            one = _slower(epoch(mixed, store, warm=warm, name=name), Epoch(on_disk_s * hits, "scratch"))
            limits[one.limit] = limits.get(one.limit, 0.0) + count * one.seconds
        longest = max(limits, key=lambda limit: limits[limit])
        return Epoch(math.fsum(limits.values()) / max(self.epochs - 1, 1), longest)


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


def _slower(one: Epoch, other: Epoch) -> Epoch:
    return Epoch(soft_max(one.seconds, other.seconds), max(one, other, key=lambda e: e.seconds).limit)
