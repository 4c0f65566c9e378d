# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every cause the doctor knows, with what proves it, what it costs and what cures it.

A finding's share is the part of the run's time that would be saved if its cause were gone, by the cost model. Some causes
explain others (decoding is slow because all workers sit on one core): then the one that explains comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from feedrate.doctor.measured import Measured
from feedrate.doctor.remedies import other_s, repeated_share, without_cost, write_s
from feedrate.doctor.sample import Cost
from feedrate.results.doctor import Finding, Remedy
from feedrate.units import format_bytes, format_seconds

WORTH_TELLING = 0.05  # of the time; less is noise
WORTH_A_VERDICT = 0.10  # less than this, and the run is healthy
STARVED_GAIN = 1.15  # more workers must give this much to be the cause


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a test of the catalogue found; the entry adds the words that are always the same."""

    share: float
    lines: tuple[str, ...]
    numbers: Mapping[str, float | int | str | None]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One cause of the catalogue.

    Attributes:
        title: the verdict's sentence.
        cause: why it happens, in one or two sentences.
        cures: names of remedies, the best ones first; only those that this run allows are shown.
        explains: codes that this one is the reason of, when it holds.
    """

    code: str
    title: str
    cause: str
    find: Callable[[Measured], Evidence | None]
    cures: tuple[str, ...]
    explains: tuple[str, ...] = ()


def find_causes(m: Measured, remedies: Mapping[str, Remedy]) -> tuple[Finding, ...]:
    """Return the findings of a run, ordered by what they cost; the first one is the verdict."""
    found = {entry.code: (entry, evidence) for entry in CATALOGUE if (evidence := entry.find(m)) is not None}
    shares = {code: evidence.share for code, (_, evidence) in found.items()}
    for entry, _ in found.values():
        explained = [shares[code] for code in entry.explains if code in shares]
        if explained and shares[entry.code] > 0:
            # As much as the largest that it explains, and a trace more, so that the order says it.
            shares[entry.code] = min(max(shares[entry.code], max(explained) * 1.001 + 1e-4), 0.999)
    if any(share >= WORTH_A_VERDICT for code, share in shares.items() if code != "device-bound"):
        # A device at work is the good case: it never hides a cause that can be cured.
        rest = max(1.0 - max(share for code, share in shares.items() if code != "device-bound"), 0.0)
        if "device-bound" in shares:
            shares["device-bound"] = min(
                rest, min(s for c, s in shares.items() if s >= WORTH_A_VERDICT and c != "device-bound") * 0.99
            )
    findings = [_make(entry, evidence, shares[code], remedies) for code, (entry, evidence) in found.items()]
    return tuple(sorted(findings, key=lambda finding: -finding.share))


def _make(entry: Entry, evidence: Evidence, share: float, remedies: Mapping[str, Remedy]) -> Finding:
    cures = [remedies[name] for name in entry.cures if name in remedies]
    return Finding(
        code=entry.code,
        share=round(share, 4),
        title=entry.title,
        cause=evidence.cause or entry.cause,
        evidence=evidence.lines,
        numbers=evidence.numbers,
        remedies=tuple(sorted(cures, key=lambda remedy: -remedy.predicted_speedup)),
    )


def _saved(speedup: float) -> float:
    return max(1.0 - 1.0 / speedup, 0.0) if speedup > 0 else 0.0


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _waits(m: Measured) -> bool:
    """Whether the loader holds up the training at all."""
    return m.exposed_s / m.step_s >= WORTH_TELLING


def _capped(m: Measured, share: float) -> float:
    """No cause inside the loader can cost more than the waiting for the loader."""
    return min(share, m.exposed_s / m.step_s)


# --- inside the loader ---


