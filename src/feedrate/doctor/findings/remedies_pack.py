# SPDX-License-Identifier: Apache-2.0
"""Remedies for a feedrate.Loader: threads, images stored anew, a cache, scratch, batches on the device."""

from __future__ import annotations

import shlex

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings.causes_pack import MANY_BY_PILLOW, has_few_threads
from feedrate.doctor.findings.scenarios import change, decoding, make_remedy, read_blocked, shortened
from feedrate.doctor.results import Remedy
from feedrate.model.predict import Prediction, predict_change
from feedrate.units import format_bytes

_NONE = Prediction(1.0, 1.0, 1.02, "")


def use_more_threads(m: Measured) -> Remedy | None:
    """As many threads as cores, where somebody asked for fewer."""
    if not has_few_threads(m):
        return None
    now, cores = m.pipeline, int(m.around.cores)
    then = now.with_(workers=cores * m.each_worker)
    return make_remedy(
        m, "more-threads", f"use {cores} threads instead of {m.threads}",
        predict_change(now, then, m.step_s), then,
        change="Loader(...) without threads=: as many as there are cores",
    )  # fmt: skip


def normalise_pack(m: Measured) -> Remedy | None:
    """Images that Pillow decodes, stored once as what the kernel takes."""
    stages, images = m.stages, m.images
    if stages is None or images is None or not images.left or stages.by_pillow < MANY_BY_PILLOW:
        return None
    saved = decoding(m).cpu_s * (1 - min(images.normalised_s / images.now_s, 1.0))
    prediction, then = change(m, fetch_cpu_s=m.pipeline.fetch_cpu_s - saved * m.samples_per_step)
    return make_remedy(
        m, "normalise", "pack the images as baseline JPEGs for feedrate's decoder", prediction, then,
        decode_s=decoding(m).cpu_s - saved,
        command="feedrate pack SOURCE PACK --normalise",
        note=f"{stages.by_pillow:.0%} of the images are {images.others}; "
        + ("no pixel changes" if images.is_lossless else "changes pixels; with --raw, none"),
    )  # fmt: skip


def cache_samples(m: Measured) -> Remedy | None:
    """Decoded samples kept in memory: they still have to be checked, cropped and resized, as was tried."""
    images, loader = m.images, m.loader
    if images is None or m.stages is None or loader.get("cache") or m.loop.is_single_pass:
        return None
    if images.cached_share is None:
        return None
    saved = decoding(m).cpu_s * (1 - min(images.cached_share, 1.0))
    blocked = 0.0 if loader.get("remote") else read_blocked(m).blocked_s
    now, n = m.pipeline, m.samples_per_step
    prediction, then = change(
        m, fetch_cpu_s=now.fetch_cpu_s - saved * n, fetch_blocked_s=now.fetch_blocked_s - blocked * n
    )
    limit, note = m.around.memory_limit_bytes, "whether the decoded samples fit in memory is unknown"
    size = format_bytes(images.decoded_bytes)
    if limit:
        room = limit - (m.around.memory_used_bytes or 0.0)
        fits = images.decoded_bytes < 0.85 * room
        note = f"{size} decoded {'fit' if fits else 'do not fit'} in the {format_bytes(room)} that are free"
        if not fits:
            prediction = _NONE
    return make_remedy(
        m, "cache-in-memory", "keep decoded samples in memory, from the second epoch on", prediction, then,
        decode_s=decoding(m).cpu_s - saved,
        change="Loader(..., cache=feedrate.Cache())",
        note=f"{note}; the first epoch decodes whole images",
    )  # fmt: skip


def stage_pack(m: Measured) -> Remedy | None:
    """The pack on a disk of this machine: fetched once, then read there."""
    sample, loader, around = m.sample, m.loader, m.around
    if sample is None or loader.get("scratch") or m.stages is None:
        return None
    blocked = read_blocked(m)
    if blocked.blocked_s < 0.05 * sample.total.wall_s:
        return None
    now, n = m.pipeline, m.samples_per_step
    if loader.get("remote"):
        prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - blocked.blocked_s * n)
        return make_remedy(
            m, "stage", "copy the pack to a disk of this machine while it is read", prediction, then,
            change='Loader(..., scratch="auto")', note="from the second epoch on",
        )  # fmt: skip
    data = around.data
    if data is None or around.scratch is None or around.scratch_bytes_per_s is None:
        return None
    left = sample.read_bytes / around.scratch_bytes_per_s
    saved = max(blocked.blocked_s - left, 0.0) * n
    prediction, then = change(m, fetch_blocked_s=now.fetch_blocked_s - saved)
    return make_remedy(
        m, "stage", f"copy the pack to {around.scratch} once, and read it there", prediction, then,
        command=f"feedrate stage {shlex.quote(data.folder)} --to {shlex.quote(around.scratch)}",
        change=f'Loader(..., scratch="{around.scratch}")',
    )  # fmt: skip


def load_to_device(m: Measured) -> Remedy | None:
    """Batches that arrive on the GPU, copied beside the training."""
    copying = m.loop.per_step("copy")
    if not m.is_on_gpu or m.loader.get("device") or m.loader.get("framework") or copying < 0.02 * m.step_s:
        return None
    prediction, then = change(m, device_s=shortened(m, copying))
    return make_remedy(
        m, "batches-on-device", "let batches arrive on the GPU, copied while the last one trains",
        prediction, then, change='Loader(..., device="cuda")',
    )  # fmt: skip
