# SPDX-License-Identifier: Apache-2.0
"""What each remedy would give: the measured run, changed in the cost model, or tried in the run itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from feedrate.doctor.measured import Measured, Timing
from feedrate.doctor.sample import Cost
from feedrate.model.pipeline import Pipeline, best_workers
from feedrate.model.predict import (
    COUNTED,
    MODELLED,
    TRIED,
    WIDEST,
    Prediction,
    around,
    predict_change,
    without,
)
from feedrate.results.doctor import Remedy
from feedrate.units import format_bytes

# What the kernel does by itself while it decodes; a pack's Loader needs none of these in Python.
_DONE_BY_LOADER = (
    "PIL.resize", "PIL.crop", "PIL.convert", "PIL.transpose", "PIL.thumbnail", "cv2.resize", "cv2.cvtColor", "cv2.flip",
    "RandomResizedCrop", "Resize", "CenterCrop", "RandomHorizontalFlip", "ToTensor", "PILToTensor", "Normalize", "ToImage", "ToDtype",
)  # fmt: skip
_VECTORISED = (
    0.05  # what stays of a Python loop over pixels or elements that was turned into array operations
)
_NOTHING = 1.03  # below: the remedy gives nothing


def next_bottleneck(m: Measured, then: Pipeline) -> str:
    """Return the finding that would come first in the changed pipeline."""
    slowest = then.slowest
    if slowest == "device":
        return "device-bound" if m.device_s > 0.5 * then.device_s else "main-thread-bound"
    if slowest == "between":
        parts = {code: m.loop.per_step(name) for name, code in _BETWEEN.items()}
        return max(parts, key=lambda code: parts[code])
    sample = m.sample
    if sample is None:
        return "workers-starved"
    costs = {
        "storage-bound": then.fetch_blocked_s,
        "decode-bound": sample.kind("decode").cpu_s * m.samples_per_step,
        "transform-bound": (sample.kind("transform").cpu_s + sample.kind("rest").cpu_s) * m.samples_per_step,
    }
    return max(costs, key=lambda code: min(costs[code], then.fetch_s))


_BETWEEN = {"validation": "validation-bound", "save": "checkpoint-bound", "epoch-start": "epoch-start-pause"}


def change(m: Measured, *, width: float = MODELLED, **changes: float) -> tuple[Prediction, Pipeline]:
    """Predict the run with some of its pipeline's times changed (never below zero)."""
    now = m.pipeline
    then = now.with_(**{name: max(value, 0.0) for name, value in changes.items()})
    return predict_change(now, then, m.step_s, width), then


def without_cost(m: Measured, cost: Cost) -> Prediction:
    """Predict the run if samples cost that much less."""
    now, n = m.pipeline, m.samples_per_step
    return change(
        m,
        fetch_cpu_s=now.fetch_cpu_s - cost.cpu_s * n,
        fetch_blocked_s=now.fetch_blocked_s - cost.blocked_s * n,
    )[0]


def _make(
    m: Measured,
    name: str,
    title: str,
    prediction: Prediction,
    then: Pipeline | None = None,
    **rest: str | None,
) -> Remedy:
    speedup = prediction.speedup
    return Remedy(
        name=name,
        title=title,
        predicted_speedup=round(speedup, 3),
        low=round(prediction.low, 3),
        high=round(prediction.high, 3),
        next_bottleneck=next_bottleneck(m, then) if then is not None else None,
        **rest,  # type: ignore[arg-type]
    )


def change_workers(m: Measured) -> Remedy | None:
    """More or fewer workers: the best that was tried in the loop itself, else by the model."""
    tried = {n: _from_trial(m, timing) for n, timing in m.trials.items() if n != m.workers}
    good = {n: p for n, p in tried.items() if p.speedup > _NOTHING}
    pinned = m.pipeline
    if good:
        n = max(good, key=lambda n: good[n].speedup)
        prediction, then, basis = good[n], pinned.with_(workers=n), "measured"
    else:
        n = best_workers(pinned, max(int(m.around.cores), 1))
        if m.workers == n:
            return None
        then = pinned.with_(workers=n)
        prediction, basis = predict_change(pinned, then, m.step_s), "predicted"
        if n in tried:
            # It was tried, and the trial is the better witness.
            prediction, basis = tried[n], "measured"
        elif tried and prediction.speedup > _NOTHING:
            return None
    word = "more-workers" if n > m.workers else "fewer-workers"
    note = ""
    if m.loader.get("iterable"):
        note = (
            "an IterableDataset must share its samples among workers itself, or each worker repeats them all"
        )
    return _make(
        m, word, f"use {n} workers instead of {m.workers}" if n != 1 else f"use 1 worker instead of {m.workers}",
        prediction, then, basis=basis, note=note,
        change=f"DataLoader(..., num_workers={n}, persistent_workers=True)",
    )  # fmt: skip


