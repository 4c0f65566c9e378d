# SPDX-License-Identifier: Apache-2.0
"""Causes and remedies inside a DataLoader: storage, decoding, transforms, workers and their hand-over."""

from __future__ import annotations

import shlex
from statistics import mean

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.analyse.stacks import HotPlace, is_in_loop
from feedrate.doctor.findings.caching import repeated_share
from feedrate.doctor.findings.evidence import (
    VECTORISED,
    WORTH_TELLING,
    Evidence,
    lost_share,
    make_evidence,
    make_remedy,
    predict_pipeline,
    predict_saving,
    predict_times,
    saved_by,
    share_of,
    tried_gain,
    wait_words,
    waits_for_data,
    weigh,
)
from feedrate.doctor.findings.step_parts import freeing_s
from feedrate.doctor.results import GAIN_WORTH_NAMING, RUN, Remedy
from feedrate.model.pipeline import around, best_workers
from feedrate.units import format_bytes, format_count, format_seconds

STARVED_GAIN = 1.15  # more workers must give this much to be the cause
OVERSUBSCRIBED_GAIN = 1.08
_SMALL_FILE_BYTES = 1e6


def find_starved_workers(m: Measured) -> Evidence | None:
    if not waits_for_data(m):
        return None
    # Several loaders rarely work all at once: what was tried, with no more workers in each than there are
    # cores, tells more than the rule of a core for each.
    most = int(m.machine.cores)
    tried = {n: tried_gain(m, n) for n in m.experiments.trials if m.loader.workers < n <= most}
    if tried:
        number = max(tried, key=lambda n: tried[n])
        gain, how = tried[number], "tried in this run"
    else:
        now = m.pipeline
        number = best_workers(now, m.most_workers, m.each_worker)
        if number <= m.loader.workers or m.loader.idle.count:  # more would have no data either
            return None
        gain, how = now.gain_of(now.with_(workers=number * m.each_worker)), "by the cost model"
    if gain < STARVED_GAIN:
        return None
    workers = format_count(m.loader.workers, "worker") if m.loader.workers else "no worker"
    lines = [
        f"{workers} on {m.machine.cores:.0f} usable cores; {number} give {gain:.2f}x ({how})",
        wait_words(m),
    ]
    if m.samples.cost.samples:
        lines.append(f"a sample takes {format_seconds(m.samples.cost.total.wall_s)} to make")
    numbers = {"workers": m.loader.workers, "better_workers": number, "gain": round(gain, 3)}
    return make_evidence(m, lost_share(m, gain), lines, numbers)


def find_slow_decoding(m: Measured) -> Evidence | None:
    sample, decode = m.samples.cost, m.samples.decoding
    share = share_of(m, Cost(decode.cpu_s))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"decoding and resizing ({sample.largest('decode')}) take {format_seconds(decode.cpu_s)} of CPU a "
        f"sample, {decode.wall_s / sample.total.wall_s:.0%} of the {format_seconds(sample.total.wall_s)} "
        "that it takes",
        wait_words(m),
    ]
    if m.tried.kernel is not None and m.tried.kernel.taken:
        ours = format_seconds(m.tried.kernel.cpu_s_per_image)
        rest = f"; {m.tried.kernel.left_words}, which it does not take" if m.tried.kernel.left else ""
        lines.append(f"feedrate's decoder takes {ours} on {'the same files' if not rest else 'JPEGs'}{rest}")
    numbers = {"decode_cpu_s": decode.cpu_s, "sample_s": sample.total.wall_s}
    cause = (
        "Images are decoded whole, on the CPU, and the crop throws a part away."
        if m.samples.are_cropped
        else ""
    )
    if m.loader.reads_pack:
        cause = "feedrate decodes the pack's images in the DataLoader's workers, on the CPU."
    return make_evidence(m, share, lines, numbers, cause)


