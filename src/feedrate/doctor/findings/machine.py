# SPDX-License-Identifier: Apache-2.0
"""Causes and remedies outside of the script: others, short memory, a small /dev/shm, an unused GPU."""

from __future__ import annotations

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings.evidence import (
    WORTH_A_VERDICT,
    WORTH_TELLING,
    Evidence,
    make_remedy,
    predict_times,
)
from feedrate.doctor.results import Remedy
from feedrate.model import limits
from feedrate.model.pipeline import around, without
from feedrate.units import format_bytes, format_count, format_seconds


def on_gpu_of_others(m: Measured) -> float:
    """Return the share of the time in which the GPU worked for others while this run had work for it."""
    others = m.machine.gpu_others
    if not m.training.is_on_gpu or not m.machine.gpu_others_share:
        return 0.0
    # Processes take turns: who has work gets its turn, however much the others could use.
    theirs = min(m.machine.gpu_others_share, others / (others + 1))
    return theirs * max(m.loop.own_s - m.loop.exposed_s, 0.0) / m.loop.step_s


def waiting_for_cores(m: Measured) -> float:
    """Return the share of the time in which whoever makes the step long had no core because of others."""
    others, ours = m.machine.cores_others + m.machine.steal_cores, m.machine.cores_ours or 0.0
    waits = (
        m.loop.exposed_s * m.samples.queue_share + (m.loop.own_s - m.loop.exposed_s) * m.training.queue_share
    )
    # Of more workers than cores, some wait for each other, whoever else is there.
    theirs = 1.0 if m.loader.workers <= m.machine.cores else others / max(others + ours, 1e-9)
    return min(waits * theirs / m.loop.step_s, 0.95)


_HORIZON_S = 86_400.0  # a limit that a day of training does not reach is no worry now
_NEAR_STEPS = 1000
_GROWING = "It costs no time yet; when the limit is reached, the run is ended, or swaps."
_LEAST_STOLEN = 0.05  # cores: less is no word
_SHM_ERRORS = ("Bus error", "shared memory", "/dev/shm", "(shm)")


def find_contention(m: Measured) -> Evidence | None:
    on_gpu, on_cores = _find_company_on_gpu(m), _find_company_on_cores(m)
    if on_gpu is None or on_cores is None:
        return on_gpu or on_cores
    more, less = sorted((on_gpu, on_cores), key=lambda evidence: -evidence.share)
    weights = [one.rank_by for one in (more, less)]
    return Evidence(
        more.share, (*more.lines, *less.lines), {**less.numbers, **more.numbers}, weight=max(weights)
    )


def _find_company_on_gpu(m: Measured) -> Evidence | None:
    share = on_gpu_of_others(m)
    if share < WORTH_TELLING:
        return None
    who = format_count(m.machine.gpu_others, "other process", "other processes")
    have = "has" if m.machine.gpu_others == 1 else "have"
    line = f"{who} {have} {m.machine.gpu_others_share or 0.0:.0%} of the GPU's time"
    numbers = {"gpu_others_share": m.machine.gpu_others_share}
    return Evidence(share, (line,), numbers, weight=_weigh(share, m.loop.exposed_share + share))


def _find_company_on_cores(m: Measured) -> Evidence | None:
    if not m.machine.is_busy:
        return None
    # What counts is the waiting for a core, by whoever makes the step long: others of low priority take
    # cores that nobody wants.
    share = waiting_for_cores(m)
    if share < WORTH_TELLING:
        return None
    who = f", {m.machine.biggest_other}" if m.machine.biggest_other else ""
    stolen = m.machine.steal_cores
    machines = f", other virtual machines {stolen:.1f}" if stolen >= _LEAST_STOLEN else ""
    lines = [
        f"other processes use {m.machine.cores_others:.1f} of {m.machine.cores:.0f} cores{who}{machines}"
    ]
    if m.samples.cost.samples:
        lines.append(f"a sample spends {m.samples.queue_share:.0%} of its time waiting for a core")
    if m.training.queue_share >= WORTH_TELLING:
        queued = f"{m.training.queue_share:.0%} of their time"
        lines.append(f"forward and backward spend {queued} waiting for a core")
    computing_waits = (m.loop.own_s - m.loop.exposed_s) * m.training.queue_share / m.loop.step_s
    weight = _weigh(share, m.loop.exposed_share + computing_waits)
    numbers = {"cores_others": round(m.machine.cores_others, 2), "cores": m.machine.cores}
    if machines:
        numbers["steal_cores"] = round(stolen, 2)
    return Evidence(share, lines, numbers, weight=weight)


def _weigh(share: float, lost: float) -> float:
    """Return what company counts for in the order of findings, where so much of the time is lost in all.

    The user can do something about the rest: as long as that is the larger part, it comes first.
    """
    return share if share > 0.5 * lost else min(share, 0.9 * WORTH_A_VERDICT)