def _workers_starved(m: Measured) -> Evidence | None:
    if not _waits(m) or m.workers >= m.around.cores * 2:
        return None
    tried = {n: m.step_s / (t.seconds + m.between_s) for n, t in m.trials.items() if n > m.workers}
    best = max(tried, key=lambda n: tried[n], default=None)
    if best is not None:
        gain, number, how = tried[best], best, "tried in this run"
    else:
        now = m.pipeline
        times = {n: now.with_(workers=n).step_s for n in range(m.workers + 1, int(m.around.cores) + 1)}
        if not times:
            return None
        number = min(times, key=lambda n: times[n])
        gain, how = now.step_s / times[number], "by the cost model"
    if gain < STARVED_GAIN:
        return None
    sample = m.sample
    lines = [
        f"{m.workers or 'no'} worker{'s' if m.workers != 1 else ''}, {m.around.cores:.0f} usable cores",
        f"waiting for data: {_percent(m.exposed_s / m.step_s)} of the time, {format_seconds(m.exposed_s)} a step",
        f"{number} workers give {gain:.2f}x ({how})",
    ]
    if sample is not None:
        lines.append(f"a sample takes {format_seconds(sample.total.wall_s)} to make")
    return Evidence(
        _capped(m, _saved(gain)),
        tuple(lines),
        {"workers": m.workers, "better_workers": number, "gain": round(gain, 3)},
    )


def _part_of_loader(m: Measured, cost: Cost) -> float:
    return _capped(m, _saved(without_cost(m, cost).speedup))


def _decode_bound(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not _waits(m):
        return None
    decode = sample.kind("decode")
    share = _part_of_loader(m, Cost(decode.cpu_s, decode.queue_s, 0.0))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"decoding ({sample.largest('decode')}) takes {format_seconds(decode.cpu_s)} of CPU of the "
        f"{format_seconds(sample.total.wall_s)} that a sample takes ({_percent(decode.wall_s / sample.total.wall_s)})",
        f"waiting for data: {_percent(m.exposed_s / m.step_s)} of the time",
    ]
    if m.kernel is not None and m.kernel.taken:
        lines.append(f"feedrate's decoder takes {format_seconds(m.kernel.cpu_s_per_image)} on the same files")
    return Evidence(share, tuple(lines), {"decode_cpu_s": decode.cpu_s, "sample_s": sample.total.wall_s})


def _transform_bound(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not _waits(m):
        return None
    own = sample.kind("transform").plus(sample.kind("rest"))
    share = _part_of_loader(m, Cost(own.cpu_s, own.queue_s, 0.0))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"transforms and other code of the dataset take {format_seconds(own.cpu_s)} of CPU a sample ({_percent(own.wall_s / sample.total.wall_s)} of it)"
    ]
    lines += [
        f"{p.function} ({p.place}): {_percent(p.share)} of the looks{', interpreted Python' if p.is_python else ''}: {p.source}"
        for p in m.looks_fetch.places[:2]
        if p.share > 0.1
    ]
    largest = sample.largest("transform")
    if largest:
        lines.append(f"largest named transform: {largest}")
    return Evidence(share, tuple(lines), {"transform_cpu_s": own.cpu_s, "sample_s": sample.total.wall_s})


def _storage_blocked(m: Measured) -> Cost:
    sample = m.sample
    assert sample is not None
    named = sample.kind("read").plus(sample.kind("decode"))
    rest = sample.kind("rest").plus(sample.kind("transform"))
    return Cost(0.0, 0.0, named.blocked_s + (rest.blocked_s if sample.read_bytes > 0 else 0.0))


def _storage_words(m: Measured) -> str:
    data = m.around.data
    if data is None:
        return "the files' place is unknown"
    if data.is_network:
        where = f"a network mount ({data.kind}, {data.source})"
    elif data.is_fuse:
        where = f"a FUSE file system ({data.kind})"
    elif data.is_rotational:
        where = f"a spinning disk ({data.kind})"
    else:
        where = f"a local disk ({data.kind})"
    return f"{data.files_seen:,}+ files of {format_bytes(data.mean_bytes)} in {data.folder}, on {where}"