def _from_trial(m: Measured, timing: Timing) -> Prediction:
    # A trial holds no validation, no checkpoint and no start of an epoch; they stay as they are.
    return around(m.step_s / (timing.seconds + m.between_s), TRIED, "")


def decode_faster(m: Measured) -> Remedy | None:
    """Our kernel instead of the user's decoder, through a pack."""
    sample, data = m.sample, m.around.data
    if sample is None or data is None:
        return None
    decode = sample.kind("decode")
    if decode.cpu_s <= 0:
        return None
    if m.kernel is None or m.kernel.taken < m.kernel.tried / 2:
        return Remedy(
            "faster-decode", "decode with feedrate's kernel", 1.0, 1.0, 1.0,
            note="the kernel decodes baseline JPEG files; these are not, so it would hand them to Pillow",
        )  # fmt: skip
    saved = decode
    for (kind, name), cost in sample.parts.items():
        if kind == "transform" and name in _DONE_BY_LOADER:
            saved = saved.plus(cost)
    per_sample = saved.cpu_s - m.kernel.cpu_s_per_image
    now = m.pipeline
    prediction, then = change(m, fetch_cpu_s=now.fetch_cpu_s - per_sample * m.samples_per_step)
    source = shlex.quote(data.folder)
    return _make(
        m, "faster-decode", "pack the images and let feedrate decode only what the crop needs",
        prediction, then, command=f"feedrate pack {source} PACK",
        change="feedrate.Dataset('PACK', transform=...) in the DataLoader, or feedrate.Loader('PACK', ...) instead of it",
        note=f"on these files the kernel takes {m.kernel.cpu_s_per_image * 1e3:.2f} ms of CPU an image instead of {saved.cpu_s * 1e3:.2f} ms",
    )  # fmt: skip


def pack_files(m: Measured) -> Remedy | None:
    """Few big files instead of many small ones: saves what opening and seeking cost, not the decoding."""
    sample, data = m.sample, m.around.data
    if sample is None or data is None:
        return None
    blocked = read_blocked(m)
    share = blocked.blocked_s / max(sample.total.wall_s, 1e-9)
    source = shlex.quote(data.folder)
    if share < 0.05:
        return Remedy(
            "pack", "pack the files", 1.0, 1.0, 1.02, command=None,
            note=f"packing will not help: reads are {share:.0%} of the time",
        )  # fmt: skip
    # Small files cost round trips: open, read, close. A pack is read in ranges that are known in advance.
    kept = 0.25 if data.mean_bytes < 1e6 else 0.8
    now = m.pipeline
    saved = blocked.blocked_s * (1 - kept) * m.samples_per_step
    prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - saved, width=WIDEST)
    return _make(
        m, "pack", f"pack {data.files_seen:,}+ files of {format_bytes(data.mean_bytes)} into a few big ones", prediction, then,
        command=f"feedrate pack {source} PACK",
    )  # fmt: skip


def stage_to_scratch(m: Measured) -> Remedy | None:
    """Copy the data to local scratch once: reads then cost what scratch gives."""
    sample, data, around_ = m.sample, m.around.data, m.around
    if sample is None or data is None or around_.scratch is None or around_.scratch_bytes_per_s is None:
        return None
    blocked = read_blocked(m)
    if blocked.blocked_s < 0.05 * sample.total.wall_s:
        return None
    left = sample.read_bytes / around_.scratch_bytes_per_s
    now = m.pipeline
    saved = max(blocked.blocked_s - left, 0.0) * m.samples_per_step
    prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - saved)
    size = f" ({format_bytes(data.dataset_bytes)})" if data.dataset_bytes else ""
    return _make(
        m, "stage", f"copy the data{size} to {around_.scratch} once, and read it there", prediction, then
    )


