# SPDX-License-Identifier: Apache-2.0
"""Remedies in the loader: workers, decoding, storage, transforms."""

from __future__ import annotations

import shlex
from statistics import mean

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.analyse.stacks import is_in_loop
from feedrate.doctor.findings.scenarios import (
    NOTHING,
    VECTORISED,
    change,
    crops,
    decoding,
    make_remedy,
    read_blocked,
    transforming,
    tried_gain,
)
from feedrate.doctor.results import Remedy
from feedrate.model.pipeline import Pipeline, best_workers
from feedrate.model.predict import Prediction, around, predict_change
from feedrate.units import format_bytes, format_seconds

_WRITTEN_BYTES_PER_S = 2.5e9  # floats made of bytes, on one core
_PICKLED_BYTES_PER_S = 1e8  # a batch whose tensors are fewer bytes than that was pickled, not shared
_MOSTLY_TAKEN = 0.8  # of the decoding, what our kernel takes as it is: little is left to normalise
_MAKING_TENSORS = ("PIL.tobytes", "ToTensor", "PILToTensor", "ToImage", "ToDtype")
_OBJECTS_KEPT = 0.01  # of passing objects on, what passing on handles of tensors takes
# At the start of an epoch, on 2 cores: a worker that stays is told and answers; a sample is shuffled.
_RESUMED_S, _SHUFFLED_S = 0.3e-3, 50e-9


def change_workers(m: Measured) -> Remedy | None:
    """More or fewer workers: the best that was tried in the loop itself, else by the model."""
    tried = {n: around(tried_gain(m, n)) for n in m.trials if n != m.workers}
    good = {n: p for n, p in tried.items() if p.speedup > NOTHING}
    pinned = m.pipeline
    if good:
        best = max(prediction.speedup for prediction in good.values())
        n = min(n for n in good if good[n].speedup * NOTHING >= best)
        prediction, then, basis = good[n], pinned.with_(workers=n * m.each_worker), "measured"
    else:
        n = best_workers(pinned, m.most_workers, m.each_worker)
        if m.workers == n or m.idle.count:  # those that are there have no data
            return None
        then = pinned.with_(workers=n * m.each_worker)
        prediction, basis = predict_change(pinned, then, m.step_s), "predicted"
        if n in tried:
            # It was tried, and the trial is the better witness.
            prediction, basis = tried[n], "measured"
        elif tried and prediction.speedup > NOTHING:
            return None
    word = "more-workers" if n > m.workers else "fewer-workers"
    note = ""
    if m.loader.get("iterable"):
        note = (
            "an IterableDataset must share its samples among workers itself, or each worker repeats them all"
        )
    each = " in each loader" if len(m.loop.loaders) > 1 else ""
    return make_remedy(
        m, word, f"use {n} worker{'s' if n > 1 else ''}{each} instead of {m.workers}", prediction, then,
        basis=basis, note=note,
        change=f"DataLoader(..., num_workers={n}, persistent_workers=True)",
    )  # fmt: skip


def persist_workers(m: Measured) -> Remedy | None:
    """Workers that stay for the next epoch."""
    pause = m.loop.per_step("epoch-start") / m.step_s
    is_anew = m.is_loader_made_anew
    if m.workers == 0 or (m.loader.get("persistent_workers") and not is_anew) or pause < 0.02:
        return None
    own_s, start_s = _without_starts(m)
    between_s = m.between_s - m.loop.per_step("epoch-start") + start_s
    prediction = around(m.step_s / (own_s + between_s))
    return make_remedy(
        m, "persistent-workers",
        "make the loader once, and keep its workers" if is_anew else "keep the workers between epochs",
        prediction, m.pipeline.with_(between_s=between_s),
        change=f"DataLoader(..., persistent_workers=True){' before the epochs, once' if is_anew else ''}",
    )  # fmt: skip


def _without_starts(m: Measured) -> tuple[float, float]:
    """Return a step's own seconds with workers that stay, and what then begins an epoch, per step."""
    # The first batch of every worker waits for the start of that worker, whichever comes first of all.
    settled, since = [], m.workers
    for step in m.loop.steps:
        since = 0 if step.is_first else since + 1
        if since >= m.workers:
            settled.append(step)
    settled = settled or list(m.loop.steps)
    # Nobody made an epoch's first batch in advance; before it all workers are told, and samples are shuffled.
    first_s = max(m.pipeline.fetch_s - mean(step.wait_s for step in settled), 0.0)
    first_s += _RESUMED_S * m.workers + _SHUFFLED_S * (m.loader.get("dataset_len") or 0)
    start_s = first_s * m.loop.epochs / len(m.loop.steps)
    return mean(step.own_s for step in settled), min(start_s, m.loop.per_step("epoch-start"))