def _storage_bound(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not _waits(m):
        return None
    blocked = _storage_blocked(m)
    share = _part_of_loader(m, blocked)
    if share < WORTH_TELLING:
        return None
    data = m.around.data
    lines = [
        f"a sample waits {format_seconds(blocked.blocked_s)} for storage, {_percent(blocked.blocked_s / sample.total.wall_s)} of its time",
        _storage_words(m),
        f"{format_bytes(sample.read_bytes)} read a sample: {format_bytes(sample.read_bytes / max(blocked.blocked_s, 1e-9))}/s while waiting",
    ]
    small = data is not None and data.mean_bytes < 1e6 and data.files_seen > 50
    cause = "Reading is slow: " + (
        "many small files, each of which costs round trips." if small else "the storage gives no more."
    )
    return Evidence(
        share,
        tuple(lines),
        {
            "blocked_s": blocked.blocked_s,
            "read_bytes": sample.read_bytes,
            "kind": data.kind if data else None,
        },
        cause,
    )


def _cold_cache(m: Measured) -> Evidence | None:
    """Local files that are simply not in memory yet."""
    sample, again, data = m.sample, m.sample_again, m.around.data
    if sample is None or again is None or data is None or data.is_network or data.is_fuse or not _waits(m):
        return None
    blocked = _storage_blocked(m)
    drained = m.sample_drained or sample
    cold = max(blocked.blocked_s, drained.total.blocked_s)
    if again.total.blocked_s > 0.5 * cold or sample.device_bytes < 0.3 * sample.read_bytes:
        return None
    limit = m.around.memory_limit_bytes
    if limit and data.dataset_bytes and data.dataset_bytes > 0.8 * limit:
        return None
    share = _part_of_loader(m, blocked)
    if share < WORTH_TELLING:
        return None
    lines = (
        f"a sample waits {format_seconds(cold)} for the disk the first time, {format_seconds(again.total.blocked_s)} when it is read again",
        f"{_percent(sample.device_bytes / max(sample.read_bytes, 1))} of the bytes came from the disk, not from memory",
        _storage_words(m),
    )
    return Evidence(share, lines, {"cold_blocked_s": cold, "warm_blocked_s": again.total.blocked_s})


def _handover_bound(m: Measured) -> Evidence | None:
    sample = m.sample
    if sample is None or not _waits(m):
        return None
    n = m.samples_per_step
    collate = sample.kind("collate")
    worker_s = collate.wall_s * n + m.feeder_cpu_s
    now = m.pipeline
    changed = now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - collate.cpu_s * n - m.feeder_cpu_s, 0.0),
        fetch_blocked_s=max(now.fetch_blocked_s - collate.blocked_s * n, 0.0),
        handover_s=0.0,
    )
    share = _capped(m, _saved(now.step_s / changed.step_s))
    # What drained batches cost beyond making them: nobody's work but the hand-over's.
    if m.drain is not None and m.workers > 0:
        unexplained = m.drain.seconds - max(now.fetch_s / m.workers, now.fetch_cpu_s / now.cores)
        share = max(
            share, _capped(m, unexplained / m.step_s if unexplained > 0.25 * m.drain.seconds else 0.0)
        )
    if share < WORTH_TELLING:
        return None
    size = sum(int(t.get("bytes") or 0) for t in m.batch.get("tensors", ()))
    lines = (
        f"collating takes {format_seconds(collate.wall_s * n)} a batch, pickling {format_seconds(m.feeder_cpu_s)}, receiving {format_seconds(m.receive_cpu_s)}",
        f"a batch is {format_bytes(size)} of tensors"
        if size
        else "a batch holds no tensors: Python objects are pickled",
        f"making the samples themselves takes {format_seconds((sample.total.wall_s - collate.wall_s) * n)} a batch",
    )
    return Evidence(share, lines, {"worker_s": worker_s, "receive_s": m.receive_cpu_s, "batch_bytes": size})


