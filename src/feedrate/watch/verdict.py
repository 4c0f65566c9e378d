# SPDX-License-Identifier: Apache-2.0
"""Judges readings from outside in the doctor's words: its codes and titles, and "cannot tell" where so.

From outside one sees which processes compute or wait, and not why a step takes its time. A trainer that
sleeps waits for its data; the state of its workers meanwhile tells the reason. A GPU that is busy does
not wait. Without a GPU the device is the CPU: a trainer that computes does not wait.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from feedrate.model import limits
from feedrate.units import format_bytes, format_count, format_percent
from feedrate.watch.results import Shares, Verdict, WatchedJob, WatchedProcess

_GPU_BUSY = 0.85
_LOW_POWER = 0.4  # of the limit: a GPU that is "busy" with little work
_WAITS = 0.3  # of the time: a trainer that waits
_MOSTLY = 0.5
_COMPUTES = 0.7
_QUEUED = 0.25
_SHARED_GPU = 0.15  # of its time, for others
_SHARED_CORES = 0.25  # of the cores that the job may use, for others
_THROTTLED = 0.1
_LEAST_CORES = 0.1
_READS = 1e6  # bytes a second: reads its data
_PROFILERS = {
    "TensorFlow": "TensorBoard's profiler shows what tf.data waits for (tf.profiler.experimental.start)",
    "JAX": "jax.profiler.trace(FOLDER) shows when the device waits",
}
UNKNOWN = "From outside it cannot be told whether data is the limit"


def settle(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that most of the latest readings gave, in the words of the newest such."""
    codes = [verdict.codes for verdict in verdicts]
    counts = Counter(codes)
    # Of two that came as often, the later one.
    best = max(counts, key=lambda of: (counts[of], len(codes) - codes[::-1].index(of)))
    return next(verdict for verdict in reversed(verdicts) if verdict.codes == best)


def judge(job: WatchedJob) -> Verdict:
    return (
        _find_short_memory(job)
        or _find_busy_gpu(job)
        or _find_quota(job)
        or _find_blocked_trainer(job)
        or _find_crowd(job)
        or (_judge_workers(job) if job.workers else _judge_alone(job))
    )


def _find_short_memory(job: WatchedJob) -> Verdict | None:
    memory = job.memory
    swapped = memory.swap_in_bytes_per_s + memory.swap_out_bytes_per_s
    own = memory.used_bytes - memory.cache_bytes
    # Swapping of other jobs does not hold this one up.
    is_swapping = memory.job_swap_bytes != 0 and limits.is_memory_short(swapped, 0.0, is_full=False)
    is_full = limits.is_memory_full(own, memory.limit_bytes)
    if not is_swapping and not limits.is_memory_short(0.0, memory.major_faults_per_s, is_full=is_full):
        return None
    reason = f"{format_bytes(own)} of {format_bytes(memory.limit_bytes)} are taken, page cache not counted"
    if is_swapping:
        here = "some" if memory.job_swap_bytes is None else format_bytes(memory.job_swap_bytes)
        reason = f"{here} of the job is in swap, and {format_bytes(swapped)}/s are swapped; {reason}"
    else:
        reason += f", and {memory.major_faults_per_s:,.0f} page faults a second wait for a disk"
    less = "fewer workers, smaller caches or batches" if job.workers else "smaller caches or batches"
    more = "a larger memory limit of the job (Slurm: --mem)"
    more = more if memory.is_group else "a machine with more memory"
    return _verdict(job, limits.MEMORY, reason, f"{less}; or {more}")


def _find_quota(job: WatchedJob) -> Verdict | None:
    throttled, cores = job.cores.throttled_share or 0.0, job.cores
    # The quota may be one of many jobs together: one that hardly runs is not held up by it.
    if throttled < _THROTTLED or cores.quota is None or cores.job < _LEAST_CORES:
        return None
    reason = f"the CPU quota of {cores.quota:g} cores stopped the job {format_percent(throttled)} of the time"
    remedy = "ask for more cores (Slurm: --cpus-per-task, Docker: --cpus)"
    return _verdict(job, limits.PINNED, reason, remedy)