def cache_in_memory(m: Measured) -> Remedy | None:
    """Samples kept in memory after the first epoch, read and decoded."""
    sample, data = m.sample, m.around.data
    if sample is None:
        return None
    saved = sample.kind("read").plus(sample.kind("decode"))
    saved = Cost(saved.cpu_s, saved.queue_s, max(saved.blocked_s, read_blocked(m).blocked_s))
    if saved.wall_s < 0.05 * sample.total.wall_s:
        return None
    now, n = m.pipeline, m.samples_per_step
    prediction, then = change(
        m,
        fetch_cpu_s=now.fetch_cpu_s - saved.cpu_s * n,
        fetch_blocked_s=now.fetch_blocked_s - saved.blocked_s * n,
    )
    decoded, limit = m.around.decoded_bytes, m.around.memory_limit_bytes
    note = "whether it fits is unknown: the size of a decoded sample or of the dataset is not known"
    if decoded and limit:
        used = m.around.memory_used_bytes or 0.0
        fits = decoded < 0.85 * (limit - used)
        k = f"; K = {decoded / data.dataset_bytes:.1f}" if data is not None and data.dataset_bytes else ""
        note = (
            f"{'fits' if fits else 'does not fit'}: {format_bytes(decoded)} decoded{k}, "
            f"the job may use {format_bytes(limit)}, of which {format_bytes(used)} are taken"
        )
        if not fits:
            prediction = Prediction(1.0, 1.0, 1.02, "")
    return _make(
        m,
        "cache-in-memory",
        "keep decoded samples in memory after the first epoch",
        prediction,
        then,
        note=note,
    )


def read_from_memory(m: Measured) -> Remedy | None:
    """The page cache: what the second epoch gives by itself."""
    if m.drain is None or m.again is None or m.sample is None or m.sample_again is None:
        return None
    saved = m.sample.total.blocked_s - m.sample_again.total.blocked_s
    if saved < 0.1 * m.sample.total.wall_s:
        return None
    now = m.pipeline
    prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - saved * m.samples_per_step)
    data, limit = m.around.data, m.around.memory_limit_bytes
    size = data.dataset_bytes if data is not None else None
    note = ""
    if size and limit:
        fits = size < 0.8 * (limit - (m.around.memory_used_bytes or 0))
        note = f"{format_bytes(size)} of files {'fit' if fits else 'do not fit'} in the {format_bytes(limit)} of this job"
    return _make(
        m, "warm-page-cache", "read the files once before training, so that they come from memory", prediction, then, note=note,
        change="cat the files to /dev/null before the first epoch",
    )  # fmt: skip


def vectorise_transform(m: Measured) -> Remedy | None:
    """Array operations instead of a Python loop in the user's own code."""
    sample = m.sample
    if sample is None:
        return None
    own = sample.kind("transform").plus(sample.kind("rest"))
    hot = next((place for place in m.looks_fetch.places if place.is_python), None)
    if hot is None or own.cpu_s < 0.05 * sample.total.wall_s:
        return None
    # The looks say how much of the sample's time falls on that function.
    cost = min(own.cpu_s, hot.share * sample.total.wall_s)
    now = m.pipeline
    prediction, then = change(m, fetch_cpu_s=now.fetch_cpu_s - cost * (1 - _VECTORISED) * m.samples_per_step)
    return _make(
        m,
        "vectorise-transform",
        f"replace the Python loop in {hot.function} ({hot.place}) by array operations",
        prediction,
        then,
    )


def preprocess_once(m: Measured) -> Remedy | None:
    """What is the same in every epoch, done once."""
    sample = m.sample
    if sample is None:
        return None
    share = repeated_share(m)
    if share is None or share < 0.1:
        return None
    now = m.pipeline
    prediction, then = change(
        m,
        fetch_cpu_s=now.fetch_cpu_s * (1 - share),
        fetch_blocked_s=now.fetch_blocked_s,
        width=MODELLED,
    )
    return _make(
        m, "preprocess-once", "do the part that is the same in every epoch once, and store its result", prediction, then,
        note=f"{share:.0%} of a sample's work comes before its first random number",
    )  # fmt: skip


