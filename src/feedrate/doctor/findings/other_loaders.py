# SPDX-License-Identifier: Apache-2.0
"""Causes and remedies of a feedrate.Loader, which tells which of its stages the training waits for."""

from __future__ import annotations

from dataclasses import replace

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.findings import loop
from feedrate.doctor.findings.evidence import (
    WORTH_TELLING,
    Evidence,
    lost_share,
    make_evidence,
    make_remedy,
    predict_pipeline,
    predict_saving,
    predict_times,
    share_of,
    shortened,
    wait_words,
    waits_for_data,
)
from feedrate.doctor.findings.loader import STARVED_GAIN, word_storage
from feedrate.doctor.results import Remedy
from feedrate.model.pipeline import Prediction
from feedrate.units import format_bytes, format_count, format_seconds

MANY_BY_PILLOW = 0.05  # of the images: from here on it is worth a word


def find_slow_storage(m: Measured) -> Evidence | None:
    sample, stages = m.samples.cost, m.samples.stages
    if stages is None:
        return None
    blocked_s = m.samples.read_blocked_s
    share = share_of(m, Cost(blocked_s=blocked_s))
    if share < WORTH_TELLING:
        return None
    lines, drain, again = [wait_words(m)], m.experiments.drain, m.experiments.again
    if m.loader.get("remote"):
        waiting = f"the loader's threads wait {stages.share('fetch'):.0%} of their time"
        lines.insert(0, f"{waiting} for what is fetched")
        if stages.requests:
            came = f"{format_bytes(stages.fetched_bytes)} a batch come in {stages.requests:.0f} requests"
            lines.insert(1, f"{came} from {m.loader.get('pack')}")
        cause = "The pack is remote, and its bytes come slower than they are used."
    else:
        if drain is not None and again is not None:
            took = f"a batch takes {format_seconds(drain.seconds)}"
            lines.insert(0, f"{took}, {format_seconds(again.seconds)} when its bytes are in memory")
        lines.insert(1, word_storage(m))
        cause = "Reading is slow: the storage gives no more."
    numbers = {"blocked_s": blocked_s, "read_bytes": sample.read_bytes}
    return make_evidence(m, share, lines, numbers, cause)


def find_slow_decoding(m: Measured) -> Evidence | None:
    stages = m.samples.stages
    if stages is None:
        return None
    decode = m.samples.decoding
    share = share_of(m, Cost(decode.cpu_s))
    if share < WORTH_TELLING:
        return None
    lines = [
        f"reading and decoding are {stages.share('read and decode'):.0%} of the loader's work "
        f"({_threads(m)}), {format_seconds(decode.cpu_s)} of CPU a sample"
    ]
    if stages.by_pillow >= MANY_BY_PILLOW:
        why = f" ({stages.reasons[0]})" if stages.reasons else ""
        lines.append(f"{stages.by_pillow:.0%} of the images go through Pillow, which is slower{why}")
    if stages.cached_share is not None:
        lines.append(f"{stages.cached_share:.0%} of the samples are in the cache by now")
    lines.append(wait_words(m))
    numbers = {"decode_cpu_s": decode.cpu_s, "by_pillow": round(stages.by_pillow, 4)}
    cause = "The loader decodes on the cores that it has, and the device is faster than they are."
    return make_evidence(m, share, lines, numbers, cause)


def find_slow_transforms(m: Measured) -> Evidence | None:
    sample, stages = m.samples.cost, m.samples.stages
    if stages is None:
        return None
    own = m.samples.transforming.plus(sample.kind("collate"))
    share = share_of(m, own)
    in_python = stages.share("transform", "collate")
    if share < WORTH_TELLING or in_python < WORTH_TELLING:
        return None
    name = m.loader.get("transform")
    what = f"transform={name}" if name else "collate="
    lines = [
        f"{what}, and making batches of what it returns, are {in_python:.0%} of the loader's work "
        f"({_threads(m)}), {format_seconds(own.cpu_s)} of CPU a sample",
        wait_words(m),
    ]
    cause = (
        "The function that was given to the Loader runs in Python, which one thread at a time can do; "
        "image=, flip= and on_device= need none."
    )
    title = "Training waits for the Loader's transform"
    return make_evidence(m, share, lines, {"transform_cpu_s": own.cpu_s}, cause, title)


def find_few_threads(m: Measured) -> Evidence | None:
    """Fewer threads than cores, because somebody said so."""
    if not waits_for_data(m) or not has_few_threads(m):
        return None
    now, cores = m.pipeline, int(m.machine.cores)
    gain = now.gain_of(now.with_(workers=cores * m.each_worker))
    if gain < STARVED_GAIN:
        return None
    lines = (
        f"threads={m.loader.threads} on {m.machine.cores:.0f} usable cores; "
        f"{cores} give {gain:.2f}x (by the model)",
        wait_words(m),
    )
    numbers = {"threads": m.loader.threads, "better_threads": cores, "gain": round(gain, 3)}
    cause = "Cores stand idle while the training waits for its batches."
    return make_evidence(m, lost_share(m, gain), lines, numbers, cause, "Too few threads")