def _oversubscribed(m: Measured) -> Evidence | None:
    if m.sample is None or m.workers <= m.around.cores:
        return None
    fewer = {n: m.step_s / (t.seconds + m.between_s) for n, t in m.trials.items() if n < m.workers}
    best = max(fewer, key=lambda n: fewer[n], default=None)
    if best is None or fewer[best] < 1.08:
        return None
    queue = m.sample.total.queue_s / max(m.sample.total.wall_s, 1e-9)
    lines = (
        f"{m.workers} workers on {m.around.cores:.0f} usable cores; {best} give {fewer[best]:.2f}x (tried in this run)",
        f"a sample spends {_percent(queue)} of its time waiting for a core",
    )
    return Evidence(
        _saved(fewer[best]),
        lines,
        {"workers": m.workers, "better_workers": best, "queue_share": round(queue, 3)},
    )


def _workers_pinned(m: Measured) -> Evidence | None:
    sets = [set(fact["affinity"]) for fact in m.worker_facts if fact.get("affinity")]
    if sample_is_missing(m) or not sets or m.workers < 1:
        return None
    allowed = set().union(*sets)
    useful = min(m.workers, int(m.around.cores))
    if len(allowed) >= useful or not _waits(m):
        return None
    assert m.sample is not None
    queue = m.sample.total.queue_s / max(m.sample.total.wall_s, 1e-9)
    share = _capped(m, max(_saved(useful / len(allowed)) * (m.exposed_s / m.step_s), queue * 0.5))
    if queue < 0.1 and m.workers > 1:
        return None
    cores = ", ".join(str(core) for core in sorted(allowed))
    lines = (
        f"{m.workers} workers may run on core {cores} only, of {m.around.cores:.0f} usable ones",
        f"a sample spends {_percent(queue)} of its time waiting for a core",
    )
    return Evidence(
        share, lines, {"cores": len(allowed), "usable_cores": m.around.cores, "queue_share": round(queue, 3)}
    )


def sample_is_missing(m: Measured) -> bool:
    return m.sample is None


def _repeated_work(m: Measured) -> Evidence | None:
    """Heavy preprocessing in compiled code that is the same every epoch; decoding alone is not meant."""
    sample = m.sample
    if sample is None or not _waits(m):
        return None
    share_of_work = repeated_share(m)
    own = sample.kind("transform").plus(sample.kind("rest"))
    if share_of_work is None or share_of_work < 0.5:
        return None
    interpreted = sum(p.share for p in m.looks_fetch.places if p.is_python)
    repeated = own.cpu_s * min(share_of_work, 1.0)
    if interpreted > 0.4 or repeated < 0.4 * sample.total.cpu_s:
        return None
    share = _part_of_loader(m, Cost(repeated, 0.0, 0.0))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"{_percent(share_of_work)} of a sample's work is the same in every epoch: {format_seconds(repeated)} of CPU besides reading and decoding",
        "the same samples gave the same batch twice"
        if m.is_repeatable
        else "it happens before the sample's first random number",
    ]
    lines += [
        f"{p.function} ({p.place}): {_percent(p.share)} of the looks: {p.source}"
        for p in m.looks_fetch.places[:1]
    ]
    return Evidence(share, tuple(lines), {"repeated_cpu_s": repeated, "sample_s": sample.total.wall_s})


# --- the machine ---


def _contended(m: Measured) -> Evidence | None:
    others = m.around.cores_others + m.around.steal_cores
    if others < 0.25 * m.around.cores:
        return None
    ours = m.around.cores_ours or 0.0
    if ours + others < 0.8 * m.around.cores:
        return None  # there was room for all
    share = min(others / m.around.cores, 0.9)
    lines = [
        f"other processes use {others:.1f} of {m.around.cores:.0f} cores"
        + (f": {m.around.biggest_other}" if m.around.biggest_other else "")
    ]
    if m.sample is not None:
        lines.append(
            f"a sample waits for a core {_percent(m.sample.total.queue_s / max(m.sample.total.wall_s, 1e-9))} of its time"
        )
    if m.around.gpu_others:
        lines.append(f"on the GPU, too: {m.around.gpu_others}")
    return Evidence(share, tuple(lines), {"cores_others": round(others, 2), "cores": m.around.cores})