def repeated_share(m: Measured) -> float | None:
    """Return the share of a sample's CPU work that every epoch repeats, read and collate left out; None: unknown."""
    sample = m.sample
    if sample is None or sample.total.cpu_s <= 0:
        return None
    collate = sample.kind("collate").cpu_s / sample.total.cpu_s
    if m.is_repeatable:
        return 1.0 - collate
    if m.looks_fetch.undrawn is None or m.looks_fetch.count < 20:
        return None
    return m.looks_fetch.undrawn * (1.0 - collate)


def persist_workers(m: Measured) -> Remedy | None:
    """Workers that stay for the next epoch."""
    pause = m.loop.per_step("epoch-start") / m.step_s
    if m.workers == 0 or m.loader.get("persistent_workers") or pause < 0.02:
        return None
    # The sampler's new order and the first batch still take their time.
    prediction = around(without(pause, kept=0.1), COUNTED, "")
    return _make(
        m, "persistent-workers", "keep the workers between epochs", prediction, m.pipeline.with_(between_s=m.between_s * 0.1),
        change="DataLoader(..., persistent_workers=True)",
    )  # fmt: skip


def evaluate_less(m: Measured) -> Remedy | None:
    share = m.loop.per_step("validation") / m.step_s
    if share < 0.02:
        return None
    prediction = around(without(share, kept=0.25), COUNTED, "")
    return _make(
        m,
        "fewer-evaluations",
        "evaluate a quarter as often",
        prediction,
        m.pipeline.with_(between_s=m.between_s * 0.25),
    )


def save_less(m: Measured) -> Remedy | None:
    share = m.loop.per_step("save") / m.step_s
    if share < 0.02:
        return None
    prediction = around(without(share, kept=0.1), COUNTED, "")
    return _make(
        m,
        "fewer-checkpoints",
        "save a tenth as often",
        prediction,
        m.pipeline.with_(between_s=m.between_s * 0.1),
    )


def halve_precision(m: Measured) -> Remedy | None:
    if m.half_precision is None or m.device is None:
        return None
    prediction, then = change(m, device_s=m.half_precision.seconds, width=TRIED)
    return _make(
        m, "half-precision", "compute in bfloat16", prediction, then, basis="measured",
        change="with torch.autocast('cuda', dtype=torch.bfloat16): ...", note="may cost accuracy: check it",
    )  # fmt: skip


def enlarge_batch(m: Measured) -> Remedy | None:
    """Twice the batch: from what half a batch took."""
    if m.half_batch is None or m.device is None:
        return None
    fixed = max(2 * m.half_batch.seconds - m.device.seconds, 0.0)
    per_old_batch = (2 * m.device.seconds - fixed) / 2
    prediction, then = change(m, device_s=max(per_old_batch, 0.5 * m.device.seconds))
    return _make(
        m,
        "larger-batch",
        "double the batch size",
        prediction,
        then,
        note="may cost accuracy: the learning rate must follow",
    )


def pin_memory(m: Measured) -> Remedy | None:
    """Copies from pinned memory, which do not hold up the training process."""
    if not m.is_on_gpu or m.loader.get("pin_memory"):
        return None
    copied, pinned, pageable = (
        m.around.copied_bytes,
        m.copy_rates.get("pinned_bytes_per_s"),
        m.copy_rates.get("pageable_bytes_per_s"),
    )
    if not copied or not pinned or not pageable:
        return None
    saved = copied / pageable  # the copy runs beside the computing then
    prediction, then = change(m, device_s=max(m.device_s - saved, copied / pinned))
    return _make(
        m, "pinned-memory", "copy from pinned memory, without waiting", prediction, then,
        change="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
    )  # fmt: skip


def transfer_bytes(m: Measured) -> Remedy | None:
    """uint8 to the device, floats made there."""
    if not m.is_on_gpu or m.around.copied_bytes is None or m.around.copied_element_bytes != 4:
        return None
    rate = m.copy_rates.get("pinned_bytes_per_s" if m.loader.get("pin_memory") else "pageable_bytes_per_s")
    if not rate:
        return None
    prediction, then = change(m, device_s=m.device_s - 0.75 * m.around.copied_bytes / rate)
    return _make(
        m, "uint8-transfer", "send images as uint8 and make floats on the device", prediction, then,
        change="batch.to(device).float().div_(255)",
    )  # fmt: skip


