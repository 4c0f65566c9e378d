# SPDX-License-Identifier: Apache-2.0
"""Causes in the training process: what it does besides waiting for data, and between steps."""

from __future__ import annotations

from statistics import median

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings.causes_loader import word_place
from feedrate.doctor.findings.evidence import WORTH_A_VERDICT, WORTH_TELLING, Evidence, percent
from feedrate.doctor.findings.scenarios import (
    before_forward_s,
    copying_s,
    freeing_s,
    idle_share,
    launching_s,
    other_s,
    readback_s,
    sync_s,
    write_s,
)
from feedrate.units import format_bytes, format_count, format_seconds

_TOO_SLOW = "The training process gives the GPU its work too slowly"
_LAUNCHING = (
    "Every operation is started from Python, and the GPU is done before the next one: larger batches, fewer "
    "and larger operations, torch.compile or CUDA graphs keep it at work."
)


def find_long_validation(m: Measured) -> Evidence | None:
    share, each = m.share_of("validation"), m.each("validation", m.loop.validations)
    if share < WORTH_TELLING:
        return None
    steps, times = len(m.loop.steps), m.loop.validations
    lines = (
        f"validation takes {percent(share)} of the time: {times} times in {steps} steps",
        f"one takes {format_seconds(each)}, a training step {format_seconds(m.own_s)}",
    )
    return Evidence(share, lines, {"validations": times, "steps": steps, "seconds_each": each})


def find_long_saving(m: Measured) -> Evidence | None:
    share, each = m.share_of("save"), m.each("save", m.loop.saves)
    if share < WORTH_TELLING:
        return None
    steps, times = len(m.loop.steps), m.loop.saves
    lines = (
        f"saving takes {percent(share)} of the time: {times} in {steps} steps, {format_seconds(each)} each",
        m.place_of("save"),
    )
    return Evidence(share, lines, {"saves": times, "steps": steps, "seconds_each": each})


def find_epoch_pause(m: Measured) -> Evidence | None:
    share, each = m.share_of("epoch-start"), m.each("epoch-start", m.loop.epochs)
    if share < WORTH_TELLING:
        return None
    verb = "is" if m.workers == 1 else "are"
    is_kept = m.loader.get("persistent_workers") and not m.is_loader_made_anew
    kept = f"{verb} kept" if is_kept else f"{verb} started anew"
    context = m.loader.get("context") or "fork"
    lines = (
        f"{format_seconds(each)} pass before an epoch's first batch, {percent(share)} of the time",
        f"{format_count(m.loop.epochs, 'epoch')} began in {len(m.loop.steps)} steps",
        *([f"{format_count(m.workers, 'worker')} {kept} for each epoch ({context})"] if m.workers else []),
    )
    return Evidence(share, lines, {"epochs": m.loop.epochs, "pause_s": each})


def find_writing(m: Measured) -> Evidence | None:
    seconds = write_s(m)
    share = seconds / m.step_s
    if share < WORTH_TELLING:
        return None
    lines = [f"the loop writes files for {format_seconds(seconds)} a step, {percent(share)} of the time"]
    if m.place_of("write"):
        lines.append(m.place_of("write"))
    lines += [word_place(place) for place in m.looks_loop.own[:1]]
    return Evidence(share, tuple(lines), {"write_s": seconds})


def find_syncs(m: Measured) -> Evidence | None:
    share, idle = sync_s(m) / m.step_s, idle_share(m)
    if not m.is_on_gpu or share < WORTH_TELLING or idle is None:
        return None
    cost = min(idle - m.exposed_share, share)
    if cost < WORTH_TELLING:
        return None
    lines = (
        f"{m.place_of('sync')} waits for the GPU {percent(share)} of the time",
        f"the GPU then has nothing queued: it idles {percent(idle)} of the time",
    )
    return Evidence(cost, lines, {"sync_share": round(share, 3), "gpu_idle": round(idle, 3)})


