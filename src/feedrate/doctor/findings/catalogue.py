# SPDX-License-Identifier: Apache-2.0
"""The order of findings: by weight, except that a cause stands before all that it explains.

The catalogue: every cause the doctor knows, with what proves it, what it costs and what cures it.

A finding's share is the part of the run's time that would be saved if its cause were gone, by the cost model.
Some causes explain others (decoding is slow because all workers sit on one core): they come first, whatever
the shares; `ranking` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings import dataset, loader, loop, machine, opaque, pack
from feedrate.doctor.findings.evidence import WORTH_A_VERDICT, Evidence
from feedrate.doctor.results import Finding, Remedy


def rank(
    weights: Mapping[str, float],
    explains: Mapping[str, Collection[str]],
    *,
    outside: Collection[str] = (),
    after: Mapping[str, Collection[str]] | None = None,
) -> list[str]:
    """Return the codes of `weights` in order; of equal ones, the one that `weights` names first.

    Args:
        explains: what each code is the reason of; no circles. It weighs as much as the heaviest of them.
        outside: codes that weigh no more for what they explain.
        after: further codes that one has to stand behind.
    """

    def pull(code: str) -> float:
        own = weights[code]
        return own if code in outside else max([own, *(pull(other) for other in explains.get(code, ()))])

    before = {code: {reason for reason in weights if code in explains.get(reason, ())} for code in weights}
    for code, others in (after or {}).items():
        before.setdefault(code, set()).update(others)
    left, ordered = list(weights), []
    while left:
        ready = [code for code in left if before[code].isdisjoint(left)]
        ordered.append(max(ready, key=pull))
        left.remove(ordered[-1])
    return ordered


GOOD_CASE = "device-bound"


@dataclass(frozen=True, slots=True)
class Entry:
    """One cause of the catalogue.

    Attributes:
        title: the verdict's sentence.
        cause: why it happens, in one or two sentences.
        cures: names of remedies, the best ones first; only those that this run allows are shown.
        explains: codes that this one is the reason of, when it costs as much as `explains_from`.
        is_outside: not the script's doing: it stands where its own share puts it.
    """

    code: str
    title: str
    cause: str
    find: Callable[[Measured], Evidence | None]
    cures: tuple[str, ...]
    explains: tuple[str, ...] = ()
    explains_from: float = WORTH_A_VERDICT
    is_outside: bool = False


def find_causes(m: Measured, remedies: Mapping[str, Remedy]) -> tuple[Finding, ...]:
    """Return the findings of a run, the verdict first: reasons before what they explain."""
    finders = pack.FINDERS if m.loader.is_of_pack else opaque.FINDERS if m.loader.opaque else {}
    found = {
        entry.code: (entry, evidence)
        for entry in CATALOGUE
        if (evidence := finders.get(entry.code, entry.find)(m)) is not None
    }
    shares = {code: evidence.share for code, (_, evidence) in found.items()}
    weights = {code: evidence.rank_by for code, (_, evidence) in found.items()}
    explains = {
        code: tuple(other for other in entry.explains if other in found)
        for code, (entry, _) in found.items()
        if min(shares[code], weights[code]) >= entry.explains_from
    }
    outside = {code for code, (entry, _) in found.items() if entry.is_outside}
    curable = {code for code in found if code != GOOD_CASE and weights[code] >= WORTH_A_VERDICT}
    if GOOD_CASE in found and curable:
        # What a cause costs that can be cured is not the device's own work.
        rest = max(1.0 - max(shares[code] for code in curable), 0.0)
        shares[GOOD_CASE] = weights[GOOD_CASE] = min(shares[GOOD_CASE], rest)
    # A device at work is the good case: it never hides a cause that can be cured.
    order = rank(weights, explains, outside=outside, after={GOOD_CASE: curable})
    return tuple(_make(*found[code], shares[code], explains.get(code, ()), remedies) for code in order)


def entry_of(code: str) -> Entry:
    return next(entry for entry in CATALOGUE if entry.code == code)


def _make(
    entry: Entry, evidence: Evidence, share: float, explains: tuple[str, ...], remedies: Mapping[str, Remedy]
) -> Finding:
    cures = [remedies[name] for name in entry.cures if name in remedies]
    return Finding(
        code=entry.code,
        share=round(share, 4),
        title=evidence.title or entry.title,
        cause=evidence.cause or entry.cause,
        evidence=evidence.lines,
        numbers=evidence.numbers,
        remedies=tuple(sorted(cures, key=lambda remedy: -remedy.predicted_speedup)),
        explains=explains,
    )


_LOADER = (
    "decode-bound",
    "transform-bound",
    "storage-bound",
    "handover-bound",
    "repeated-work",
    "cold-cache",
)

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "storage-bound",
        "Training waits for storage",
        "The files come slower than they are used.",
        loader.find_slow_storage,
        cures=("loader", "stage", "pack", "cache-in-memory", "warm-page-cache", "more-workers"),
    ),
    Entry(
        "cold-cache",
        "The files are not in memory yet",
        "This epoch reads from the disk what the next ones find in memory.",
        loader.find_cold_cache,
        cures=("warm-page-cache", "stage", "pack"),
        explains=("storage-bound",),
    ),
    Entry(
        "decode-bound",
        "Training waits for image decoding",
        "Images are decoded whole, on the CPU.",
        loader.find_slow_decoding,
        cures=(
            "loader",
            "faster-decode",
            "normalise",
            "cache-in-memory",
            "more-workers",
            "more-threads",
            "preprocess-once",
            "pack",
        ),
    ),
    Entry(
        "transform-bound",
        "Training waits for the dataset's own transforms",
        "The code between reading a sample and handing it over is slow.",
        loader.find_slow_transforms,
        cures=("loader", "vectorise-transform", "preprocess-once", "more-workers", "pack"),
    ),
    Entry(
        "repeated-work",
        "The same preprocessing is done in every epoch",
        "Nothing random happens before it, so its result could be kept.",
        loader.find_repeated_work,
        cures=("loader", "preprocess-once", "cache-in-memory", "more-workers"),
        explains=("transform-bound", "decode-bound"),
    ),
    Entry(
        "workers-starved",
        "Too few workers",
        "Cores stand idle while the training waits for its batches.",
        loader.find_starved_workers,
        cures=("loader", "more-workers", "more-threads", "faster-decode", "normalise", "pack"),
        explains=_LOADER,
    ),
    Entry(
        "workers-oversubscribed",
        "More workers than cores",
        "The workers take the cores from each other and from the training.",
        loader.find_too_many_workers,
        cures=("loader", "fewer-workers", "faster-decode", "normalise"),
        explains=(*_LOADER, "epoch-start-pause"),
    ),
    Entry(
        "workers-pinned",
        "The workers share too few cores",
        "Their affinity keeps them on few cores while others idle.",
        loader.find_pinned_workers,
        cures=("loader", "unpin-workers", "faster-decode"),
        explains=(*_LOADER, "workers-starved", "workers-oversubscribed"),
    ),
    Entry(
        "workers-idle",
        "Some workers have no data",
        "An iterable dataset divides its shards among the workers; one that gets none ends at once.",
        dataset.find_idle_workers,
        cures=("more-shards", "faster-decode"),
        explains=(*_LOADER, "workers-starved", "workers-oversubscribed"),
    ),
    Entry(
        "large-views",
        "Small parts of large tensors are handed over whole",
        "torch hands another process the whole storage under a tensor, not the part that the tensor shows.",
        dataset.find_large_views,
        cures=("clone-views",),
        explains=("handover-bound", "workers-starved"),
    ),
    Entry(
        "slow-start",
        "Samples are decoded before the training begins, in one thread",
        "Each is read and decoded after the other while the other cores, and the device, have nothing to do.",
        dataset.find_slow_start,
        cures=("decode-side-by-side",),
    ),
    Entry(
        "handover-bound",
        "Handing batches over holds up the training",
        "Collating, pickling and shared memory take time beside the making of samples.",
        loader.find_slow_handover,
        cures=("loader", "lighter-handover", "fewer-workers", "more-workers"),
    ),
    Entry(
        "loader-bound",
        "Training waits for its loader",
        "What the loader does cannot be seen from Python.",
        opaque.find_slow_loader,
        cures=(),
    ),
    Entry(
        "contended",
        "Other processes take the machine",
        "Cores (or the GPU) are shared with work that is not this run's.",
        machine.find_contention,
        cures=("stop-others", "loader", "faster-decode", "normalise", "fewer-workers"),
        explains=(
            *_LOADER,
            "workers-oversubscribed",
            "workers-starved",
            "loader-bound",
            "main-thread-bound",
            "device-bound",
        ),
        explains_from=0.3,  # some company is usual on shared machines, and hides no other cause
        is_outside=True,
    ),
    Entry(
        "memory-pressure",
        "Memory is short",
        "Pages are thrown out and read again, or the job comes near its limit.",
        machine.find_short_memory,
        cures=("use-less-memory", "fewer-workers"),
        explains=(
            "storage-bound",
            "cold-cache",
            "transform-bound",
            "decode-bound",
            "handover-bound",
            "main-thread-bound",
        ),
    ),
    Entry(
        "shm-too-small",
        "/dev/shm is too small for the workers' batches",
        "Workers pass batches through shared memory; when it is full they die.",
        machine.find_small_shm,
        cures=("fewer-workers",),
    ),
    Entry(
        "gpu-unused",
        "A GPU is here, and the training does not use it",
        "The model computes on the CPU.",
        machine.find_unused_gpu,
        cures=("use-gpu",),
        explains=("device-bound",),
    ),
    Entry(
        "copy-bound",
        "Copies to the GPU hold up the training",
        "Batches are copied from pageable memory or as 4-byte floats.",
        loop.find_slow_copies,
        cures=("loader", "pinned-memory", "batches-on-device", "uint8-transfer"),
    ),
    Entry(
        "sync-bound",
        "The training waits for the GPU at every step",
        "A value is read back in the loop, so the GPU runs dry before the next step is queued.",
        loop.find_syncs,
        cures=("remove-sync",),
    ),
    Entry(
        "readback-bound",
        "Outputs are brought back to the CPU",
        "Copies from the device wait for all queued work.",
        loop.find_readbacks,
        cures=("keep-on-device",),
    ),
    Entry(
        "write-bound",
        "Writing files holds up the training loop",
        "The loop waits while files are written.",
        loop.find_writing,
        cures=("write-less",),
        explains=("main-thread-bound",),
    ),
    Entry(
        "main-thread-bound",
        "The training loop's own Python holds it up",
        "Code in the loop runs while the device has nothing to do.",
        loop.find_slow_loop,
        cures=("speed-up-loop", "move-to-workers", "larger-batch"),
    ),
    Entry(
        "epoch-start-pause",
        "Every epoch begins with a pause",
        "Workers are started again and fill their queue before the first batch.",
        loop.find_epoch_pause,
        cures=("loader", "persistent-workers", "fewer-workers"),
    ),
    Entry(
        "validation-bound",
        "Validation takes much of the time",
        "It runs often, or its loader is slow.",
        loop.find_long_validation,
        cures=("fewer-evaluations",),
    ),
    Entry(
        "checkpoint-bound",
        "Saving takes much of the time",
        "The training stands still while a checkpoint is written.",
        loop.find_long_saving,
        cures=("fewer-checkpoints",),
    ),
    Entry(
        "slow-rank",
        "One rank holds up the others",
        "Its data comes later than that of the other ranks, and every step waits for it.",
        loop.find_slow_rank,
        cures=("balance-ranks", "loader", "more-workers", "faster-decode"),
        explains=(*_LOADER, "workers-starved"),
    ),
    Entry(
        "device-bound",
        "The device is the limit: this is the good case",
        "Data arrives in time; the model's own computing takes the time.",
        loop.find_busy_device,
        cures=(
            "half-precision",
            "channels-last",
            "larger-batch",
            "move-to-cores",
            "loader",
            "faster-decode",
            "normalise",
            "more-workers",
            "pack",
        ),
    ),
)