def _memory_pressure(m: Measured) -> Evidence | None:
    around = m.around
    limit, used = around.memory_limit_bytes, around.memory_used_bytes
    full = bool(limit and used and used > 0.9 * limit)
    soon = around.steps_to_limit is not None and around.steps_to_limit < 20000
    swapping = around.swap_bytes_per_s > 1e6 or (full and around.major_faults_per_s > 100)
    stalled = (around.memory_stall_share or 0.0) > 0.05
    if not (swapping or stalled or soon):
        return None
    lines = []
    if limit and used:
        lines.append(f"{format_bytes(used)} of the {format_bytes(limit)} that this job may use are taken")
    if swapping:
        lines.append(
            f"{around.major_faults_per_s:,.0f} page faults a second had to wait for a disk; swapping {format_bytes(around.swap_bytes_per_s)}/s"
        )
    if stalled:
        lines.append(f"stalled on memory {_percent(around.memory_stall_share or 0.0)} of the time")
    if soon and around.steps_to_limit is not None:
        lines.append(
            f"memory grows by {format_bytes(around.growth_bytes_per_step)} a step in {around.growing_process}: the limit is reached in {around.steps_to_limit:,.0f} steps"
        )
    faults = (
        m.sample.total.blocked_s / m.sample.total.wall_s
        if m.sample is not None and m.sample.major_faults > 1
        else 0.0
    )
    share = max(
        around.memory_stall_share or 0.0,
        _capped(m, faults) if swapping else 0.0,
        WORTH_TELLING if soon else 0.0,
    )
    return Evidence(
        max(share, WORTH_A_VERDICT if swapping or stalled else WORTH_TELLING),
        tuple(lines),
        {"used_bytes": used, "limit_bytes": limit, "major_faults_per_s": around.major_faults_per_s},
    )


def _shm_too_small(m: Measured) -> Evidence | None:
    error = str(m.end.get("error") or "")
    died = any(text in error for text in ("Bus error", "shared memory", "No space left on device", "shm"))
    size = m.around.shm_size_bytes
    batch = sum(int(t.get("bytes") or 0) for t in m.batch.get("tensors", ()))
    needed = batch * max(m.workers, 0) * int(m.loader.get("prefetch_factor") or 2)
    if not died and not (size is not None and m.workers > 0 and needed > 0.8 * size):
        return None
    lines = [
        f"{m.workers} workers keep up to {format_bytes(needed)} of batches in shared memory; /dev/shm holds {format_bytes(size or 0)}"
    ]
    if died:
        lines.append(f"the run ended with: {error[:120]}")
    return Evidence(0.9 if died else WORTH_TELLING, tuple(lines), {"needed_bytes": needed, "shm_bytes": size})


def _gpu_unused(m: Measured) -> Evidence | None:
    if m.around.gpus == 0 or m.is_on_gpu:
        return None
    lines = [f"{m.around.gpus} GPU{'s' if m.around.gpus > 1 else ''} here ({m.around.gpu_name})"]
    if not m.torch.get("cuda"):
        built = "was built for CUDA but sees none" if m.torch.get("cuda_built") else "is a build without CUDA"
        lines.append(f"torch {m.torch.get('version', '')} {built}")
        if m.torch.get("visible_devices") == "":
            lines.append("CUDA_VISIBLE_DEVICES is empty")
    else:
        lines.append(f"the model ({m.module.get('class', 'unknown')}) is on the CPU")
    compute = max(m.own_s - m.exposed_s, 0.0) / m.step_s
    return Evidence(
        max(compute, 0.5), tuple(lines), {"gpus": m.around.gpus, "torch_cuda": str(m.torch.get("cuda"))}
    )


# --- the training process ---


def _part_share(m: Measured, part: str) -> float:
    return m.loop.per_step(part) / m.step_s