def find_slow_transforms(m: Measured) -> Evidence | None:
    sample, own = m.samples.cost, m.samples.transforming
    share = share_of(m, Cost(own.cpu_s))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"the dataset's own code takes {format_seconds(own.cpu_s)} of CPU a sample, "
        f"{own.wall_s / sample.total.wall_s:.0%} of it",
        *(word_place(place) for place in m.samples.looks.own[:2] if place.share > 0.1),
    ]
    if largest := sample.largest("transform"):
        lines.append(f"largest named transform: {largest}")
    lines.append(wait_words(m))
    return make_evidence(m, share, lines, {"transform_cpu_s": own.cpu_s, "sample_s": sample.total.wall_s})


def word_place(place: HotPlace) -> str:
    how = ", a Python loop" if place.is_python else ""
    source = f": {place.source}" if place.source else ""
    return f"{place.function} ({place.place}) has {place.share:.0%} of the looks{how}{source}"


def find_slow_storage(m: Measured) -> Evidence | None:
    sample, data, blocked_s = m.samples.cost, m.machine.data, m.samples.read_blocked_s
    share = share_of(m, Cost(blocked_s=blocked_s))
    if share < WORTH_TELLING:
        return None
    rate = format_bytes(sample.read_bytes / max(blocked_s, 1e-9))
    lines = (
        f"a sample waits {format_seconds(blocked_s)} for storage, "
        f"{blocked_s / sample.total.wall_s:.0%} of its time",
        word_storage(m),
        f"{format_bytes(sample.read_bytes)} are read a sample, at {rate}/s",
    )
    small = data is not None and data.mean_bytes < _SMALL_FILE_BYTES and data.files_seen > 50
    why = "many small files, each of which costs round trips" if small else "the storage gives no more"
    numbers = {
        "blocked_s": blocked_s,
        "read_bytes": sample.read_bytes,
        "kind": data.kind if data else None,
    }
    return make_evidence(m, share, lines, numbers, f"Reading is slow: {why}.")


def word_storage(m: Measured) -> str:
    data = m.machine.data
    if data is None:
        return "where the files lie is unknown"
    if data.is_network:
        where = f"a network mount ({data.kind}, {data.source})"
    elif data.is_fuse:
        where = f"a FUSE file system ({data.kind})"
    else:
        disks = {True: "a spinning disk", False: "a solid-state disk", None: "a local disk"}
        where = f"{disks[data.is_rotational]} ({data.kind})"
    files = f"{data.files_seen:,} files seen, of {format_bytes(data.mean_bytes)}"
    return f"{files}, in {data.shown_folder}, on {where}"


def find_cold_cache(m: Measured) -> Evidence | None:
    """Local files that are simply not in memory yet."""
    sample, again, data = m.samples.cost, m.samples.again, m.machine.data
    if not again.samples or data is None or data.is_network or data.is_fuse:
        return None
    if sample.device_bytes <= 0.3 * sample.read_bytes:
        return None
    cold_s, warm_s = m.samples.read_blocked_s, again.total.blocked_s
    if warm_s > 0.5 * cold_s:
        return None
    limit = m.machine.memory_limit_bytes
    if limit and data.dataset_bytes and data.dataset_bytes > 0.8 * limit:
        return None  # the next epoch will be as cold as this one
    share = share_of(m, Cost(blocked_s=cold_s))
    if share < WORTH_TELLING:
        return None
    lines = (
        f"a sample waits {format_seconds(cold_s)} for the disk, {format_seconds(warm_s)} when it is read "
        "again",
        _word_disk(sample.device_bytes, sample.read_bytes),
        word_storage(m),
    )
    return make_evidence(m, share, lines, {"cold_s": cold_s, "warm_s": warm_s})


def _word_disk(given: float, read: float) -> str:
    if not read:
        return f"the disk gave {format_bytes(given)} a sample, for files that are mapped into memory"
    if given <= 1.05 * read:
        return f"{min(given / read, 1.0):.0%} of the bytes came from the disk, not memory"
    return (
        f"the disk gave {format_bytes(given)} for the {format_bytes(read)} that a sample reads: it reads "
        "ahead, or whole blocks"
    )