def speed_up_main(m: Measured) -> Remedy | None:
    """The Python of the training loop itself."""
    hot = next(iter(m.looks_main.places), None)
    other = other_s(m)
    if hot is None or other < 0.05 * m.step_s:
        return None
    now = m.pipeline
    prediction, then = change(m, device_s=now.device_s - other * (1 - _VECTORISED))
    return _make(
        m,
        "speed-up-loop",
        f"take {hot.function} ({hot.place}) out of the training loop, or make it array operations",
        prediction,
        then,
    )


def other_s(m: Measured) -> float:
    """Return the training process's time per step outside of waits and of all named parts."""
    named = sum(
        m.loop.per_step(p) for p in ("copy", "sync", "readback", "forward", "backward", "optimizer", "write")
    )
    return max(m.own_s - m.wait_s - named, 0.0)


def write_less(m: Measured) -> Remedy | None:
    seconds = write_s(m)
    if seconds < 0.02 * m.step_s:
        return None
    prediction, then = change(m, device_s=m.device_s - 0.9 * seconds, width=COUNTED)
    return _make(m, "write-less", "write a tenth as often, or from another thread", prediction, then)


def write_s(m: Measured) -> float:
    """Return the time per step that goes into writing files: timed calls, and lines that write and wait."""
    timed = m.loop.per_step("write")
    lines = sum(p.share for p in m.looks_main.places if _writes(p.source))
    outside = m.own_s - m.wait_s
    return max(timed, min(lines * outside, outside))


def _writes(source: str) -> bool:
    words = (
        "write(",
        "writerow",
        "flush(",
        "fsync",
        "save(",
        "dump(",
        "savez",
        "savefig",
        "to_csv",
        "imwrite",
        "print(",
    )
    return any(word in source for word in words)


def remove_syncs(m: Measured) -> Remedy | None:
    sync = m.loop.per_step("sync")
    idle = idle_share(m)
    if not m.is_on_gpu or sync < 0.02 * m.step_s or idle is None:
        return None
    place = max(m.loop.places.get("sync", {"": 0.0}).items(), key=lambda item: item[1])[0]
    saved = min(idle * m.step_s, sync)
    prediction, then = change(m, device_s=m.device_s - saved)
    return _make(m, "remove-sync", f"do not wait for the device at every step: {place}", prediction, then)


def keep_on_device(m: Measured) -> Remedy | None:
    readback = m.loop.per_step("readback")
    if readback < 0.02 * m.step_s:
        return None
    place = max(m.loop.places.get("readback", {"": 0.0}).items(), key=lambda item: item[1])[0]
    prediction, then = change(m, device_s=m.device_s - 0.9 * readback)
    return _make(m, "keep-on-device", f"leave the outputs on the device: {place}", prediction, then)


def lighten_handover(m: Measured) -> Remedy | None:
    sample = m.sample
    if sample is None or m.workers == 0:
        return None
    n = m.samples_per_step
    cost = sample.kind("collate").cpu_s * n + m.feeder_cpu_s
    if cost + m.receive_cpu_s < 0.05 * m.step_s:
        return None
    now = m.pipeline
    prediction, then = change(
        m, fetch_cpu_s=now.fetch_cpu_s - 0.8 * cost, handover_s=now.handover_s * 0.2, width=WIDEST
    )
    return _make(
        m,
        "lighter-handover",
        "hand over less: smaller types (uint8), tensors instead of Python objects",
        prediction,
        then,
    )


def idle_share(m: Measured) -> float | None:
    """Return how much of the time the GPU idled; None: unknown."""
    return None if m.around.gpu_utilisation is None else 1.0 - m.around.gpu_utilisation