def _place(m: Measured, part: str) -> str:
    places = m.loop.places.get(part, {})
    return max(places, key=lambda place: places[place]) if places else ""


def _validation_bound(m: Measured) -> Evidence | None:
    share = _part_share(m, "validation")
    if share < WORTH_TELLING:
        return None
    steps = len(m.loop.steps) / max(m.loop.validations, 1)
    lines = (f"validation takes {_percent(share)} of the time: {m.loop.validations} times in {len(m.loop.steps)} steps, every {steps:.0f} steps",
             f"one takes {format_seconds(m.loop.per_step('validation') * len(m.loop.steps) / max(m.loop.validations, 1))}, a training step {format_seconds(m.own_s)}")  # fmt: skip
    return Evidence(share, lines, {"validations": m.loop.validations, "steps": len(m.loop.steps)})


def _checkpoint_bound(m: Measured) -> Evidence | None:
    share = _part_share(m, "save")
    if share < WORTH_TELLING:
        return None
    each = m.loop.per_step("save") * len(m.loop.steps) / max(m.loop.saves, 1)
    lines = (
        f"saving takes {_percent(share)} of the time: {m.loop.saves} times in {len(m.loop.steps)} steps, {format_seconds(each)} each",
        f"{_place(m, 'save')}",
    )
    return Evidence(share, lines, {"saves": m.loop.saves, "seconds_each": each})


def _epoch_start(m: Measured) -> Evidence | None:
    share = _part_share(m, "epoch-start")
    if share < WORTH_TELLING:
        return None
    each = m.loop.per_step("epoch-start") * len(m.loop.steps) / max(m.loop.epochs, 1)
    context = m.loader.get("context") or "fork"
    lines = (
        f"{format_seconds(each)} pass between epochs before the first batch: {m.loop.epochs} times in {len(m.loop.steps)} steps, {_percent(share)} of the time",
        f"{m.workers} workers are started anew ({context}); persistent_workers is {bool(m.loader.get('persistent_workers'))}",
    )
    return Evidence(share, lines, {"epochs": m.loop.epochs, "pause_s": each})


def _write_bound(m: Measured) -> Evidence | None:
    seconds = write_s(m)
    share = seconds / m.step_s
    if share < WORTH_TELLING:
        return None
    lines = [
        f"the training process writes files for {format_seconds(seconds)} a step, {_percent(share)} of the time"
    ]
    if _place(m, "write"):
        lines.append(_place(m, "write"))
    lines += [f"{p.place}: {p.source}" for p in m.looks_main.places[:1]]
    return Evidence(share, tuple(lines), {"write_s": seconds})


def _sync_bound(m: Measured) -> Evidence | None:
    share = _part_share(m, "sync")
    idle = None if m.around.gpu_utilisation is None else 1 - m.around.gpu_utilisation
    if not m.is_on_gpu or share < WORTH_TELLING or idle is None:
        return None
    cost = min(idle - m.exposed_s / m.step_s, share)
    if cost < WORTH_TELLING:
        return None
    lines = (
        f"waiting for the device in {_place(m, 'sync')}: {_percent(share)} of the time",
        f"the GPU then has nothing queued: it idles {_percent(idle)} of the time",
    )
    return Evidence(cost, lines, {"sync_share": round(share, 3), "gpu_idle": round(idle, 3)})


def _copy_bound(m: Measured) -> Evidence | None:
    copied, rate = m.around.copied_bytes, m.copy_rates.get("pageable_bytes_per_s")
    if not m.is_on_gpu or not copied:
        return None
    pinned = bool(m.loader.get("pin_memory"))
    seconds = (
        copied / (m.copy_rates.get("pinned_bytes_per_s") if pinned else rate)
        if rate
        else m.loop.per_step("copy")
    )
    share = seconds / m.step_s
    if share < WORTH_TELLING:
        return None
    lines = (
        f"{format_bytes(copied)} a step to the device, {'pinned' if pinned else 'not pinned'}, {m.around.copied_element_bytes} bytes a number: {format_seconds(seconds)}",
        _place(m, "copy"),
    )
    return Evidence(share, lines, {"copied_bytes": copied, "pinned": str(pinned)})