def find_slow_handover(m: Measured) -> Evidence | None:
    sample, freed = m.samples.cost, freeing_s(m)
    if not sample.samples or (not waits_for_data(m) and freed < WORTH_TELLING * m.loop.step_s):
        return None
    n, now = m.loop.samples_per_step, m.pipeline
    collate = sample.kind("collate")
    then = now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - collate.cpu_s * n - m.samples.feeder_cpu_s, 0.0),
        fetch_blocked_s=max(now.fetch_blocked_s - collate.blocked_s * n, 0.0),
        handover_s=0.0,
    )
    in_loader = lost_share(m, now.gain_of(then))
    share = min(in_loader + freed / m.loop.step_s, 1.0)
    if share < WORTH_TELLING:
        return None
    size, unseen, collate_s = m.loader.batch_bytes, m.unseen_s, collate.wall_s * n
    pickle_s, receive_s = m.samples.feeder_cpu_s, m.samples.receive_cpu_s
    made_s = max(sample.total.wall_s - collate.wall_s, 0.0) * n
    handed_s = collate_s + pickle_s + receive_s + unseen + freed
    given_back = [f"giving a batch's memory back takes {format_seconds(freed)}"]
    lines = (
        *(given_back if freed > in_loader * m.loop.step_s else []),
        f"a batch takes {format_seconds(collate_s)} to collate, {format_seconds(pickle_s)} to pickle, "
        f"{format_seconds(receive_s)} to receive",
        f"its samples take {format_seconds(made_s)} to make",
        *([f"{format_seconds(unseen)} more pass on its way"] if unseen > 0.05 * handed_s else []),
        f"a batch is {format_bytes(size)} of tensors" if size else "a batch holds no tensors: it is pickled",
        *(given_back if 0.01 * m.loop.step_s < freed <= in_loader * m.loop.step_s else []),
    )
    numbers = {
        "collate_s": collate_s, "pickle_s": pickle_s, "receive_s": receive_s, "batch_bytes": size,
    }  # fmt: skip
    cause = "Collating, pickling and shared memory cost more than the samples." if handed_s > made_s else ""
    weight = weigh(m, in_loader) + freed / m.loop.step_s
    return Evidence(share, lines, numbers, cause, weight)


def find_too_many_workers(m: Measured) -> Evidence | None:
    if not m.samples.cost.samples or m.loader.workers <= m.machine.cores:
        return None
    fewer = {n: tried_gain(m, n) for n in m.experiments.trials if n < m.loader.workers}
    best = max(fewer, key=lambda n: fewer[n], default=None)
    if best is None or fewer[best] < OVERSUBSCRIBED_GAIN:
        return None
    cores = f"{m.machine.cores:.0f} usable core{'' if m.machine.cores == 1 else 's'}"
    lines = (
        f"{m.loader.workers} workers on {cores}; {best} give {fewer[best]:.2f}x (tried in this run)",
        f"a sample spends {m.samples.queue_share:.0%} of its time waiting for a core",
    )
    return Evidence(saved_by(fewer[best]), lines, {"workers": m.loader.workers, "better_workers": best})


def find_pinned_workers(m: Measured) -> Evidence | None:
    allowed = m.loader.allowed_cores
    if not allowed or not waits_for_data(m):
        return None
    useful = min(m.loader.workers, int(m.machine.cores))
    queue = m.samples.queue_share
    if len(allowed) >= useful or queue < 0.1:
        return None
    # As many more cores as are usable, for a loader that waits for cores.
    cores = ", ".join(map(str, sorted(allowed)))
    lines = (
        f"{m.loader.workers} workers may run on core {cores} only, of {m.machine.cores:.0f} usable ones",
        f"a sample spends {queue:.0%} of its time waiting for a core",
        wait_words(m),
    )
    numbers = {"cores": len(allowed), "usable_cores": m.machine.cores}
    return make_evidence(m, lost_share(m, useful / len(allowed)), lines, numbers)