def _find_busy_gpu(job: WatchedJob) -> Verdict | None:
    busy = measure_gpu(job)
    shares = [gpu.others_share for gpu in job.gpus if gpu.others_share is not None]
    if max(shares, default=0.0) >= _SHARED_GPU:
        theirs = format_percent(max(shares))
        reason = f"other processes have {theirs} of the GPU's time; it is {_percent(busy)} busy"
        return _verdict(job, limits.CONTENDED, reason, "another GPU, or wait for them to end")
    if busy is None or busy < _GPU_BUSY:
        return None
    reason = f"{_word_gpus(job)} {_percent(busy)} busy"
    watts = [(g.power_w, g.power_limit_w) for g in job.gpus if g.power_w and g.power_limit_w]
    if watts and sum(w for w, _ in watts) < _LOW_POWER * sum(limit for _, limit in watts):
        low = f"{sum(w for w, _ in watts):,.0f} of {sum(limit for _, limit in watts):,.0f} W"
        reason += f", though at {low} each kernel does little: larger batches or half precision may help"
    if any(gpu.others for gpu in job.gpus) and not shares:
        reason += "; others hold memory there, and how much of its time they have is not known"
    return _good(reason)


def _find_blocked_trainer(job: WatchedJob) -> Verdict | None:
    trainer = _mean(job.trainers)
    if trainer.storage < _WAITS:
        return None
    written = sum(one.written_bytes_per_s or 0.0 for one in job.trainers)
    read = sum(one.disk_bytes_per_s or 0.0 for one in job.trainers)
    reason = f"the training process itself waits for storage {_percent(trainer.storage)} of the time"
    if written > max(read, _READS):
        remedy = "write less often, in a thread, or to local scratch"
        reason += f", and writes {format_bytes(written)}/s"
        return _verdict(job, (limits.WRITE, limits.CHECKPOINT), reason, remedy)
    return _storage(job, reason)


def _find_crowd(job: WatchedJob) -> Verdict | None:
    """Processes, or threads of one, that are ready to run and have no core."""
    queued = max((_mean(group).queued for group in (job.trainers, job.workers) if group), default=0.0)
    ran, waited = sum(one.cores for one in job.threads), sum(one.queued for one in job.threads)
    if waited >= _QUEUED:
        queued = max(queued, waited / (ran + waited))
    cores = job.cores
    if queued < _QUEUED or cores.idle > 0.25 * cores.limit:
        return None
    reason = f"who is ready to run has no core {_percent(queued)} of the time"
    if cores.others >= _SHARED_CORES * cores.allowed:
        name = "" if cores.biggest_other is None else f", most by {cores.biggest_other[0]}"
        reason += f"; others use {cores.others:.1f} of {cores.allowed} cores{name}"
        remedy = "another node, or exclusive use of the cores"
        return _verdict(job, limits.CONTENDED, reason, remedy)
    if job.workers and len(job.workers) + len(job.trainers) > cores.limit:
        many = format_count(len(job.workers), "worker")
        reason = f"{many} and the training share {cores.limit:g} cores; {reason}"
        if cores.allowed < cores.machine:
            reason += f"; the machine has {cores.machine}"
        remedy = "fewer workers, or more cores (Slurm: --cpus-per-task)"
        return _verdict(job, limits.OVERSUBSCRIBED, reason, remedy)
    return None


