# SPDX-License-Identifier: Apache-2.0
"""Causes and remedies in the training process: what it does besides waiting for data, and between steps."""

from __future__ import annotations

from statistics import median

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.stacks import is_in_loop
from feedrate.doctor.findings.evidence import (
    VECTORISED,
    WORTH_A_VERDICT,
    WORTH_TELLING,
    Evidence,
    make_remedy,
    predict_times,
    shortened,
)
from feedrate.doctor.findings.loader import word_place
from feedrate.doctor.findings.step_parts import (
    before_forward_s,
    copying_s,
    freeing_s,
    header_share,
    idle_share,
    launching_s,
    readback_s,
    sync_s,
    write_s,
)
from feedrate.doctor.results import GAIN_WORTH_NAMING, Remedy
from feedrate.model.pipeline import around, best_workers, without
from feedrate.units import format_bytes, format_count, format_seconds

_TOO_SLOW = "The training process gives the GPU its work too slowly"
_LAUNCHING = (
    "Every operation is started from Python, and the GPU is done before the next one: larger batches, fewer "
    "and larger operations, torch.compile or CUDA graphs keep it at work."
)


def find_long_validation(m: Measured) -> Evidence | None:
    share, each = m.loop.share_of("validation"), m.loop.each("validation", m.loop.validations)
    if share < WORTH_TELLING:
        return None
    steps, times = len(m.loop.steps), m.loop.validations
    lines = (
        f"validation takes {share:.0%} of the time: {times} times in {steps} steps",
        f"one takes {format_seconds(each)}, a training step {format_seconds(m.loop.own_s)}",
    )
    call = m.tried.call
    is_fed = call is not None and call.validation is not None and not call.why_not
    numbers = {"validations": times, "steps": steps, "seconds_each": each}
    return Evidence(share, lines, numbers, cures=("loader",) if is_fed else ())


def find_long_saving(m: Measured) -> Evidence | None:
    share, each = m.loop.share_of("save"), m.loop.each("save", m.loop.saves)
    if share < WORTH_TELLING:
        return None
    steps, times = len(m.loop.steps), m.loop.saves
    lines = (
        f"saving takes {share:.0%} of the time: {times} in {steps} steps, {format_seconds(each)} each",
        m.loop.place_of("save"),
    )
    return Evidence(share, lines, {"saves": times, "steps": steps, "seconds_each": each})


def find_epoch_pause(m: Measured) -> Evidence | None:
    share, each = m.loop.share_of("epoch-start"), m.loop.each("epoch-start", m.loop.epochs)
    if share < WORTH_TELLING:
        return None
    lines = [
        f"{format_seconds(each)} pass before an epoch's first batch, {share:.0%} of the time",
        f"{format_count(m.loop.epochs, 'epoch')} began in {len(m.loop.steps)} steps",
    ]
    if workers := m.loader.workers:
        is_kept = m.loader.get("persistent_workers") and not m.loader.is_made_anew
        kept = f"{'is' if workers == 1 else 'are'} {'kept' if is_kept else 'started anew'} for each epoch"
        lines.append(f"{format_count(workers, 'worker')} {kept} ({m.loader.get('context') or 'fork'})")
    return Evidence(share, lines, {"epochs": m.loop.epochs, "pause_s": each})


def find_writing(m: Measured) -> Evidence | None:
    seconds = write_s(m)
    share = seconds / m.loop.step_s
    if share < WORTH_TELLING:
        return None
    lines = [f"the loop writes files for {format_seconds(seconds)} a step, {share:.0%} of the time"]
    if m.loop.place_of("write"):
        lines.append(m.loop.place_of("write"))
    lines += [word_place(place) for place in m.training.looks_loop.own[:1]]
    return Evidence(share, lines, {"write_s": seconds})