def find_repeated_work(m: Measured) -> Evidence | None:
    """Heavy preprocessing in compiled code that is the same every epoch; decoding alone is not meant."""
    sample, repeated_part = m.samples.cost, repeated_share(m)
    if repeated_part is None or repeated_part < 0.5 or m.loop.is_single_pass:
        return None
    repeated = m.samples.transforming.cpu_s * min(repeated_part, 1.0)
    # A Python loop is slow because it is one: that is the transform's finding.
    interpreted = sum(place.share for place in m.samples.looks.own if place.is_python)
    if interpreted > 0.4 or repeated < 0.4 * (sample.total.cpu_s + m.samples.helpers_s):
        return None
    share = share_of(m, Cost(repeated))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"{format_seconds(repeated)} of CPU a sample, besides reading and decoding, repeat in every epoch",
        "the same samples gave the same batch twice"
        if m.experiments.is_repeatable
        else "it happens before a sample's first random number",
        *(word_place(place) for place in m.samples.looks.own[:1]),
        wait_words(m),
    ]
    return make_evidence(m, share, lines, {"repeated_cpu_s": repeated, "sample_s": sample.total.wall_s})


_WRITTEN_BYTES_PER_S = 2.5e9  # floats made of bytes, on one core
_PICKLED_BYTES_PER_S = 1e8  # a batch whose tensors are fewer bytes than that was pickled, not shared
_MOSTLY_TAKEN = 0.8  # of the decoding, what our kernel takes as it is: little is left to normalise
RUN_COMMAND = "feedrate run --"  # and then the user's own
_BY_PILLOW = ("decode", "PIL")
_MAKING_TENSORS = ("PIL.tobytes", "ToTensor", "PILToTensor", "ToImage", "ToDtype")
_OBJECTS_KEPT = 0.01  # of passing objects on, what passing on handles of tensors takes
# At the start of an epoch, on 2 cores: a worker that stays is told and answers; a sample is shuffled.
_RESUMED_S, _SHUFFLED_S = 0.3e-3, 50e-9


def change_workers(m: Measured) -> Remedy | None:
    """More or fewer workers: the best that was tried in the loop itself, else by the model."""
    tried = {n: around(tried_gain(m, n)) for n in m.experiments.trials if n != m.loader.workers}
    good = {n: p for n, p in tried.items() if p.speedup > GAIN_WORTH_NAMING}
    if good:
        best = max(prediction.speedup for prediction in good.values())
        n = min(n for n in good if good[n].speedup * GAIN_WORTH_NAMING >= best)
    else:
        n = best_workers(m.pipeline, m.most_workers, m.each_worker)
        if m.loader.workers == n or m.loader.idle.count:  # those that are there have no data
            return None
    prediction, then = predict_pipeline(m, m.pipeline.with_(workers=n * m.each_worker))
    if n in tried:
        prediction = tried[n]  # the better witness
    elif tried and prediction.speedup > GAIN_WORTH_NAMING:
        return None
    alone = "an IterableDataset must share its samples among workers itself, or each worker repeats them all"
    each = " in each loader" if len(m.loop.loaders) > 1 else ""
    return make_remedy(
        m, "more-workers" if n > m.loader.workers else "fewer-workers",
        f"use {n} worker{'s' if n > 1 else ''}{each} instead of {m.loader.workers}", (prediction, then),
        basis="measured" if n in tried else "predicted", note=alone if m.loader.get("iterable") else "",
        change=f"DataLoader(..., num_workers={n}, persistent_workers=True)",
    )  # fmt: skip


def persist_workers(m: Measured) -> Remedy | None:
    """Workers that stay for the next epoch."""
    pause = m.loop.per_step("epoch-start") / m.loop.step_s
    is_anew = m.loader.is_made_anew
    if m.loader.workers == 0 or (m.loader.get("persistent_workers") and not is_anew) or pause < 0.02:
        return None
    own_s, start_s = _without_starts(m)
    between_s = m.loop.between_s - m.loop.per_step("epoch-start") + start_s
    return make_remedy(
        m, "persistent-workers",
        "make the loader once, and keep its workers" if is_anew else "keep the workers between epochs",
        (around(m.loop.step_s / (own_s + between_s)), m.pipeline.with_(between_s=between_s)),
        change=f"DataLoader(..., persistent_workers=True){' before the epochs, once' if is_anew else ''}",
    )  # fmt: skip