def _judge_workers(job: WatchedJob) -> Verdict:
    trainer, workers = _mean(job.trainers), _mean(job.workers)
    gpu, cores = measure_gpu(job), job.cores
    many = format_count(len(job.workers), "worker")
    waits = f"the training waits {_percent(trainer.idle)} of the time"
    if gpu is not None:
        waits += f", and {_word_gpus(job)} {_percent(gpu)} busy"
    if trainer.idle >= _WAITS:
        if workers.storage >= _WAITS and workers.storage >= workers.computing:
            reason = (
                f"{waits}, while {many} {_verb(job, 'wait')} for storage {_percent(workers.storage)} of it"
            )
            return _storage(job, reason)
        if workers.computing + workers.queued >= _MOSTLY:
            reason = f"{waits}, while {many} {_verb(job, 'compute')} {_percent(workers.computing)} of it"
            return _busy_workers(job, reason)
        if workers.idle >= _COMPUTES:
            reason = f"{waits}, and {many} {_verb(job, 'sleep')} {_percent(workers.idle)} of it"
            return _cannot_tell(job, f"{reason}: something else is waited for{_word_network(job)}")
        computing = f"{_verb(job, 'compute')} {_percent(workers.computing)}"
        reason = f"{waits}; {many} {computing} of it and {_verb(job, 'sleep')} {_percent(workers.idle)}"
        return _cannot_tell(job, reason)
    if gpu is not None and trainer.computing >= _COMPUTES:
        computes = f"the training process computes {_percent(trainer.computing)} of the time on its core"
        reason = f"{computes}, and {_word_gpus(job)} {_percent(gpu)} busy"
        return _verdict(job, (limits.MAIN_THREAD, limits.SYNC), reason, "")
    if job.gpus:
        return _cannot_tell(
            job, f"{waits}, and computes {_percent(trainer.computing)} of it{_word_mute(job)}"
        )
    if job.free_gpus and job.frameworks:
        return _unused_gpu(job)
    if workers.idle < _WAITS:
        computes = f"and {many} {_verb(job, 'compute')} {_percent(workers.computing)} of it"
        return _cannot_tell(job, f"{waits}, {computes}: neither side is ahead of the other")
    reason = (
        f"{waits}, and {many} {_verb(job, 'sleep')} {_percent(workers.idle)} of it, ahead of the training"
    )
    return _good(f"{reason}; {cores.job:.1f} of {cores.limit:g} cores are used")


def _busy_workers(job: WatchedJob, reason: str) -> Verdict:
    idle = int(job.cores.idle + 0.4)
    if idle >= 1:
        count = len(job.workers)
        reason += f"; {job.cores.idle:.1f} of {job.cores.limit:g} cores are idle"
        ranks = max(len(job.trainers), 1)
        more = f"DataLoader(..., num_workers={-(-(count + idle) // ranks)})"
        return _verdict(job, limits.STARVED, reason, f"{more}, now {count // ranks}")
    reason += f", on {job.cores.job:.1f} of {job.cores.limit:g} cores"
    remedy = "feedrate.Loader decodes only what the crop needs; or more cores"
    return _verdict(job, (limits.DECODE, limits.TRANSFORM), reason, remedy)


def _judge_alone(job: WatchedJob) -> Verdict:
    """Judge a job without worker processes: threads load the data, or the training process itself does."""
    gpu, cores = measure_gpu(job), job.cores
    computing = _mean(job.trainers).computing
    blocked = sum(group.waiting_for_storage for group in job.threads)
    used = f"it uses {cores.job:.1f} of {cores.limit:g} cores"
    if blocked and cores.job < _MOSTLY * cores.limit and (gpu is None or gpu < _GPU_BUSY):
        are = "waits" if blocked == 1 else "wait"
        return _storage(job, f"{format_count(blocked, 'thread')} of it {are} for storage; {used}")
    if gpu is None:
        if job.gpus:
            return _cannot_tell(job, f"{used}{_word_mute(job)}")
        if job.free_gpus and job.frameworks and cores.job >= _COMPUTES:
            return _unused_gpu(job)
        which = (
            "which of its threads load data and which train" if len(job.threads) > 1 else "what it computes"
        )
        if cores.job < _WAITS:
            return _cannot_tell(job, f"{used}: it waits, and for what cannot be seen{_word_network(job)}")
        return _cannot_tell(job, f"{used}; {which} cannot be seen")
    reason = f"{_word_gpus(job)} {_percent(gpu)} busy; {used}"
    if cores.job >= 0.8 * cores.limit:
        return _verdict(job, (limits.DECODE, limits.TRANSFORM), reason, "more cores")
    reads = sum(one.read_bytes_per_s or 0.0 for one in job.trainers)
    if computing >= _COMPUTES and cores.job < 2 and reads >= _READS:
        reason += f"; the training process reads its data itself, {format_bytes(reads)}/s"
        remedy = f"DataLoader(..., num_workers={max(1, int(cores.limit) - 1)})"
        return _verdict(job, limits.STARVED, reason, remedy)
    if computing >= _COMPUTES and cores.job < 2:
        return _verdict(job, (limits.MAIN_THREAD, limits.STARVED), reason, "")
    return _cannot_tell(job, reason)


