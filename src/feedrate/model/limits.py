# SPDX-License-Identifier: Apache-2.0
"""The words for what limits a training run: one code, one sentence and one noun for each cause.

Doctor, plan, watch, speedtest, `Loader.stats()` and the thread controller name a limit by these codes and
show these texts; how each finds out which it is, is its own. How sure a number is that a judgement rests on
is said by the four origins in `feedrate.figures`: measured, stored, given, assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of memory that is short: bytes swapped a second; page faults a second that wait for a disk, near the limit.
_SWAPPED, _FAULTS, _FULL = 1e6, 50, 0.85

STORAGE, COLD_CACHE, DECODE, TRANSFORM = "storage-bound", "cold-cache", "decode-bound", "transform-bound"
REPEATED, HANDOVER, UNPACK = "repeated-work", "handover-bound", "unpack-bound"
STARVED, OVERSUBSCRIBED, PINNED = "workers-starved", "workers-oversubscribed", "workers-pinned"
IDLE_WORKERS, CONTENDED, MEMORY, SMALL_SHM = "workers-idle", "contended", "memory-pressure", "shm-too-small"
COPY, SYNC, READBACK, WRITE = "copy-bound", "sync-bound", "readback-bound", "write-bound"
MAIN_THREAD, UNUSED_GPU, DEVICE = "main-thread-bound", "gpu-unused", "device-bound"
EPOCH_START, VALIDATION, CHECKPOINT = "epoch-start-pause", "validation-bound", "checkpoint-bound"
LARGE_VIEWS, SLOW_START, SLOW_RANK = "large-views", "slow-start", "slow-rank"


@dataclass(frozen=True, slots=True)
class Limit:
    """One cause of slow training.

    Attributes:
        code: a stable word.
        title: what it means for the training, as a verdict without a full stop.
        noun: what is short, for "then the limit is NOUN".
    """

    code: str
    title: str
    noun: str


LIMITS: dict[str, Limit] = {
    one.code: one
    for one in (
        Limit(STORAGE, "Training waits for storage", "storage"),
        Limit(COLD_CACHE, "The files are not in memory yet", "storage, until the files are in memory"),
        Limit(DECODE, "Training waits for image decoding", "image decoding"),
        Limit(TRANSFORM, "Training waits for the dataset's own transforms", "the dataset's own transforms"),
        Limit(REPEATED, "The same preprocessing is done in every epoch", "repeated preprocessing"),
        Limit(STARVED, "Too few workers", "the number of workers"),
        Limit(OVERSUBSCRIBED, "More workers than cores", "the number of cores"),
        Limit(PINNED, "The workers share too few cores", "the cores that the job may use"),
        Limit(IDLE_WORKERS, "Some workers have no data", "the number of parts that workers share"),
        Limit(LARGE_VIEWS, "Small parts of large tensors are handed over whole", "handing batches over"),
        Limit(UNPACK, "Reading burns CPU: what is stored is unpacked for every sample", "unpacking"),
        Limit(
            SLOW_START,
            "Samples are decoded before the training begins, in one thread",
            "decoding at the start",
        ),
        Limit(HANDOVER, "Handing batches over holds up the training", "handing batches over"),
        Limit(CONTENDED, "Other processes take the machine", "other processes"),
        Limit(MEMORY, "Memory is short", "memory"),
        Limit(SMALL_SHM, "/dev/shm is too small for the workers' batches", "/dev/shm"),
        Limit(
            UNUSED_GPU, "A GPU is here, and the training does not use it", "the CPU, as the GPU is not used"
        ),
        Limit(COPY, "Copies to the GPU hold up the training", "copies to the GPU"),
        Limit(SYNC, "The training waits for the GPU at every step", "waiting for the GPU at every step"),
        Limit(READBACK, "Outputs are brought back to the CPU", "copies from the GPU"),
        Limit(WRITE, "Writing files holds up the training loop", "writing files"),
        Limit(MAIN_THREAD, "The training loop's own Python holds it up", "the training loop's own Python"),
        Limit(EPOCH_START, "Every epoch begins with a pause", "the start of an epoch"),
        Limit(VALIDATION, "Validation takes much of the time", "validation"),
        Limit(CHECKPOINT, "Saving takes much of the time", "saving"),
        Limit(SLOW_RANK, "One rank holds up the others", "the slowest rank"),
        Limit(DEVICE, "The device is the limit: this is the good case", "the device"),
    )
}


def is_memory_full(used_bytes: float, limit_bytes: float) -> bool:
    return used_bytes > _FULL * limit_bytes


def is_memory_short(swapped_per_s: float, faults_per_s: float, *, is_full: bool) -> bool:
    """Whether pages are thrown out and read again, so that what needs them waits."""
    return swapped_per_s > _SWAPPED or (is_full and faults_per_s > _FAULTS)
