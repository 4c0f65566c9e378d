# SPDX-License-Identifier: Apache-2.0
"""The ways to train on a dataset, side by side, by the cost model; and the one to recommend."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedrate.figures import ASSUMED, MEASURED, Figure, vary
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
    choose_shard_bytes,
    copy_s,
    count_epochs_to_pay,
    epoch,
    find_unevenness,
    find_workers,
    lru_share,
    pack_s,
    pick_epochs,
    seen_share,
    share,
)
from feedrate.plan.recipes import (
    GPU_CACHE_SHARE,
    IN_PLACE,
    MARGIN,
    RECIPES,
    Recipe,
    explain_misfit,
    is_made_for,
    list_commands,
    shrink_of,
)
from feedrate.plan.results import FIRST, LATER, PACK, STAGE, Node, Plan, Survey, Way
from feedrate.units import format_bytes, format_count, format_percent, format_seconds

# What the formulas themselves err by when every figure in them is right (benchmarks/README.md).
MODEL_ERROR = Figure.within(1.0, 1.12, MEASURED, "the model's own error")
_WORTH = 0.93  # of the time in place: what saves less is not worth typing
_NEARLY = 1.05  # of the shortest run: a simpler way may take so much longer
_LEAST_SAVED_S = 60.0  # of a whole run: a script is not edited in less
_WORKER_BYTES = 250e6  # a DataLoader worker with torch: what it does not share
PROCESS_BYTES = 2e9  # the training process: torch, CUDA's context, pinned batches
_PACK_OVERHEAD_BYTES = 1800  # a sample's tar headers, padding, label, and row in the index
_ENTRY_SHARE = 0.024  # entry points, as a share of the JPEG bytes they belong to
_PLAIN = Figure.within(20e-6, 2, ASSUMED, "20 µs for a sample that nothing decodes")
_GPU_DECODE_CPU = 0.1  # of the CPU's decoding time: reading, checking, cutting out the bytes
_FIXED_SHARE = 0.1  # of the CPU's decoding time: what smaller images do not save
_TIERS = "as photographs of benchmarks/results/tiers.json"


def make_plan(
    survey: Survey,
    node: Node,
    *,
    epochs: int = 90,
    workers: int = 4,
    batch_size: int = 256,
    notes: Sequence[str] = (),
) -> Plan:
    """Lay the ways side by side; `workers` and `batch_size`: of the script's DataLoader as it is now."""
    recipes = [recipe for recipe in RECIPES if is_made_for(recipe, survey, node)]

    def evaluate(survey: Survey, node: Node, error: Figure) -> list[Way]:
        case = Case(survey, node, error, workers=workers, batch_size=batch_size, epochs=epochs)
        ways = [case.evaluate(recipe) for recipe in recipes]
        hours, taken_s = node.gpus * node.nodes / 3600, ways[0].gpu_s
        return [replace(way, gpu_hours_saved=Figure.exactly((taken_s - way.gpu_s) * hours)) for way in ways]

    scratch = node.scratch and complete_store(node.scratch)
    found = vary(evaluate, complete_survey(survey), replace(node, scratch=scratch), find_error(survey.busy))

    def describe(recipe: Recipe, way: Way) -> Way:
        now = found[0].first_epoch_s.value, found[0].later_epoch_s.value
        before, first, later = way.before_s, way.first_epoch_s, way.later_epoch_s
        pays = count_epochs_to_pay(before.value, first.value, later.value, now, epochs)
        name = way.name.removeprefix("pack, ") if survey.kind == "pack" else way.name
        return replace(
            way, name=f"{name} ({way.workers})" if recipe.code == "workers" else name,
            pays_after=None if math.isinf(pays) or recipe == IN_PLACE else pays,
            why_not=explain_misfit(recipe, way, survey, node, workers),
            commands=list_commands(recipe, way, survey, node, batch_size),
        )  # fmt: skip

    ways = tuple(map(describe, recipes, found))
    recommended, reason = recommend(ways, epochs, is_loading_alone=node.model_rate is None)
    of_node = [*node.notes, *describe_nodes(survey, node, batch_size), *_note_no_rate(node)]
    said = [*survey.notes, *of_node, *notes, *_note_resize(ways, recommended)]
    return Plan(survey, node, epochs, workers, ways, recommended, reason, tuple(said))