def _storage(job: WatchedJob, reason: str) -> Verdict:
    mine = [store for store in job.stores if store.mount_points]
    for store in mine:
        if store.busy is not None and store.busy >= _MOSTLY:
            reason += f"; {store.name} is {_percent(store.busy)} busy"
    is_network = any(store.kind != "disk" for store in mine)
    remedy = (
        "feedrate stage DATA --scratch DIR brings it to a local disk" if is_network
        else "feedrate pack DATA PACK for many small files; a cache in memory for later epochs"
    )  # fmt: skip
    return _verdict(job, (limits.STORAGE, limits.COLD_CACHE), reason, remedy)


def _unused_gpu(job: WatchedJob) -> Verdict:
    numbers = ", ".join(map(str, job.free_gpus[:4]))
    reason = f"the job computes on {job.cores.job:.1f} cores; nobody uses GPU {numbers}"
    remedy = "a build with CUDA, and the model moved to the GPU"
    return _verdict(job, limits.UNUSED_GPU, reason, remedy)


def _good(reason: str) -> Verdict:
    remedy = "nothing to do for the data; half precision or a larger batch may speed up the model"
    code = limits.DEVICE
    return Verdict((code,), limits.LIMITS[code].title, reason, remedy, is_good=True)


def _verdict(job: WatchedJob, codes: str | tuple[str, ...], reason: str, remedy: str) -> Verdict:
    codes = (codes,) if isinstance(codes, str) else codes
    title = limits.LIMITS[codes[0]].title
    if codes == (limits.DECODE, limits.TRANSFORM):  # from outside they are the same
        title += f", or {limits.LIMITS[limits.TRANSFORM].noun}"
    return Verdict(codes, title, reason, remedy, suggest(job))


def _cannot_tell(job: WatchedJob, reason: str) -> Verdict:
    return Verdict((), UNKNOWN, reason, next=suggest(job))


def suggest(job: WatchedJob) -> str:
    """Return the command to type, or the profiler to use, to learn more."""
    if job.doctor is not None:
        return f"a doctor is running on it already (process {job.doctor}): read its report when it ends"
    for name, profiler in _PROFILERS.items():
        if name in job.frameworks and "PyTorch" not in job.frameworks:
            return profiler
    return f"feedrate doctor -- {shlex.join(job.command) if job.command else 'python train.py ...'}"


def measure_gpu(job: WatchedJob) -> float | None:
    """Return how busy the job's GPUs are on average; None: it has none, or they do not tell."""
    known = [gpu.utilisation for gpu in job.gpus if gpu.utilisation is not None]
    return sum(known) / len(known) if known else None


def _mean(processes: Sequence[WatchedProcess]) -> Shares:
    count = len(processes)
    if not count:
        return Shares(0.0, 0.0, 0.0, 1.0)
    names = ("computing", "queued", "storage", "idle")
    return Shares(*(sum(getattr(one.shares, name) for one in processes) / count for name in names))


def _word_gpus(job: WatchedJob) -> str:
    return "the GPU is" if len(job.gpus) == 1 else f"the {len(job.gpus)} GPUs are"


def _verb(job: WatchedJob, verb: str) -> str:
    return f"{verb}s" if len(job.workers) == 1 else verb


def _word_mute(job: WatchedJob) -> str:
    return "; how busy the GPU is, the driver does not tell" if measure_gpu(job) is None else ""


def _word_network(job: WatchedJob) -> str:
    if job.received_bytes_per_s < _READS:
        return ""
    return f"; {format_bytes(job.received_bytes_per_s)}/s come over the network"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