def find_syncs(m: Measured) -> Evidence | None:
    share, idle = sync_s(m) / m.loop.step_s, idle_share(m)
    if not m.training.is_on_gpu or share < WORTH_TELLING or idle is None:
        return None
    cost = min(idle - m.loop.exposed_share, share)
    if cost < WORTH_TELLING:
        return None
    lines = (
        f"{m.loop.place_of('sync')} waits for the GPU {share:.0%} of the time",
        f"the GPU then has nothing queued: it idles {idle:.0%} of the time",
    )
    return Evidence(cost, lines, {"sync_share": round(share, 3), "gpu_idle": round(idle, 3)})


def find_slow_copies(m: Measured) -> Evidence | None:
    copied = m.machine.copied_bytes
    if not m.training.is_on_gpu or not copied:
        return None
    is_pinned = m.machine.copies_are_pinned
    # On a stream of its own a copy runs beside the computing, and costs what the training process waits for
    # it. While the device waits for data, a copy is not what holds it up.
    seconds = min(copying_s(m) or m.loop.per_step("copy"), max(m.loop.step_s - m.loop.exposed_s, 0.0))
    share = seconds / m.loop.step_s
    if share < WORTH_TELLING:
        return None
    how = f"{'pinned' if is_pinned else 'not pinned'}, {m.machine.copied_element_bytes} bytes a number"
    lines = (
        f"{format_bytes(copied)} a step go to the device, {how}",
        f"that takes {format_seconds(seconds)}, {share:.0%} of the time",
        m.loop.place_of("copy"),
    )
    return Evidence(share, lines, {"copied_bytes": copied, "pinned": str(is_pinned), "copy_s": seconds})


def find_readbacks(m: Measured) -> Evidence | None:
    share = readback_s(m) / m.loop.step_s
    if share < WORTH_TELLING:
        return None
    line = f"{m.loop.place_of('readback')} brings outputs back to the CPU: {share:.0%} of the time"
    return Evidence(share, (line,), {"readback_share": round(share, 4)})


def find_slow_loop(m: Measured) -> Evidence | None:
    """The loop's own code; without a forward pass that could be told apart, there is no saying."""
    written = max(write_s(m) - m.loop.per_step("write"), 0.0)
    at_waits = max(sync_s(m) - m.loop.per_step("sync"), 0.0)
    at_waits += readback_s(m) - m.loop.per_step("readback")
    own, launching = max(m.loop.other_s - written - at_waits - freeing_s(m), 0.0), launching_s(m)
    share = (own + launching) / m.loop.step_s
    if share < WORTH_A_VERDICT or not m.loop.per_step("forward"):
        return None
    lines = [
        f"the loop's own code takes {format_seconds(own)} a step, {own / m.loop.step_s:.0%} of the time",
        *(word_place(place) for place in m.training.looks_loop.own[:2] if place.share > 0.1),
    ]
    numbers = {"own_s": own, "launching_s": launching}
    if launching < own:
        return Evidence(share, lines, numbers)
    given = m.loop.computing_s / m.loop.step_s
    busy = f"the GPU is at work {m.machine.gpu_utilisation or 0.0:.0%} of the time"
    lines.insert(0, f"{busy}, giving it that work takes {given:.0%}")
    if m.loop.place_of("forward"):
        lines.insert(1, f"most of it goes into {m.loop.place_of('forward')}")
    return Evidence(share, lines, numbers, cause=_LAUNCHING, title=_TOO_SLOW)


def find_slow_rank(m: Measured) -> Evidence | None:
    if len(m.loops) < 2:
        return None
    waits = {rank: loop.per_step("wait") for rank, loop in m.loops.items()}
    slow = max(waits, key=lambda rank: waits[rank])
    others = median([seconds for rank, seconds in waits.items() if rank != slow])
    share = (waits[slow] - others) / m.loop.step_s
    if share < WORTH_TELLING:
        return None
    lines = (
        f"rank {slow} waits {format_seconds(waits[slow])} a step for its data, the others "
        f"{format_seconds(others)}",
        f"all ranks wait for it in the backward pass: {share:.0%} of the time",
    )
    return Evidence(share, lines, {"rank": slow, "wait_s": waits[slow], "others_wait_s": others})