def find_short_memory(m: Measured) -> Evidence | None:
    around, growth = m.machine, m.machine.growth
    limit, used = around.memory_limit_bytes, around.memory_used_bytes
    is_full = bool(limit and used and limits.is_memory_full(used, limit))
    is_growing = growth is not None and growth.steps_to_limit * m.loop.step_s < _HORIZON_S
    # A feedrate.Cache fills memory in the first epoch, and leaves a margin.
    is_growing = is_growing and not m.loader.get("cache")
    is_swapping = limits.is_memory_short(around.swap_bytes_per_s, around.major_faults_per_s, is_full=is_full)
    stalled = around.memory_stall_share or 0.0
    is_short = is_swapping or stalled > WORTH_TELLING
    if not (is_short or is_growing):
        return None
    lines = []
    if limit and used:
        lines.append(f"{format_bytes(used)} of the {format_bytes(limit)} that this job may use are taken")
    if is_swapping:
        swapped = format_bytes(around.swap_bytes_per_s)
        lines.append(
            f"{around.major_faults_per_s:,.0f} page faults a second wait for a disk; {swapped}/s are swapped"
        )
    if stalled > WORTH_TELLING:
        lines.append(f"stalled on memory {stalled:.0%} of the time")
    share, weight = stalled if is_short else 0.0, WORTH_A_VERDICT if is_short else WORTH_TELLING
    if is_growing and growth is not None:
        grown = f"memory grows by {format_bytes(growth.bytes_per_step)} a step in {growth.where}"
        in_time = format_seconds(growth.steps_to_limit * m.loop.step_s)
        lines.append(f"{grown}: the limit is {growth.steps_to_limit:,.0f} steps away ({in_time})")
        if limit and used and used > 0.5 * limit and growth.steps_to_limit < _NEAR_STEPS:
            weight = WORTH_A_VERDICT
    cost = m.samples.cost
    if is_short and cost.major_faults > 0.5:
        faulting = cost.total.blocked_s / max(cost.total.wall_s, 1e-9)
        share = max(share, min(faulting, m.loop.exposed_share + m.slowed_share))
    numbers = {"used_bytes": used, "limit_bytes": limit, "major_faults_per_s": around.major_faults_per_s}
    title, cause = ("", "") if is_short else ("Memory fills up step by step", _GROWING)
    return Evidence(share, lines, numbers, cause, max(share, weight), title)


def is_shm_error(error: str) -> bool:
    """Whether an exception's text says that shared memory was full; a worker's carries its own traceback."""
    return any(text in error for text in _SHM_ERRORS)


def find_small_shm(m: Measured) -> Evidence | None:
    error = str(m.training.end.get("error") or "")
    died = is_shm_error(error)
    size = m.machine.shm_size_bytes
    needed = m.loader.handed_bytes * m.loader.workers * int(m.loader.get("prefetch_factor") or 2)
    if not died and (size is None or m.loader.workers == 0 or needed < 0.8 * size):
        return None
    keep = f"{format_count(m.loader.workers, 'worker')} {'keeps' if m.loader.workers == 1 else 'keep'}"
    held = f"{keep} up to {format_bytes(needed)} of batches in shared memory"
    lines = [f"{held}; /dev/shm holds {format_bytes(size or 0)}"]
    if died:
        lines.append(f"the run ended with: {error[:120]}")
    # While it lives, the run loses no time to it.
    numbers = {"needed_bytes": needed, "shm_bytes": size}
    return Evidence(0.9 if died else 0.0, lines, numbers, weight=0.9 if died else WORTH_TELLING)


def find_unused_gpu(m: Measured) -> Evidence | None:
    if m.machine.gpus == 0 or m.training.is_on_gpu:
        return None
    lines = [f"{m.machine.gpus} GPU{'s' if m.machine.gpus > 1 else ''} here ({m.machine.gpu_name})"]
    if m.training.torch.get("cuda"):
        lines.append(f"the model ({m.training.module.get('class', 'unknown')}) is on the CPU")
    else:
        built = (
            "was built for CUDA, but sees no GPU"
            if m.training.torch.get("cuda_built")
            else "is a build without CUDA"
        )
        lines.append(f"torch {m.training.torch.get('version', '')} {built}")
    if m.training.torch.get("visible_devices") == "":
        lines.append("CUDA_VISIBLE_DEVICES is empty")
    computing = m.loop.computing_s / m.loop.step_s
    if computing < WORTH_TELLING:
        return None
    return Evidence(min(computing, 1.0), lines, {"gpus": m.machine.gpus})


_GPU_IN_CORES = 200.0  # some 10 TFLOP/s in training against 50 GFLOP/s of a core, both single precision


def stop_others(m: Measured) -> Remedy | None:
    others, on_gpu = m.machine.cores_others, on_gpu_of_others(m)
    if on_gpu > waiting_for_cores(m):
        return make_remedy(m, "stop-others", "have the GPU alone", (around(without(on_gpu)), None))
    if others < 0.1 * m.machine.cores:
        return None
    # What waited for a core no longer does; our own processes beyond the cores go on waiting for each other.
    alone = around(without(waiting_for_cores(m))), m.pipeline.with_(cores=m.machine.cores)
    title = f"have the machine alone: other processes use {others:.1f} of {m.machine.cores:.0f} cores"
    return make_remedy(m, "stop-others", title, alone)


def use_less_memory(m: Measured) -> Remedy | None:
    if not m.machine.memory_limit_bytes or m.samples.cost.major_faults < 0.5:
        return None
    title = "use less memory, or ask for more (--mem)"
    return make_remedy(m, "use-less-memory", title, predict_times(m, fetch_blocked_s=0.0))


def use_gpu(m: Measured) -> Remedy | None:
    """Assumes that a GPU computes as fast as 200 cores; the data then limits soon."""
    if m.machine.gpus == 0 or m.training.is_on_gpu:
        return None
    faster = min(max(_GPU_IN_CORES / m.machine.cores, 5.0), 50.0)
    return make_remedy(
        m, "use-gpu", "compute on the GPU",
        predict_times(m, device_s=m.device_s / faster, device_cpu_s=m.device_cpu_s / faster, drag=0.0),
        change="model.to('cuda'), batch.to('cuda')",
        note=f"assumes that the GPU computes this model {faster:.0f} times as fast as these cores",
    )  # fmt: skip
