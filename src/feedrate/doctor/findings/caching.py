# SPDX-License-Identifier: Apache-2.0
"""Remedies that keep something: samples in memory, files in the page cache, results of preprocessing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.findings.evidence import Changed, make_remedy, predict_saving
from feedrate.doctor.results import Remedy
from feedrate.format.fields import IMAGE_SUFFIXES
from feedrate.format.manifest import FILE_NAME
from feedrate.model.pipeline import Prediction
from feedrate.units import format_bytes


def repeated_share(m: Measured) -> float | None:
    """Return the share of a sample's CPU work that every epoch repeats, collating left out; None: unknown."""
    sample = m.samples.cost
    if sample.total.cpu_s <= 0:
        return None
    collate = sample.kind("collate").cpu_s / sample.total.cpu_s
    if m.experiments.is_repeatable:
        return 1.0 - collate
    if m.samples.looks.undrawn is None:
        return None
    return m.samples.looks.undrawn * (1.0 - collate)


# Of a kept sample, where no such one was timed: to find it, and to copy its bytes (as timed on 2 cores).
_FOUND_S, _READ_BYTES_PER_S = 30e-6, 5e9
_FILLED_S = 300e-6  # to store one, where that was not tried
_NOTICED = 1.1  # times as long


def cache_in_memory(m: Measured) -> Remedy | None:
    """Samples kept in memory after the first epoch."""
    data, (saved, changed) = m.machine.data, _keep(m)
    is_cached = str(m.loader.get("dataset")).startswith("feedrate.loader.cached.")
    if m.loop.is_single_pass or is_cached or saved.wall_s <= 0.05 * m.samples.cost.total.wall_s:
        return None
    decoded, limit = m.machine.decoded_bytes, m.machine.memory_limit_bytes
    note = "whether it fits is unknown: the size of a decoded sample or of the dataset is not known"
    if decoded and limit:
        used = m.machine.memory_used_bytes or 0.0
        fits = decoded < 0.85 * (limit - used)
        k = f"; K = {decoded / data.dataset_bytes:.1f}" if data is not None and data.dataset_bytes else ""
        note = (
            f"{'fits' if fits else 'does not fit'}: {format_bytes(decoded)} decoded{k}, "
            f"the job may use {format_bytes(limit)}, of which {format_bytes(used)} are taken"
        )
        if not fits:
            changed = (Prediction(1.0, 1.0, 1.02), changed[1])
    return make_remedy(
        m, "cache-in-memory", "keep samples in memory after the first epoch", changed,
        note=f"{_word_first_epoch(m)}; {note}", change=_cached(m),
    )  # fmt: skip


def _keep(m: Measured) -> tuple[Cost, Changed]:
    """Return what `feedrate.cached` saves of a sample, and what the run would be.

    It keeps what the dataset returns, or with .map(augment) what there is before the first random number.
    """
    sample = m.samples.cost
    made = sample.total.minus(sample.kind("collate"))
    helped_s = m.samples.helpers_s
    undrawn = 1.0 if m.experiments.is_repeatable else m.samples.looks.undrawn
    if undrawn is None:
        # When random numbers come is not known: certainly after the image is there.
        saved = sample.kind("read").plus(sample.kind("decode"))
        saved = replace(saved, blocked_s=max(saved.blocked_s, m.samples.read_blocked_s))
    else:
        # Looks say how much of a sample's time that is. What waits for storage comes before it.
        before_s = undrawn * made.wall_s
        blocked_s = made.blocked_s if m.experiments.is_repeatable else min(m.samples.read_blocked_s, before_s)
        share = (before_s - blocked_s) / max(made.wall_s - made.blocked_s, 1e-9)
        share = min(max(share, 0.0), 1.0)
        saved = Cost((made.cpu_s + helped_s) * share, made.queue_s * share, blocked_s)
    reading_s = m.tried.kept_s
    if reading_s is None:
        reading_s = _FOUND_S + m.loader.batch_bytes / max(m.loop.samples_per_step, 1e-9) / _READ_BYTES_PER_S
    return saved, predict_saving(m, saved.cpu_s - reading_s, saved.blocked_s)