def find_busy_device(m: Measured) -> Evidence | None:
    share = max(m.loop.own_s - m.loop.exposed_s, 0.0) / m.loop.step_s
    if m.training.is_on_gpu and m.machine.gpu_utilisation is not None:
        share = min(share, m.machine.gpu_utilisation)
    if share < 0.5:
        return None
    device = m.machine.gpu_name or "the GPU"
    if not m.training.is_on_gpu:
        device = "the CPU, which computes the model here,"
    lines = [f"{device} is at work {share:.0%} of the time; waiting for data: {m.loop.exposed_share:.0%}"]
    if m.training.is_on_gpu and m.machine.gpu_utilisation is not None:
        lines.append(f"GPU utilisation {m.machine.gpu_utilisation:.0%}")
    if m.experiments.drain is not None:
        n = m.loop.samples_per_step
        given = f"the loader could give {n / m.experiments.drain.seconds:,.0f} samples/s"
        lines.append(f"{given}, the device takes {n / m.device_s:,.0f}")
    before = before_forward_s(m) / m.loop.step_s
    if before > 0.01:
        lines.append(
            f"{before:.0%} of the device's time goes into work before the forward pass, which cores could do"
        )
    return Evidence(share, lines, {"device_s": m.device_s, "step_s": m.loop.step_s})


RARELY = 0.05  # of what is done too often, what stays
# Of the time that goes with waiting for values, what counting on the device takes; a few calls at most.
_ON_DEVICE, _ON_DEVICE_S = 0.15, 0.5e-3

_LAST = "memory_format=torch.channels_last"


def evaluate_less(m: Measured) -> Remedy | None:
    return _do_rarely(m, "validation", "fewer-evaluations", "evaluate a twentieth as often")


def save_less(m: Measured) -> Remedy | None:
    # What was saved is still on its way to the disk while the CPU computes: steps without it are shorter.
    is_replayed = m.experiments.device is not None and not m.training.is_on_gpu
    own_s = min(m.loop.own_s, m.loop.exposed_s + m.device_s) if is_replayed else m.loop.own_s
    return _do_rarely(m, "save", "fewer-checkpoints", "save a twentieth as often", own_s)


def _do_rarely(m: Measured, part: str, name: str, title: str, own_s: float | None = None) -> Remedy | None:
    """What is left out of the time between steps is simply counted."""
    if m.loop.share_of(part) < 0.02:
        return None
    between_s = max(m.loop.between_s - (1 - RARELY) * m.loop.per_step(part), 0.0)
    speedup = m.loop.step_s / ((own_s or m.loop.own_s) + between_s)
    return make_remedy(m, name, title, (around(speedup), m.pipeline.with_(between_s=between_s)))


def write_less(m: Measured) -> Remedy | None:
    seconds = write_s(m)
    if seconds < 0.02 * m.loop.step_s:
        return None
    changed = predict_times(m, device_s=shortened(m, (1 - RARELY) * seconds))
    return make_remedy(m, "write-less", "write a twentieth as often, or from another thread", changed)


def speed_up_main(m: Measured) -> Remedy | None:
    """The Python of the training loop itself."""
    other = m.loop.other_s - freeing_s(m)
    own = m.training.looks_loop.own
    hot = next((place for place in own if place.is_python), next(iter(own), None))
    if hot is None or hot.share < 0.05 or other < 0.05 * m.loop.step_s or m.loader.framework:
        return None
    # What is taken out is what the looks fell on, Python's loops together. They share out the time that no
    # timed part explains, and do not say how much it is: Python that is busy gives way to a look late.
    if hot.is_python:
        # A function that was met too seldom to tell is judged by the loop that it stands in.
        asked_at, few = str(m.loader.batch.get("asked_at") or ""), 10 / m.training.looks_loop.count
        gone = sum(p.share for p in own if p.is_python or (p.share < few and is_in_loop(p.place, asked_at)))
        other *= gone / max(1.0 - _late_share(m), gone)
    else:  # what computes in C is met as often as it takes time
        met = hot.share * m.training.looks_loop.count / m.training.looks.count
        other = min(other * hot.share, met * (m.loop.own_s - m.loop.wait_s))
    # What the forward pass needs cannot be left out, only be done elsewhere (below).
    is_needed = m.loop.preparing_s > 0.5 * other
    how = (
        "use array operations in"
        if is_needed
        else "leave out of the training loop, or make array operations:"
    )
    # The place comes last: paths are long, and a terminal shows the beginning.
    title = f"{how} {hot.function} ({hot.place})"
    changed = predict_times(m, device_s=shortened(m, other * (1 - VECTORISED)))
    return make_remedy(m, "speed-up-loop", title, changed)