def unpin_workers(m: Measured) -> Remedy | None:
    """The workers on all usable cores."""
    sets = [set(fact["affinity"]) for fact in m.worker_facts if fact.get("affinity")]
    allowed = len(set().union(*sets)) if sets else 0
    if not sets or allowed >= min(m.workers, int(m.around.cores)):
        return None
    now = m.pipeline.with_(cores=float(allowed))
    then = now.with_(cores=m.pipeline.cores)
    return make_remedy(
        m, "unpin-workers", f"let the workers run on all {m.around.cores:.0f} cores instead of {allowed}",
        predict_change(now, then, m.step_s), then,
        change="remove the sched_setaffinity or taskset, or ask the scheduler for --cpus-per-task",
    )  # fmt: skip


def lighten_handover(m: Measured) -> Remedy | None:
    sample = m.sample
    if sample is None or m.workers == 0 or m.views is not None:  # of these, cloning helps
        return None
    n, now = m.samples_per_step, m.pipeline
    cost = sample.kind("collate").cpu_s * n + m.feeder_cpu_s
    if cost + now.handover_s < 0.05 * m.step_s:
        return None
    if m.batch_bytes < _PICKLED_BYTES_PER_S * m.feeder_cpu_s:
        kept, title = _OBJECTS_KEPT, "hand over tensors instead of Python objects, and only what is used"
    elif m.is_batch_of_floats:
        # Making floats of bytes goes with the copying of floats, as far as memory is what it waits for.
        making = sample.kind("rest").plus(sample.kind("transform")).cpu_s * n
        cost += min(making, m.batch_bytes / _WRITTEN_BYTES_PER_S)
        kept, title = 0.25, "hand over uint8 and make floats of it in the training process"
    else:
        return None
    prediction, then = change(
        m, fetch_cpu_s=now.fetch_cpu_s - (1 - kept) * cost, handover_s=now.handover_s * kept
    )
    return make_remedy(m, "lighter-handover", title, prediction, then)


def decode_faster(m: Measured) -> Remedy | None:
    """Our kernel instead of the user's decoder, through a pack."""
    sample, data = m.sample, m.around.data
    if sample is None or data is None or m.reads_pack:
        return None
    decode = sample.kind("decode")
    if decode.cpu_s <= 0:
        return None
    timed, saved = m.kernel, _replaced(m)
    if timed is None or not timed.taken:
        return Remedy(
            "faster-decode", "decode with feedrate's kernel", 1.0, 1.0, 1.0,
            note="no image files were seen: what feedrate's decoder takes for them is unknown"
            if timed is None
            else f"it decodes baseline JPEGs; {timed.left_words}, and it would hand them to Pillow",
        )  # fmt: skip
    # What it does not take, Pillow goes on decoding.
    ours_s = saved.cpu_s * (1 - timed.taken_share) + timed.cpu_s_per_image * timed.taken / timed.tried
    prediction, then = _decode_in(m, ours_s)
    source = shlex.quote(data.folder)
    part = "only what the crop needs" if crops(m) else "them"
    return make_remedy(
        m, "faster-decode", f"pack the images and let feedrate decode {part}",
        prediction, then, decode_s=ours_s, command=f"feedrate pack {source} PACK",
        change="feedrate.Dataset('PACK', transform=...) in the DataLoader, or feedrate.Loader('PACK', ...)",
        note=f"{timed.left_words}, which Pillow goes on decoding" if timed.left else
        f"{format_seconds(timed.cpu_s_per_image)} of CPU an image instead of "
        f"{format_seconds(saved.cpu_s)}, on these files",
    )  # fmt: skip