def _without_starts(m: Measured) -> tuple[float, float]:
    """Return a step's own seconds with workers that stay, and what then begins an epoch, per step."""
    # The first batch of every worker waits for the start of that worker, whichever comes first of all.
    settled, since = [], m.loader.workers
    for step in m.loop.steps:
        since = 0 if step.is_first else since + 1
        if since >= m.loader.workers:
            settled.append(step)
    settled = settled or list(m.loop.steps)
    # Nobody made an epoch's first batch in advance; before it all workers are told, and samples are shuffled.
    first_s = max(m.pipeline.fetch_s - mean(step.wait_s for step in settled), 0.0)
    first_s += _RESUMED_S * m.loader.workers + _SHUFFLED_S * (m.loader.get("dataset_len") or 0)
    start_s = first_s * m.loop.epochs / len(m.loop.steps)
    return mean(step.own_s for step in settled), min(start_s, m.loop.per_step("epoch-start"))


def unpin_workers(m: Measured) -> Remedy | None:
    """The workers on all usable cores."""
    allowed = len(m.loader.allowed_cores)
    if not allowed or allowed >= min(m.loader.workers, int(m.machine.cores)):
        return None
    now = m.pipeline.with_(cores=float(allowed))
    return make_remedy(
        m, "unpin-workers", f"let the workers run on all {m.machine.cores:.0f} cores instead of {allowed}",
        predict_pipeline(m, now.with_(cores=m.pipeline.cores), now),
        change="remove the sched_setaffinity or taskset, or ask the scheduler for --cpus-per-task",
    )  # fmt: skip


def lighten_handover(m: Measured) -> Remedy | None:
    sample = m.samples.cost
    if not sample.samples or m.loader.workers == 0 or m.loader.views is not None:  # of these, cloning helps
        return None
    n, now = m.loop.samples_per_step, m.pipeline
    cost = sample.kind("collate").cpu_s * n + m.samples.feeder_cpu_s
    if cost + now.handover_s < 0.05 * m.loop.step_s:
        return None
    if m.loader.batch_bytes < _PICKLED_BYTES_PER_S * m.samples.feeder_cpu_s:
        kept, title = _OBJECTS_KEPT, "hand over tensors instead of Python objects, and only what is used"
    elif m.loader.is_batch_of_floats:
        # Making floats of bytes goes with the copying of floats, as far as memory is what it waits for.
        making = sample.kind("rest").plus(sample.kind("transform")).cpu_s * n
        cost += min(making, m.loader.batch_bytes / _WRITTEN_BYTES_PER_S)
        kept, title = 0.25, "hand over uint8 and make floats of it in the training process"
    else:
        return None
    changed = predict_times(
        m, fetch_cpu_s=now.fetch_cpu_s - (1 - kept) * cost, handover_s=now.handover_s * kept
    )
    return make_remedy(m, "lighter-handover", title, changed)