def _late_share(m: Measured) -> float:
    """Return the share of the loop's looks at lines where a thread that was busy gives way.

    Those lines ask for a batch, or call what was timed by itself, and few of the looks at them are at more.
    """
    main, loop = m.training.looks, m.training.looks_loop
    timed = {
        line
        for line, share in main.lines.items()
        if share * main.count > loop.lines.get(line, 0.0) * loop.count + 0.5
    }
    return header_share(m, loop) + sum(
        share
        for line, share in loop.lines.items()
        if line in timed and line != m.loader.batch.get("asked_at")
    )


def move_to_workers(m: Measured) -> Remedy | None:
    """What the loop does with a batch before it uses it, done where batches are made."""
    preparing = m.loop.preparing_s - freeing_s(m)
    if preparing < 0.05 * m.loop.step_s:
        return None
    now = m.pipeline
    # An IterableDataset does not take more workers by itself.
    most = max(m.loader.workers, 1) if m.loader.get("iterable") else m.most_workers
    making = now.fetch_cpu_s + preparing
    # What the present making drags along is no measure for work of another kind: it stays as it is.
    drag = now.drag * now.fetch_cpu_s / making
    changes = {"device_s": shortened(m, preparing), "fetch_cpu_s": making, "drag": drag}
    moved = predict_times(m, **changes, workers=max(now.workers, m.each_worker))[1]
    n = max(best_workers(moved, most, m.each_worker), m.loader.workers)
    return make_remedy(
        m, "move-to-workers",
        f"prepare batches in the dataset or collate_fn, by {format_count(n, 'worker')} beside the training",
        predict_times(m, **changes, workers=n * m.each_worker),
        change=f"DataLoader(..., num_workers={n}, persistent_workers=True, collate_fn=...)",
        note=f"{format_seconds(preparing)} a step pass between a batch's arrival and its use",
    )  # fmt: skip


def remove_syncs(m: Measured) -> Remedy | None:
    sync, idle = sync_s(m), idle_share(m)
    if not m.training.is_on_gpu or sync < 0.02 * m.loop.step_s or idle is None:
        return None
    saved = min(idle * m.loop.step_s, sync - min(sync * _ON_DEVICE, _ON_DEVICE_S))
    title = f"do not wait for the device in {m.loop.place_of('sync')}"
    return make_remedy(m, "remove-sync", title, predict_times(m, device_s=shortened(m, saved)))


def keep_on_device(m: Measured) -> Remedy | None:
    readback = readback_s(m)
    if readback < 0.02 * m.loop.step_s:
        return None
    # While outputs came back, the device finished computing them: that stays.
    changed = predict_times(m, device_s=max(shortened(m, readback), m.training.forward_s))
    title = f"leave the outputs on the device: {m.loop.place_of('readback')}"
    return make_remedy(m, "keep-on-device", title, changed)


def pin_memory(m: Measured) -> Remedy | None:
    """Copies from pinned memory, which do not hold up the training process."""
    if not m.training.is_on_gpu or m.machine.copies_are_pinned:
        return None
    copied, pinned = m.machine.copied_bytes, m.training.copy_rates.get("pinned_bytes_per_s")
    if not copied or not pinned:
        return None
    # The training process no longer waits for the copy, and works beside the device; on the device's one
    # stream, the computing follows the copy.
    beside = shortened(m, m.loop.per_step("copy"))
    copying = 0.0 if m.machine.copies_are_beside else copied / pinned
    on_device = (m.training.computing_s or beside) + before_forward_s(m) + copying
    return make_remedy(
        m, "pinned-memory", "copy from pinned memory, without waiting",
        predict_times(m, device_s=max(beside, on_device)),
        change="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
    )  # fmt: skip