def unpin_workers(m: Measured) -> Remedy | None:
    """The workers on all usable cores."""
    sets = [set(fact["affinity"]) for fact in m.worker_facts if fact.get("affinity")]
    allowed = len(set().union(*sets)) if sets else 0
    if not sets or allowed >= min(m.workers, int(m.around.cores)):
        return None
    now = m.pipeline.with_(cores=float(allowed))
    then = m.pipeline
    return _make(
        m, "unpin-workers", f"let the workers run on all {m.around.cores:.0f} cores instead of {allowed}",
        predict_change(now, then, m.step_s), then,
        change="remove the sched_setaffinity or taskset, or ask the scheduler for --cpus-per-task",
    )  # fmt: skip


def stop_others(m: Measured) -> Remedy | None:
    others = m.around.cores_others
    if others < 0.1 * m.around.cores:
        return None
    now = m.pipeline
    then = now.with_(cores=m.around.cores)
    # What computes on cores shared with others computes slower by their share.
    freed = (m.around.cores - others) / m.around.cores
    if not m.is_on_gpu:
        then = then.with_(device_s=now.device_s * freed, fetch_blocked_s=now.fetch_blocked_s)
    prediction = predict_change(now, then, m.step_s, WIDEST)
    return _make(
        m,
        "stop-others",
        f"have the machine alone: {m.around.biggest_other or 'others'} takes cores",
        prediction,
        then,
    )


def use_less_memory(m: Measured) -> Remedy | None:
    if m.sample is None or not m.around.memory_limit_bytes or m.sample.major_faults < 0.5:
        return None
    prediction, then = change(m, fetch_blocked_s=0.0, width=WIDEST)
    return _make(m, "use-less-memory", "use less memory, or ask for more (--mem)", prediction, then)


def use_gpu(m: Measured) -> Remedy | None:
    """Assumes that a GPU computes the model ten times as fast as these cores; the data then limits soon."""
    if m.around.gpus == 0 or m.is_on_gpu:
        return None
    prediction, then = change(m, device_s=m.device_s / 10, device_cpu_s=m.device_cpu_s / 10, width=WIDEST)
    return _make(
        m, "use-gpu", "compute on the GPU", prediction, then, change="model.to('cuda'), batch.to('cuda')",
        note="assumes that the GPU computes this model ten times as fast as the CPU",
    )  # fmt: skip


def balance_ranks(m: Measured) -> Remedy | None:
    if len(m.loops) < 2:
        return None
    waits = sorted(loop.per_step("wait") for loop in m.loops.values())
    excess = waits[-1] - waits[len(waits) // 2 - 1]
    if excess < 0.05 * m.step_s:
        return None
    prediction = around(without(excess / m.step_s), COUNTED, "")
    return _make(m, "balance-ranks", "give every rank data that comes equally fast", prediction)


def move_to_cores(m: Measured) -> Remedy | None:
    """Work that the device does before the forward pass, on cores that idle."""
    if not m.is_on_gpu or m.before_forward_s < 0.05 * m.step_s:
        return None
    if m.around.cores_ours is not None and m.around.cores_ours > 0.7 * m.around.cores:
        return None
    prediction, then = change(m, device_s=m.device_s - m.before_forward_s)
    return _make(m, "move-to-cores", "do the work before the forward pass in the workers", prediction, then)


def remedies_of(m: Measured) -> dict[str, Remedy]:
    """Return every remedy that can be judged from this run, by name."""
    made = (make(m) for make in ALL)
    return {remedy.name: remedy for remedy in made if remedy is not None}


def read_blocked(m: Measured) -> Cost:
    """Return the waiting for storage in one sample: blocked time of reads and decoders, and of the rest where it reads."""
    sample = m.sample
    if sample is None:
        return Cost()
    cost = sample.kind("read").plus(sample.kind("decode"))
    rest = sample.kind("rest").plus(sample.kind("transform"))
    return Cost(0.0, 0.0, cost.blocked_s + (rest.blocked_s if sample.read_bytes > 0 else 0.0))


ALL: tuple[Callable[[Measured], Remedy | None], ...] = (
    change_workers, persist_workers, pin_memory, transfer_bytes, halve_precision, enlarge_batch, pack_files, decode_faster,
    stage_to_scratch, cache_in_memory, read_from_memory, preprocess_once, vectorise_transform, speed_up_main, evaluate_less,
    save_less, write_less, remove_syncs, keep_on_device, lighten_handover, unpin_workers, stop_others, use_less_memory, use_gpu,
    balance_ranks, move_to_cores,
)  # fmt: skip