def _readback_bound(m: Measured) -> Evidence | None:
    share = _part_share(m, "readback")
    if share < WORTH_TELLING:
        return None
    return Evidence(
        share,
        (f"outputs are brought back to the CPU in {_place(m, 'readback')}: {_percent(share)} of the time",),
        {"readback_share": share},
    )


def _main_thread_bound(m: Measured) -> Evidence | None:
    share = max(other_s(m) - (write_s(m) - m.loop.per_step("write")), 0.0) / m.step_s
    hot = [p for p in m.looks_main.places if p.share > 0.1]
    if share < WORTH_A_VERDICT or not m.loop.per_step("forward"):
        return None
    lines = [
        f"the training loop's own code takes {format_seconds(share * m.step_s)} a step besides forward, backward and optimizer: {_percent(share)} of the time"
    ]
    lines += [f"{p.function} ({p.place}): {_percent(p.share)} of the looks: {p.source}" for p in hot[:2]]
    return Evidence(share, tuple(lines), {"other_s": share * m.step_s})


def _slow_rank(m: Measured) -> Evidence | None:
    if len(m.loops) < 2:
        return None
    waits = {rank: loop.per_step("wait") for rank, loop in m.loops.items()}
    slow = max(waits, key=lambda rank: waits[rank])
    others = median([seconds for rank, seconds in waits.items() if rank != slow])
    share = (waits[slow] - others) / m.step_s
    if share < WORTH_TELLING:
        return None
    lines = (
        f"rank {slow} waits {format_seconds(waits[slow])} a step for its data, the others {format_seconds(others)}: all wait for it in the backward pass",
        f"that is {_percent(share)} of every rank's time",
    )
    return Evidence(share, lines, {"rank": slow, "wait_s": waits[slow], "others_wait_s": others})


def _device_bound(m: Measured) -> Evidence | None:
    share = max(m.own_s - m.exposed_s, 0.0) / m.step_s
    if share < 0.5:
        return None
    where = m.around.gpu_name if m.is_on_gpu else "the CPU, which computes the model here"
    lines = [
        f"{where or 'the device'} is at work {_percent(share)} of the time; waiting for data: {_percent(m.exposed_s / m.step_s)}"
    ]
    if m.around.gpu_utilisation is not None and m.is_on_gpu:
        lines.append(f"GPU utilisation {_percent(m.around.gpu_utilisation)}")
    if m.drain is not None:
        lines.append(
            f"the loader could give {m.samples_per_step / m.drain.seconds:,.0f} samples/s, the device takes {m.samples_per_step / m.device_s:,.0f}"
        )
    return Evidence(share, tuple(lines), {"device_s": m.device_s, "step_s": m.step_s})


_LOADER = ("decode-bound", "transform-bound", "storage-bound", "handover-bound")