def decode_faster(m: Measured) -> Remedy | None:
    """Our kernel instead of the user's decoder, through a pack."""
    sample, data = m.samples.cost, m.machine.data
    if data is None or m.loader.reads_pack or sample.kind("decode").cpu_s <= 0:
        return None
    timed, replaced_s = m.tried.kernel, _replaced_s(m)
    if timed is None or not timed.taken:
        return Remedy(
            "faster-decode", "decode with feedrate's kernel", 1.0, 1.0, 1.0,
            note="no image files were seen: what feedrate's decoder takes for them is unknown"
            if timed is None
            else f"it decodes baseline JPEGs; {timed.left_words}, and it would hand them to Pillow",
        )  # fmt: skip
    # What it does not take, Pillow goes on decoding.
    ours_s = replaced_s * (1 - timed.taken_share) + timed.cpu_s_per_image * timed.taken / timed.tried
    part = "only what the crop needs" if m.samples.are_cropped else "them"
    return make_remedy(
        m, "faster-decode", f"pack the images and let feedrate decode {part}",
        predict_saving(m, replaced_s - ours_s), decode_s=ours_s, command=data.pack_command,
        change=_say_use(m, needs_depth=timed.deep > 0),
        note=_warn_of_more(m) + (
            f"{timed.left_words}, which Pillow goes on decoding" if timed.left else
            f"{format_seconds(timed.cpu_s_per_image)} of CPU an image instead of "
            f"{format_seconds(replaced_s)}, on these files"
        ),
    )  # fmt: skip


def run_as_it_is(m: Measured) -> Remedy | None:
    """Our kernel under the script's own Pillow, by `feedrate run`: no line of it changes."""
    sample, timed = m.samples.cost, m.tried.kernel
    if not sample.samples or timed is None or not timed.taken or m.loader.reads_pack:
        return None
    if sample.parts.get(_BY_PILLOW, Cost()).cpu_s < _MOSTLY_TAKEN * sample.kind("decode").cpu_s:
        return None  # cv2 and others read files by themselves
    replaced_s = _replaced_s(m)
    ours_s = replaced_s * (1 - timed.taken_share) + timed.cpu_s_per_image * timed.taken / timed.tried
    return make_remedy(
        m, RUN, "start it by feedrate run: the same batches to the last bit, nothing edited",
        predict_saving(m, replaced_s - ours_s), decode_s=ours_s, command=RUN_COMMAND,
        note="from the second epoch on; in the first about half of that",
    )  # fmt: skip


def _say_use(m: Measured, *, needs_depth: bool) -> str | None:
    """Return the lines that read the pack; None: they would read other samples than the script does."""
    call = m.tried.call
    if call is not None and call.reads_others:
        return None
    more = "..., depth=(LOW, HIGH)" if needs_depth else "..."
    split = call.options.get("split") if call is not None else None
    pack = "'PACK'" if split is None else f"'PACK', split={split}"
    return f"feedrate.Dataset({pack}, transform={more}) in the DataLoader, or feedrate.Loader({pack}, {more})"


def normalise_images(m: Measured) -> Remedy | None:
    """Images that our kernel does not take, stored once as what it takes."""
    timed, data = m.tried.kernel, m.machine.data
    if data is None or timed is None or m.samples.cost.kind("decode").cpu_s <= 0:
        return None
    if timed.taken_share > _MOSTLY_TAKEN or not timed.stored_cpu_s:
        return None
    ours_s = (timed.cpu_s_per_image * timed.taken + timed.stored_cpu_s * timed.left) / timed.tried
    is_mapped = "--map" in timed.stored_by
    # Title and note are as short as to be seen whole on one screen.
    note = "no pixel changes" if timed.is_lossless else "changes pixels; with --raw, none"
    return make_remedy(
        m, "normalise",
        "pack 8-bit pixels that your function makes"
        if is_mapped
        else "pack the images as baseline JPEGs for feedrate's decoder",
        predict_saving(m, _replaced_s(m) - ours_s), decode_s=ours_s,
        command=f"{data.pack_command} {timed.stored_by}",
        change=_say_use(m, needs_depth=timed.deep > 0 and not is_mapped),
        note=_warn_of_more(m) + ("it chooses what becomes of more than 8 bits" if is_mapped else note),
    )  # fmt: skip


def _warn_of_more(m: Measured) -> str:
    """Say where a pack of the folder has other samples than the script's dataset."""
    call = m.tried.call
    return f"{call.why_not}; " if call is not None and call.reads_others else ""