def find_error(busy: str = "") -> Figure:
    """Return the factor on times that nobody can tell; `busy`: what others took while they were measured."""
    # Timed beside others, what waits may be done in half the time; what computes takes more while they stay.
    return Figure(1.0, MODEL_ERROR.low / 2, 4 * MODEL_ERROR.high, ASSUMED, busy) if busy else MODEL_ERROR


def recommend(ways: Sequence[Way], epochs: int, *, is_loading_alone: bool = False) -> tuple[str, str]:
    """Return the code of the way to go, and why; no code: nothing is worth doing."""
    now = ways[0]
    possible = [way for way in ways[1:] if way.fits and not way.is_smaller]
    best = min((way.total_s.value for way in possible), default=math.inf)
    taken_s = now.total_s.value
    taken = f"{'loading alone' if is_loading_alone else 'the whole run'} takes"
    if taken_s < _LEAST_SAVED_S:
        return "", f"as it is, {taken} {format_seconds(taken_s)}"
    if best > taken_s * _WORTH:
        waiting = "loading" if is_loading_alone else "training"
        smaller = (way.total_s.value for way in ways if way.fits and way.is_smaller)
        keeping = " that keeps the images as they are" if min(smaller, default=math.inf) < best else ""
        noun = limits.LIMITS[now.limit].noun
        return "", f"{waiting} waits for {noun}, and no other way{keeping} would be 7% faster"
    if taken_s - best < _LEAST_SAVED_S:
        saved, of = format_seconds(taken_s - best), format_seconds(taken_s)
        share = format_percent(1 - best / taken_s)
        fastest = next(way.name for way in possible if way.total_s.value == best)
        return "", f"{fastest} would save {saved}, {share} of the {of} that {taken}: less than a minute"
    chosen = next(way for way in possible if way.total_s.value <= best * _NEARLY)
    run = f"{format_count(epochs, 'epoch')}{' of loading alone' if is_loading_alone else ''}"
    run += " is" if epochs == 1 else " are"
    then = f"then the limit is {limits.LIMITS[chosen.limit].noun}"
    if not (now.total_s.is_known and chosen.total_s.is_known):
        return chosen.code, f"{run} likely to be faster than in place, by how much is not known; {then}"
    pays = math.ceil(chosen.pays_after or 1)
    paid = f", and it has paid for itself after {format_count(pays, 'epoch')}" if pays > 1 else ""
    return chosen.code, f"{run} {taken_s / chosen.total_s.value:.1f} times as fast as in place{paid}; {then}"


def _note_resize(ways: Sequence[Way], recommended: str) -> list[str]:
    chosen = next(way for way in ways if way.code == (recommended or IN_PLACE.code))
    smaller = [way for way in ways if way.fits and way.is_smaller]
    best = min(smaller, key=lambda way: way.total_s.value, default=chosen)
    gain = chosen.total_s.value / best.total_s.value
    text = f"{best.name} would be {gain:.1f} times faster still, but changes the images (pack says how much)"
    is_worth = chosen.total_s.value - best.total_s.value >= _LEAST_SAVED_S
    is_worth = is_worth and chosen.total_s.is_known and best.total_s.is_known
    return [text] if gain > 1.25 and is_worth else []


def _note_no_rate(node: Node) -> list[str]:
    if node.model_rate is not None:
        return []
    what = f"how fast {node.model} trains here" if node.model else "how fast the model trains"
    how = "give --model-rate" + (", or measure it: feedrate bench machine" if node.model else "")
    return [f"{what} is not known, so times are what loading alone takes; {how}"]


