# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every cause the doctor knows, with what proves it and what cures it, and every remedy.

To add a cause with its remedy: write `find_...`, which returns its `Evidence`, and the remedy beside it in
the module of its subject; then name both here, the cause in CATALOGUE and the remedy in REMEDIES. A cause's
`cures` name remedies; docs/doctor.md has a table of the codes. `diagnose` ranks what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings import caching, dataset, feed, loader, loop, machine, other_loaders
from feedrate.doctor.findings.evidence import WORTH_A_VERDICT, Evidence
from feedrate.doctor.results import Remedy
from feedrate.model import limits

Find = Callable[[Measured], Evidence | None]
Make = Callable[[Measured], Remedy | None]
GOOD_CASE = limits.DEVICE


@dataclass(frozen=True, slots=True)
class Entry:
    """One cause of the catalogue.

    Attributes:
        code: of model/limits.py, where the verdict's sentence stands.
        cause: why it happens, in one or two sentences.
        cures: names of remedies, the best ones first; only those that this run allows are shown.
        of_pack: what looks for it where a feedrate.Loader feeds the run: nothing (None), or the same (...).
        explains: codes that this one is the reason of, when it costs as much as `explains_from`.
        is_outside: not the script's doing: it stands where its own share puts it.
    """

    code: str
    cause: str
    find: Find
    cures: tuple[str, ...]
    of_pack: Find | EllipsisType | None = ...
    explains: tuple[str, ...] = ()
    explains_from: float = WORTH_A_VERDICT
    is_outside: bool = False

    @property
    def title(self) -> str:
        return limits.LIMITS[self.code].title

    def look(self, m: Measured) -> Evidence | None:
        find = (
            self.find if isinstance(self.of_pack, EllipsisType) or not m.loader.is_of_pack else self.of_pack
        )
        return None if find is None else find(m)


def entry_of(code: str) -> Entry:
    return next(entry for entry in CATALOGUE if entry.code == code)


def list_remedies(m: Measured) -> dict[str, Remedy]:
    """Return every remedy that can be judged from this run, by name."""
    left_out = _OF_DATALOADER if m.loader.is_of_pack else set()
    made = (make(m) for make in REMEDIES if make not in left_out)
    return {remedy.name: remedy for remedy in made if remedy is not None}