def has_few_threads(m: Measured) -> bool:
    """Whether threads= is what keeps the loader from cores that are there, and decoding would use them."""
    stages = m.samples.stages
    if stages is None or not m.loader.get("threads_given") or m.loader.threads >= int(m.machine.cores):
        return False
    return stages.share("read and decode") >= 0.5


def find_epoch_pause(m: Measured) -> Evidence | None:
    found = loop.find_epoch_pause(m)
    first = ", and its first bytes have to come" if m.loader.get("remote") else ""
    cause = f"The loader begins each epoch with nothing made in advance{first}."
    return None if found is None else replace(found, cause=cause)


def find_busy_device(m: Measured) -> Evidence | None:
    """Of another framework only the time between two batches is known, not what computes in it."""
    found = loop.find_busy_device(m)
    if found is None or not m.loader.framework:
        return found
    lines = (f"the loader has its batches ready: {wait_words(m)}",)
    return replace(found, lines=lines, title=f"{m.loader.framework} is the limit, not the loader")


def _threads(m: Measured) -> str:
    return format_count(m.loader.threads, "thread")


_NONE = Prediction(1.0, 1.0, 1.02)


def use_more_threads(m: Measured) -> Remedy | None:
    """As many threads as cores, where somebody asked for fewer."""
    if not has_few_threads(m):
        return None
    cores = int(m.machine.cores)
    return make_remedy(
        m, "more-threads", f"use {cores} threads instead of {m.loader.threads}",
        predict_pipeline(m, m.pipeline.with_(workers=cores * m.each_worker)),
        change="Loader(...) without threads=: as many as there are cores",
    )  # fmt: skip


def normalise_pack(m: Measured) -> Remedy | None:
    """Images that Pillow decodes, stored once as what the kernel takes."""
    stages, images = m.samples.stages, m.tried.images
    if stages is None or images is None or not images.left or stages.by_pillow < MANY_BY_PILLOW:
        return None
    saved_s = m.samples.decoding.cpu_s * (1 - min(images.normalised_s / images.now_s, 1.0))
    return make_remedy(
        m, "normalise", "pack the images as baseline JPEGs for feedrate's decoder",
        predict_saving(m, saved_s),
        decode_s=m.samples.decoding.cpu_s - saved_s,
        command="feedrate pack SOURCE PACK --normalise",
        note=f"{stages.by_pillow:.0%} of the images are {images.others}; "
        + ("no pixel changes" if images.is_lossless else "changes pixels; with --raw, none"),
    )  # fmt: skip


def cache_samples(m: Measured) -> Remedy | None:
    """Decoded samples kept in memory: they still have to be checked, cropped and resized, as was tried."""
    images, loader = m.tried.images, m.loader
    if images is None or m.samples.stages is None or loader.get("cache") or m.loop.is_single_pass:
        return None
    if images.cached_share is None:
        return None
    saved_s = m.samples.decoding.cpu_s * (1 - min(images.cached_share, 1.0))
    prediction, then = predict_saving(m, saved_s, 0.0 if loader.get("remote") else m.samples.read_blocked_s)
    limit, note = m.machine.memory_limit_bytes, "whether the decoded samples fit in memory is unknown"
    size = format_bytes(images.decoded_bytes)
    if limit:
        room = limit - (m.machine.memory_used_bytes or 0.0)
        fits = images.decoded_bytes < 0.85 * room
        note = f"{size} decoded {'fit' if fits else 'do not fit'} in the {format_bytes(room)} that are free"
        if not fits:
            prediction = _NONE
    return make_remedy(
        m, "cache-in-memory", "keep decoded samples in memory, from the second epoch on", (prediction, then),
        decode_s=m.samples.decoding.cpu_s - saved_s,
        change="Loader(..., cache=feedrate.Cache())",
        note=f"{note}; the first epoch decodes whole images",
    )  # fmt: skip


def load_to_device(m: Measured) -> Remedy | None:
    """Batches that arrive on the GPU, copied beside the training."""
    copying = m.loop.per_step("copy")
    if not m.training.is_on_gpu or m.loader.get("device") or m.loader.framework:
        return None
    if copying < 0.02 * m.loop.step_s:
        return None
    return make_remedy(
        m, "batches-on-device", "let batches arrive on the GPU, copied while the last one trains",
        predict_times(m, device_s=shortened(m, copying)), change='Loader(..., device="cuda")',
    )  # fmt: skip