def find_slow_copies(m: Measured) -> Evidence | None:
    copied = m.around.copied_bytes
    if not m.is_on_gpu or not copied:
        return None
    is_pinned = m.around.copies_are_pinned
    # On a stream of its own a copy runs beside the computing, and costs what the training process waits for
    # it. While the device waits for data, a copy is not what holds it up.
    seconds = min(copying_s(m) or m.loop.per_step("copy"), max(m.step_s - m.exposed_s, 0.0))
    share = seconds / m.step_s
    if share < WORTH_TELLING:
        return None
    how = f"{'pinned' if is_pinned else 'not pinned'}, {m.around.copied_element_bytes} bytes a number"
    lines = (
        f"{format_bytes(copied)} a step go to the device, {how}",
        f"that takes {format_seconds(seconds)}, {percent(share)} of the time",
        m.place_of("copy"),
    )
    return Evidence(share, lines, {"copied_bytes": copied, "pinned": str(is_pinned), "copy_s": seconds})


def find_readbacks(m: Measured) -> Evidence | None:
    share = readback_s(m) / m.step_s
    if share < WORTH_TELLING:
        return None
    line = f"{m.place_of('readback')} brings outputs back to the CPU: {percent(share)} of the time"
    return Evidence(share, (line,), {"readback_share": round(share, 4)})


def find_slow_loop(m: Measured) -> Evidence | None:
    """The loop's own code; without a forward pass that could be told apart, there is no saying."""
    written = max(write_s(m) - m.loop.per_step("write"), 0.0)
    at_waits = max(sync_s(m) - m.loop.per_step("sync"), 0.0)
    at_waits += readback_s(m) - m.loop.per_step("readback")
    own, launching = max(other_s(m) - written - at_waits - freeing_s(m), 0.0), launching_s(m)
    share = (own + launching) / m.step_s
    if share < WORTH_A_VERDICT or not m.loop.per_step("forward"):
        return None
    lines = [
        f"the loop's own code takes {format_seconds(own)} a step, {percent(own / m.step_s)} of the time",
        *(word_place(place) for place in m.looks_loop.own[:2] if place.share > 0.1),
    ]
    if launching < own:
        return Evidence(share, tuple(lines), {"own_s": own, "launching_s": launching})
    given = sum(m.share_of(part) for part in ("forward", "backward", "optimizer"))
    busy = percent(m.around.gpu_utilisation or 0.0)
    lines.insert(0, f"the GPU is at work {busy} of the time, giving it that work takes {percent(given)}")
    if m.place_of("forward"):
        lines.insert(1, f"most of it goes into {m.place_of('forward')}")
    return Evidence(
        share, tuple(lines), {"own_s": own, "launching_s": launching}, cause=_LAUNCHING, title=_TOO_SLOW
    )


def find_slow_rank(m: Measured) -> Evidence | None:
    if len(m.loops) < 2:
        return None
    waits = {rank: loop.per_step("wait") for rank, loop in m.loops.items()}
    slow = max(waits, key=lambda rank: waits[rank])
    others = median([seconds for rank, seconds in waits.items() if rank != slow])
    share = (waits[slow] - others) / m.step_s
    if share < WORTH_TELLING:
        return None
    mine, theirs = format_seconds(waits[slow]), format_seconds(others)
    lines = (
        f"rank {slow} waits {mine} a step for its data, the others {theirs}",
        f"all ranks wait for it in the backward pass: {percent(share)} of the time",
    )
    return Evidence(share, lines, {"rank": slow, "wait_s": waits[slow], "others_wait_s": others})


def find_busy_device(m: Measured) -> Evidence | None:
    share = max(m.own_s - m.exposed_s, 0.0) / m.step_s
    if m.is_on_gpu and m.around.gpu_utilisation is not None:
        share = min(share, m.around.gpu_utilisation)
    if share < 0.5:
        return None
    device = (m.around.gpu_name or "the GPU") if m.is_on_gpu else "the CPU, which computes the model here,"
    lines = [
        f"{device} is at work {percent(share)} of the time; waiting for data: {percent(m.exposed_share)}"
    ]
    if m.is_on_gpu and m.around.gpu_utilisation is not None:
        lines.append(f"GPU utilisation {percent(m.around.gpu_utilisation)}")
    if m.drain is not None:
        given, taken = m.samples_per_step / m.drain.seconds, m.samples_per_step / m.device_s
        lines.append(f"the loader could give {given:,.0f} samples/s, the device takes {taken:,.0f}")
    if before_forward_s(m) > 0.01 * m.step_s:
        before = percent(before_forward_s(m) / m.step_s)
        lines.append(
            f"{before} of the device's time goes into work before the forward pass, which cores could do"
        )
    return Evidence(share, tuple(lines), {"device_s": m.device_s, "step_s": m.step_s})