_LOADER = (
    "decode-bound", "transform-bound", "storage-bound", "handover-bound", "repeated-work", "cold-cache",
)  # fmt: skip

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "storage-bound", "The files come slower than they are used.",
        loader.find_slow_storage, of_pack=other_loaders.find_slow_storage,
        cures=("loader", "stage", "pack", "cache-in-memory", "warm-page-cache", "more-workers"),
    ),
    Entry(
        "cold-cache", "This epoch reads from the disk what the next ones find in memory.",
        loader.find_cold_cache, of_pack=None,
        cures=("warm-page-cache", "stage", "pack"),
        explains=("storage-bound",),
    ),
    Entry(
        "decode-bound", "Images are decoded whole, on the CPU.",
        loader.find_slow_decoding, of_pack=other_loaders.find_slow_decoding,
        cures=(
            "loader", "run", "faster-decode", "normalise", "cache-in-memory", "more-workers", "more-threads",
            "preprocess-once", "pack",
        ),
    ),
    Entry(
        "transform-bound", "The code between reading a sample and handing it over is slow.",
        loader.find_slow_transforms, of_pack=other_loaders.find_slow_transforms,
        cures=("loader", "index-batches", "vectorise-transform", "preprocess-once", "more-workers", "pack"),
    ),
    Entry(
        "repeated-work", "Nothing random happens before it, so its result could be kept.",
        loader.find_repeated_work, of_pack=None,
        cures=("loader", "index-batches", "preprocess-once", "cache-in-memory", "more-workers"),
        explains=("transform-bound", "decode-bound"),
    ),
    Entry(
        "workers-starved", "Cores stand idle while the training waits for its batches.",
        loader.find_starved_workers, of_pack=other_loaders.find_few_threads,
        cures=(
            "loader", "run", "index-batches", "more-workers", "more-threads", "faster-decode", "normalise",
            "pack",
        ),
        explains=_LOADER,
    ),
    Entry(
        "workers-oversubscribed", "The workers take the cores from each other and from the training.",
        loader.find_too_many_workers, of_pack=None,
        cures=("loader", "run", "fewer-workers", "faster-decode", "normalise"),
        explains=(*_LOADER, "epoch-start-pause"),
    ),
    Entry(
        "workers-pinned", "Their affinity keeps them on few cores while others idle.",
        loader.find_pinned_workers, of_pack=None,
        cures=("loader", "run", "unpin-workers", "faster-decode"),
        explains=(*_LOADER, "workers-starved", "workers-oversubscribed"),
    ),
    Entry(
        "workers-idle",
        "An iterable dataset divides its shards among the workers; one that gets none ends at once.",
        dataset.find_idle_workers,
        cures=("more-shards", "run", "faster-decode"),
        explains=(*_LOADER, "workers-starved", "workers-oversubscribed"),
    ),
    Entry(
        "large-views",
        "torch hands another process the whole storage under a tensor, not the part that the tensor shows.",
        dataset.find_large_views,
        cures=("clone-views",),
        explains=("handover-bound", "workers-starved"),
    ),
    Entry(
        "unpack-bound", "Chunks are read and unpacked whole, however little of them a sample is.",
        dataset.find_unpacking, of_pack=None,
        cures=("rechunk", "cache-in-memory", "preprocess-once", "more-workers"),
        explains=("handover-bound",),
    ),
    Entry(
        "slow-start",
        "Each is read and decoded after the other while the other cores, and the device, have nothing to do.",
        dataset.find_slow_start,
        cures=("decode-side-by-side",),
    ),
    Entry(
        "handover-bound", "Collating, pickling and shared memory take time beside the making of samples.",
        loader.find_slow_handover, of_pack=None,
        cures=("loader", "index-batches", "lighter-handover", "fewer-workers", "more-workers"),
    ),
    Entry(
        "contended", "Cores (or the GPU) are shared with work that is not this run's.",
        machine.find_contention,
        cures=("stop-others", "loader", "run", "faster-decode", "normalise", "fewer-workers"),
        explains=(
            *_LOADER, "workers-oversubscribed", "workers-starved", "main-thread-bound", "device-bound",
        ),
        explains_from=0.3,  # some company is usual on shared machines, and hides no other cause
        is_outside=True,
    ),
    Entry(
        "memory-pressure", "Pages are thrown out and read again, or the job comes near its limit.",
        machine.find_short_memory,
        cures=("use-less-memory", "fewer-workers"),
        explains=(
            "storage-bound", "cold-cache", "transform-bound", "decode-bound", "handover-bound",
            "main-thread-bound",
        ),
    ),
    Entry(
        "shm-too-small", "Workers pass batches through shared memory; when it is full they die.",
        machine.find_small_shm,
        cures=("fewer-workers",),
    ),
    Entry(
        "gpu-unused", "The model computes on the CPU.",
        machine.find_unused_gpu,
        cures=("use-gpu",),
        explains=("device-bound",),
    ),
    Entry(
        "copy-bound", "Batches are copied from pageable memory or as 4-byte floats.",
        loop.find_slow_copies,
        cures=("loader", "pinned-memory", "batches-on-device", "uint8-transfer"),
    ),
    Entry(
        "sync-bound", "A value is read back in the loop, so the GPU runs dry before the next step is queued.",
        loop.find_syncs,
        cures=("remove-sync",),
    ),
    Entry(
        "readback-bound", "Copies from the device wait for all queued work.",
        loop.find_readbacks,
        cures=("keep-on-device",),
    ),
    Entry(
        "write-bound", "The loop waits while files are written.",
        loop.find_writing,
        cures=("write-less",),
        explains=("main-thread-bound",),
    ),
    Entry(
        "main-thread-bound", "Code in the loop runs while the device has nothing to do.",
        loop.find_slow_loop,
        cures=("speed-up-loop", "move-to-workers"),
    ),
    Entry(
        "epoch-start-pause", "Workers are started again and fill their queue before the first batch.",
        loop.find_epoch_pause,
        of_pack=other_loaders.find_epoch_pause,
        cures=("loader", "persistent-workers", "fewer-workers"),
    ),
    Entry(
        "validation-bound", "It runs often, or its loader is slow.",
        loop.find_long_validation,
        cures=("fewer-evaluations",),
    ),
    Entry(
        "checkpoint-bound", "The training stands still while a checkpoint is written.",
        loop.find_long_saving,
        cures=("fewer-checkpoints",),
    ),
    Entry(
        "slow-rank", "Its data comes later than that of the other ranks, and every step waits for it.",
        loop.find_slow_rank,
        cures=("balance-ranks", "loader", "run", "more-workers", "faster-decode"),
        explains=(*_LOADER, "workers-starved"),
    ),
    Entry(
        "device-bound", "Data arrives in time; the model's own computing takes the time.",
        loop.find_busy_device, of_pack=other_loaders.find_busy_device,
        cures=(
            "half-precision", "channels-last", "move-to-cores", "loader", "run", "faster-decode", "normalise",
            "more-workers", "pack",
        ),
    ),
)  # fmt: skip

# A remedy that a run says nothing about returns None.
_OF_WORKERS: tuple[Make, ...] = (
    feed.replace_loader,
    loader.change_workers,
    loader.persist_workers,
    loader.unpin_workers,
    loader.lighten_handover,
    loader.run_as_it_is,
    loader.decode_faster,
    loader.normalise_images,
    loader.pack_files,
    caching.cache_in_memory,
    caching.read_from_memory,
    loader.vectorise_transform,
    caching.preprocess_once,
    dataset.feed_all_workers,
    dataset.clone_views,
    dataset.rechunk,
    dataset.index_batches,
)
REMEDIES: tuple[Make, ...] = (
    *_OF_WORKERS,
    loader.stage_to_scratch,
    dataset.decode_side_by_side,
    loop.evaluate_less,
    loop.save_less,
    loop.write_less,
    loop.speed_up_main,
    loop.move_to_workers,
    loop.remove_syncs,
    loop.keep_on_device,
    loop.pin_memory,
    loop.transfer_bytes,
    loop.halve_precision,
    loop.lay_channels_last,
    loop.move_to_cores,
    loop.balance_ranks,
    machine.stop_others,
    machine.use_less_memory,
    machine.use_gpu,
    other_loaders.use_more_threads,
    other_loaders.normalise_pack,
    other_loaders.cache_samples,
    other_loaders.load_to_device,
)
# What makes no sense for a feedrate.Loader, which has threads and reads a pack already.
_OF_DATALOADER = {*_OF_WORKERS, loop.move_to_workers, loop.pin_memory, loop.move_to_cores}