def normalise_images(m: Measured) -> Remedy | None:
    """Images that our kernel does not take, stored once as what it takes."""
    timed, data = m.kernel, m.around.data
    if m.sample is None or data is None or timed is None or m.sample.kind("decode").cpu_s <= 0:
        return None
    if timed.taken_share > _MOSTLY_TAKEN or not timed.stored_cpu_s:
        return None
    ours_s = (timed.cpu_s_per_image * timed.taken + timed.stored_cpu_s * timed.left) / timed.tried
    prediction, then = _decode_in(m, ours_s)
    is_mapped = "--map" in timed.stored_by
    # Title and note are as short as to be seen whole on one screen.
    note = "no pixel changes" if timed.is_lossless else "changes pixels; with --raw, none"
    return make_remedy(
        m, "normalise",
        "pack 8-bit pixels that your function makes"
        if is_mapped
        else "pack the images as baseline JPEGs for feedrate's decoder",
        prediction, then, decode_s=ours_s,
        command=f"feedrate pack {shlex.quote(data.folder)} PACK {timed.stored_by}",
        change="feedrate.Dataset('PACK', transform=...) in the DataLoader, or feedrate.Loader('PACK', ...)",
        note="it chooses what becomes of more than 8 bits" if is_mapped else note,
    )  # fmt: skip


def _decode_in(m: Measured, seconds: float) -> tuple[Prediction, Pipeline]:
    """Predict the run with a Dataset that takes so many seconds for a sample's image."""
    saved = (_replaced(m).cpu_s - seconds) * m.samples_per_step
    return change(m, fetch_cpu_s=m.pipeline.fetch_cpu_s - saved)


def _replaced(m: Measured) -> Cost:
    """Return what of a sample's cost a Dataset of a pack does instead: opening, decoding, cropping, resizing.

    It gives images of Pillow, as the decoder did: making tensors of them stays.
    """
    sample, cost = m.sample, decoding(m)
    if sample is None:
        return cost
    if cost.cpu_s > sample.kind("decode").cpu_s:
        for (kind, name), part in sample.parts.items():
            if kind == "transform" and name in _MAKING_TENSORS:
                cost = cost.minus(part)
    return cost.plus(sample.kind("read"))


def pack_files(m: Measured) -> Remedy | None:
    """Few big files instead of many small ones: saves what opening and seeking cost, not the decoding."""
    sample, data = m.sample, m.around.data
    if sample is None or data is None or m.reads_pack:
        return None
    blocked = read_blocked(m)
    share = blocked.blocked_s / max(sample.total.wall_s, 1e-9)
    source = shlex.quote(data.folder)
    if share < 0.05:
        # With feedrate's decoder on top it may: that is a remedy of its own.
        decoder = decode_faster(m)
        alone = "packing alone" if decoder is not None and decoder.predicted_speedup > NOTHING else "packing"
        return Remedy(
            "pack", "pack the files", 1.0, 1.0, 1.02, command=None,
            note=f"{alone} will not help: reads are {share:.0%} of the time",
        )  # fmt: skip
    # Small files cost round trips: open, read, close. A pack is read in ranges that are known in advance.
    kept = 0.25 if data.mean_bytes < 1e6 else 0.8
    now = m.pipeline
    saved = blocked.blocked_s * (1 - kept) * m.samples_per_step
    prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - saved)
    return make_remedy(
        m, "pack", f"pack files of {format_bytes(data.mean_bytes)} into a few big ones", prediction, then,
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
    return make_remedy(
        m, "stage", f"copy the data{size} to {around_.scratch} once, and read it there", prediction, then,
        command=f"feedrate stage {shlex.quote(data.folder)} --to {shlex.quote(around_.scratch)}",
        change="read from the folder that it prints",
    )  # fmt: skip


def vectorise_transform(m: Measured) -> Remedy | None:
    """Array operations instead of a Python loop in the user's own code."""
    sample = m.sample
    if sample is None:
        return None
    own = transforming(m)
    # What is one call into a library already has nothing to gain from array operations.
    hot = next((p for p in m.looks_fetch.own if p.is_python or is_in_loop(p.place)), None)
    if hot is None or hot.share < 0.2 or own.cpu_s < 0.05 * sample.total.wall_s:
        return None
    # The looks say how much of the sample's time falls on that function; a loop that has most of them is most
    # of what no named part explains.
    cost = min(own.cpu_s, hot.share * sample.total.wall_s)
    if hot.is_python and hot.share > 0.5:
        cost = max(cost, 0.95 * own.cpu_s)
    now = m.pipeline
    prediction, then = change(m, fetch_cpu_s=now.fetch_cpu_s - cost * (1 - VECTORISED) * m.samples_per_step)
    return make_remedy(
        m,
        "vectorise-transform",
        f"replace the Python loop in {hot.function} ({hot.place}) by array operations",
        prediction,
        then,
    )