CATALOGUE: tuple[Entry, ...] = (
    Entry("storage-bound", "Training waits for storage", "The files come slower than they are used.", _storage_bound,
          ("stage", "pack", "cache-in-memory", "warm-page-cache", "more-workers")),
    Entry("decode-bound", "Training waits for image decoding", "The CPU decodes whole images, most of whose pixels the crop throws away.", _decode_bound,
          ("faster-decode", "cache-in-memory", "more-workers", "preprocess-once", "pack")),
    Entry("transform-bound", "Training waits for the dataset's own transforms", "The code between reading a sample and handing it over is slow.", _transform_bound,
          ("vectorise-transform", "preprocess-once", "more-workers", "pack")),
    Entry("workers-starved", "Too few workers", "Cores stand idle while the training waits for its batches.", _workers_starved,
          ("more-workers", "faster-decode", "pack"), _LOADER + ("repeated-work", "cold-cache")),
    Entry("workers-oversubscribed", "More workers than cores", "The workers take the cores from each other and from the training.", _oversubscribed,
          ("fewer-workers", "faster-decode"), _LOADER + ("epoch-start-pause",)),
    Entry("workers-pinned", "The workers share too few cores", "Their affinity keeps them on few cores while others idle.", _workers_pinned,
          ("unpin-workers", "faster-decode"), _LOADER + ("workers-starved", "workers-oversubscribed", "repeated-work")),
    Entry("handover-bound", "Handing batches over takes longer than making them", "Collating, pickling and shared memory cost more than the samples.", _handover_bound,
          ("lighter-handover", "fewer-workers", "more-workers")),
    Entry("copy-bound", "Copies to the GPU hold up the training", "Batches are copied from pageable memory or as 4-byte floats.", _copy_bound,
          ("pinned-memory", "uint8-transfer")),
    Entry("sync-bound", "The training waits for the GPU at every step", "A value is read back in the loop, so the GPU runs dry before the next step is queued.", _sync_bound,
          ("remove-sync",)),
    Entry("device-bound", "The device is the limit: this is the good case", "Data arrives in time; the model's own computing takes the time.", _device_bound,
          ("half-precision", "larger-batch", "faster-decode", "more-workers", "pack")),
    Entry("main-thread-bound", "The training loop's own Python holds it up", "Code in the loop runs while the device has nothing to do.", _main_thread_bound,
          ("speed-up-loop",)),
    Entry("memory-pressure", "Memory is short", "Pages are thrown out and read again, or the job comes near its limit.", _memory_pressure,
          ("fewer-workers", "cache-in-memory"), ("storage-bound", "cold-cache", "transform-bound", "decode-bound", "handover-bound")),
    Entry("cold-cache", "The files are not in memory yet", "This epoch reads from the disk what the next ones find in memory.", _cold_cache,
          ("warm-page-cache", "stage", "pack"), ("storage-bound",)),
    Entry("epoch-start-pause", "Every epoch begins with a pause", "Workers are started again and fill their queue before the first batch.", _epoch_start,
          ("persistent-workers", "fewer-workers")),
    Entry("validation-bound", "Validation takes much of the time", "It runs often, or its loader is slow.", _validation_bound, ("fewer-evaluations",)),
    Entry("checkpoint-bound", "Saving takes much of the time", "The training stands still while a checkpoint is written.", _checkpoint_bound, ("fewer-checkpoints",)),
    Entry("slow-rank", "One rank holds up the others", "Its data comes later than that of the other ranks, and every step waits for it.", _slow_rank, ("more-workers", "faster-decode"),
          _LOADER + ("workers-starved",)),
    Entry("shm-too-small", "/dev/shm is too small for the workers' batches", "Workers pass batches through shared memory; when it is full they die.", _shm_too_small,
          ("fewer-workers",), _LOADER + ("device-bound",)),
    Entry("gpu-unused", "A GPU is here, and the training does not use it", "The model computes on the CPU.", _gpu_unused, ("use-gpu",),
          _LOADER + ("device-bound", "main-thread-bound", "workers-starved", "contended")),
    Entry("write-bound", "Writing files holds up the training loop", "The loop waits while files are written.", _write_bound, ("write-less",), ("main-thread-bound",)),
    Entry("readback-bound", "Outputs are brought back to the CPU", "Copies from the device wait for all queued work.", _readback_bound, ("keep-on-device",)),
    Entry("contended", "Other processes take the machine", "Cores (or the GPU) are shared with work that is not this run's.", _contended, ("faster-decode", "fewer-workers"),
          _LOADER + ("workers-oversubscribed", "workers-starved", "main-thread-bound", "repeated-work", "device-bound")),
    Entry("repeated-work", "The same preprocessing is done in every epoch", "Nothing random happens before it, so its result could be kept.", _repeated_work,
          ("preprocess-once", "cache-in-memory", "more-workers"), ("transform-bound", "decode-bound")),
)  # fmt: skip