def transfer_bytes(m: Measured) -> Remedy | None:
    """uint8 to the device, floats made there."""
    if not m.training.is_on_gpu or m.machine.copied_bytes is None or m.machine.copied_element_bytes != 4:
        return None
    copying = copying_s(m)
    if not copying:
        return None
    return make_remedy(
        m, "uint8-transfer", "send images as uint8 and make floats on the device",
        predict_times(m, device_s=shortened(m, 0.75 * copying)),
        change="batch.to(device).float().div_(255)",
    )  # fmt: skip


def halve_precision(m: Measured) -> Remedy | None:
    if m.experiments.half_precision is None or m.experiments.device is None:
        return None
    # Against the steps on the same batches moments before: the device may have been slower than usual.
    ratio = m.experiments.half_precision.seconds / m.experiments.device.seconds
    prediction, then = predict_times(m, device_s=m.device_s * ratio)
    kind = m.experiments.half_precision_type
    # Gradients in float16 vanish below 6e-8, unless the loss is scaled; bfloat16 reaches as far as float32.
    scaled = " and torch.amp.GradScaler('cuda') around the loss" if kind == "float16" else ""
    return make_remedy(
        m, "half-precision", f"compute in {kind}", (prediction, then), basis="measured",
        change=f"with torch.autocast('cuda', dtype=torch.{kind}): ...{scaled}",
        note="may cost accuracy: check it" if prediction.speedup >= GAIN_WORTH_NAMING else "",
    )  # fmt: skip


def lay_channels_last(m: Measured) -> Remedy | None:
    if m.experiments.channels_last is None or m.experiments.device is None:
        return None
    ratio = m.experiments.channels_last.seconds / m.experiments.device.seconds
    prediction, then = predict_times(m, device_s=ratio * m.device_s)
    return make_remedy(
        m, "channels-last", "lay out images and weights channels-last", (prediction, then), basis="measured",
        change=f"model = model.to({_LAST}) and, for every batch, images = images.to({_LAST})",
        note=_judge_layout(ratio, prediction.speedup),
    )  # fmt: skip


def _judge_layout(ratio: float, speedup: float) -> str:
    if speedup >= GAIN_WORTH_NAMING:
        return ""
    if ratio > GAIN_WORTH_NAMING:
        return f"tried here, a step took {ratio:.2f} times as long"
    if ratio < 1 / GAIN_WORTH_NAMING:
        return "the device is not what this run waits for"
    return "tried here, a step took as long as before"


def move_to_cores(m: Measured) -> Remedy | None:
    """Work that the device does before the forward pass, on cores that idle."""
    if not m.training.is_on_gpu or before_forward_s(m) < 0.05 * m.loop.step_s:
        return None
    if m.machine.cores_ours is not None and m.machine.cores_ours > 0.7 * m.machine.cores:
        return None
    changed = predict_times(m, device_s=shortened(m, before_forward_s(m)))
    return make_remedy(m, "move-to-cores", "do the work before the forward pass in the workers", changed)


def balance_ranks(m: Measured) -> Remedy | None:
    if len(m.loops) < 2:
        return None
    waits = sorted(loop.per_step("wait") for loop in m.loops.values())
    excess = waits[-1] - waits[len(waits) // 2 - 1]
    if excess < 0.05 * m.loop.step_s:
        return None
    # The work does not go away: every rank gets its part of it.
    spread_out = 1 - 1 / len(m.loops)
    speedup = without(excess / m.loop.step_s * spread_out)
    if m.machine.cores_ours:
        speedup = min(speedup, max(m.machine.cores / m.machine.cores_ours, 1.0))  # nor do cores come from it
    title = "give every rank data that comes equally fast"
    return make_remedy(m, "balance-ranks", title, (around(speedup), None))