def _replaced_s(m: Measured) -> float:
    """Return what of a sample's CPU time a Dataset takes in its place: opening, decoding, cropping, resizing.

    It gives images of Pillow, as the decoder did: making tensors of them stays.
    """
    sample, cost = m.samples.cost, m.samples.decoding
    if cost.cpu_s > sample.kind("decode").cpu_s:
        for (kind, name), part in sample.parts.items():
            if kind == "transform" and name in _MAKING_TENSORS:
                cost = cost.minus(part)
    return cost.cpu_s + sample.kind("read").cpu_s


def pack_files(m: Measured) -> Remedy | None:
    """Few big files instead of many small ones: saves what opening and seeking cost, not the decoding."""
    sample, data = m.samples.cost, m.machine.data
    if not sample.samples or data is None or m.loader.reads_pack:
        return None
    blocked_s = m.samples.read_blocked_s
    share = blocked_s / max(sample.total.wall_s, 1e-9)
    if share < 0.05:
        # With feedrate's decoder on top it may help: that is a remedy of its own.
        decoder = decode_faster(m)
        alone = " alone" if decoder is not None and decoder.helps else ""
        return Remedy(
            "pack", f"pack the files{alone}", 1.0, 1.0, 1.02, note=f"reads are {share:.0%} of the time"
        )
    # Small files cost round trips: open, read, close. A pack is read in ranges that are known in advance.
    kept = 0.25 if data.mean_bytes < 1e6 else 0.8
    return make_remedy(
        m, "pack", f"pack files of {format_bytes(data.mean_bytes)} into a few big ones",
        predict_saving(m, blocked_s=blocked_s * (1 - kept)), command=data.pack_command,
    )  # fmt: skip


def stage_to_scratch(m: Measured) -> Remedy | None:
    """Copy the data, or the pack, to local scratch once: reads then cost what scratch gives."""
    sample, data, place, loader = m.samples.cost, m.machine.data, m.machine, m.loader
    if loader.is_of_pack and (loader.get("scratch") or m.samples.stages is None):
        return None
    blocked_s = m.samples.read_blocked_s
    if blocked_s <= 0.05 * sample.total.wall_s:
        return None
    if loader.is_of_pack and loader.get("remote"):
        return make_remedy(
            m, "stage", "copy the pack to a disk of this machine while it is read",
            predict_saving(m, blocked_s=blocked_s),
            change='Loader(..., scratch="auto")', note="from the second epoch on",
        )  # fmt: skip
    if data is None or place.scratch is None or place.scratch_bytes_per_s is None:
        return None
    saved_s = max(blocked_s - sample.read_bytes / place.scratch_bytes_per_s, 0.0)
    size = f" ({format_bytes(data.dataset_bytes)})" if data.dataset_bytes else ""
    what, edit = f"data{size}", "read from the folder that it prints"
    if loader.is_of_pack:
        what, edit = "pack", f'Loader(..., scratch="{place.scratch}")'
    return make_remedy(
        m, "stage", f"copy the {what} to {place.scratch} once, and read it there",
        predict_saving(m, blocked_s=saved_s),
        command=f"feedrate stage {data.source_word} --scratch {shlex.quote(place.scratch)}", change=edit,
    )  # fmt: skip


def vectorise_transform(m: Measured) -> Remedy | None:
    """Array operations instead of a Python loop in the user's own code."""
    sample, own = m.samples.cost, m.samples.transforming
    # What is one call into a library already has nothing to gain from array operations.
    hot = next((p for p in m.samples.looks.own if p.is_python or is_in_loop(p.place)), None)
    if hot is None or hot.share < 0.2 or own.cpu_s <= 0.05 * sample.total.wall_s:
        return None
    # The looks say how much of the sample's time falls on that function; a loop that has most of them is most
    # of what no named part explains.
    cost = min(own.cpu_s, hot.share * sample.total.wall_s)
    if hot.is_python and hot.share > 0.5:
        cost = max(cost, 0.95 * own.cpu_s)
    title = f"replace the Python loop in {hot.function} ({hot.place}) by array operations"
    return make_remedy(m, "vectorise-transform", title, predict_saving(m, cost * (1 - VECTORISED)))