def describe_nodes(survey: Survey, node: Node, batch_size: int) -> list[str]:
    """Return what several nodes are to one dataset, in sentences; of one node there is nothing to say."""
    if node.nodes == 1:
        return []
    nodes, total, shared = node.nodes, survey.source.total_bytes_per_s, survey.source.shared_bytes_per_s
    each = share(total.value, None if shared is None else shared.value, nodes)
    reading = f"{nodes:,} nodes read {format_bytes(each)}/s each, {format_bytes(each * nodes)}/s together"
    if shared is None:
        reading += ": what the source gives all is taken to be what one node gets; total=20GB/s would say it"
    said = [reading]
    if node.scratch is not None:
        written = node.scratch.write_bytes_per_s
        copy_s = survey.total_bytes.value / min(each, math.inf if written is None else written.value)
        said.append(
            f"a copy of everything on each node takes {format_seconds(copy_s)}, a part on each "
            f"{format_seconds(copy_s / nodes)}; the order is shuffled over the whole dataset, so a part "
            f"holds {format_percent(1 / nodes)} of what its node reads"
        )
    steps = math.ceil(survey.trained_samples.value / (nodes * max(node.gpus, 1) * batch_size))
    ending = f"an epoch is {format_count(steps, 'step')} of {batch_size:,} samples per rank"
    shard_bytes = choose_shard_bytes(survey.total_bytes.value, nodes)
    if survey.total_bytes.value > shard_bytes:
        shards = math.ceil(survey.total_bytes.value / shard_bytes)
        option = "" if shard_bytes == DEFAULT_SHARD_BYTES else " (feedrate pack --shard-size)"
        ending += f"; {shards:,} shards of {format_bytes(shard_bytes)} suit so many readers{option}"
    return [*said, ending]


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
        is_packed, is_made = recipe.packed or self.is_pack, recipe.packed and not self.is_pack
        shrink = shrink_of(survey) if recipe.resized else 1.0
        decoded = survey.decoded_bytes.value * shrink
        sample_bytes = survey.sample_bytes.value * shrink * (1 + _ENTRY_SHARE if recipe.packed else 1.0)
        size_bytes = samples * (sample_bytes + (_PACK_OVERHEAD_BYTES if is_packed else 0))
        parts: list[tuple[str, float]] = []
        if is_made:
            parts.append((PACK, self._error * self._pack_s(recipe, size_bytes)))
        # The copier was tried on the dataset's files; what is copied of them in another form are shards.
        home = replace(self._shared, copy_bytes_per_s=None) if is_made else self._shared
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
        held = max(room - in_memory, 0.0) / max(read_bytes, 1.0) if store.keeps_pages else 0.0
        held = 1.0 if copied else min(held, 1.0)

        # What was just written is in memory, as far as there is room for it; a pack in that of one node.
        is_fresh = recipe.is_local or (is_made and node.nodes == 1)
        filling = replace(load, fetch_cpu_s=_value(survey.whole_s) * shrink) if recipe.cache else load
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
        pack_bytes = size_bytes if is_made and not recipe.on_scratch else 0.0
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
            timeline=(*parts, (FIRST, first_s), *rest), gpu_hours_saved=exactly(0.0),
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
        found = defaultdict[str, float](float)
        for number, count in pick_epochs(max(self.epochs, 2), caching.parts):
            hits, filled, warm = caching.look(number)
            cpu_s = hits * caching.hit_s + filled * caching.fill_s + (1 - hits - filled) * load.fetch_cpu_s
            mixed = replace(load, fetch_cpu_s=cpu_s, asked=1 - hits)
            one = _slower(epoch(mixed, store, warm=warm), Epoch(on_disk_s * hits, limits.STORAGE))
            found[one.limit] += count * one.seconds
        longest = max(found, key=found.__getitem__)
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