def _word_first_epoch(m: Measured) -> str:
    """Say what filling a cache costs: each sample is made as now, and stored."""
    keeping_s = _FILLED_S if m.tried.keeping_s is None else m.tried.keeping_s
    now = m.pipeline
    filling = now.with_(fetch_cpu_s=now.fetch_cpu_s + keeping_s * m.loop.samples_per_step)
    longer = 1 / max(now.gain_of(filling), 1e-9)
    words = "as long as now" if longer < _NOTICED else f"{longer:.1f} times as long as now"
    return f"the first epoch, which fills it, takes {words}"


def read_from_memory(m: Measured) -> Remedy | None:
    """The page cache: what the second epoch gives by itself."""
    sample, again = m.samples.cost, m.samples.again
    if not again.samples or m.loop.is_single_pass:
        return None
    if m.experiments.drain is None or m.experiments.again is None:
        return None
    saved_s = sample.total.blocked_s - again.total.blocked_s
    if saved_s <= 0.1 * sample.total.wall_s:
        return None
    data, limit = m.machine.data, m.machine.memory_limit_bytes
    size = data.dataset_bytes if data is not None else None
    note = ""
    if size and limit:
        fits = size < 0.8 * (limit - (m.machine.memory_used_bytes or 0))
        fit = "fit" if fits else "do not fit"
        note = f"{format_bytes(size)} of files {fit} in the {format_bytes(limit)} of this job"
    command = None if data is None else f"find {data.source_word} -type f -exec cat {{}} + > /dev/null"
    if data is not None and data.folder and Path(data.folder, FILE_NAME).is_file():
        command = f"feedrate stage {data.source_word} --warm"  # which takes packs
    return make_remedy(
        m, "warm-page-cache", "read the files once before training, so that they come from memory",
        predict_saving(m, blocked_s=saved_s), note=note, command=command,
    )  # fmt: skip


def preprocess_once(m: Measured) -> Remedy | None:
    """What is the same in every epoch, done once."""
    sample, share = m.samples.cost, repeated_share(m)
    if share is None:
        return None
    # Decoded images alone are not worth storing: they are many times larger than their files. What was made
    # smaller, or computed, is.
    beyond_decoding = share - sample.kind("decode").cpu_s / max(sample.total.cpu_s, 1e-9)
    is_made_smaller = share > 0.9 and any("resize" in name.lower() for _, name in sample.parts)
    if beyond_decoding < 0.25 and not is_made_smaller:
        return None
    when, after = "epoch", _word_first_epoch(m)
    if m.loop.is_single_pass:
        when, after = "run", "for data that is gone through again"
    data = m.machine.data
    is_images = data is not None and any(suffix in IMAGE_SUFFIXES for suffix in data.suffixes[:1])
    return make_remedy(
        m, "preprocess-once",
        f"do the part that is the same in every {when} once, and store its result",
        _keep(m)[1],
        # What is no folder of images is kept as the dataset returns it.
        command=f"{data.pack_command} --map MODULE:FUNCTION --raw"
        if data is not None and is_images
        else None,
        change=_cached(m, 'disk="FOLDER:SIZE", key="NAME"'),
        note=f"{share:.0%} of a sample's work comes before its first random number; {after}",
    )  # fmt: skip


def _cached(m: Measured, arguments: str = "") -> str | None:
    """Return the line that keeps samples; None for a dataset that has no sample numbers."""
    if m.loader.get("iterable"):
        return None
    call = f"feedrate.cached(dataset{', ' if arguments else ''}{arguments})"
    if m.experiments.is_repeatable:
        return f"DataLoader({call}, ...)"
    return f"DataLoader({call}.map(augment), ...), with all that is random in augment()"
