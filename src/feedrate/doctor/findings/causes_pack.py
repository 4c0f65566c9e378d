# SPDX-License-Identifier: Apache-2.0
"""Causes inside a feedrate.Loader: which of its stages the training waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.findings import causes_loop
from feedrate.doctor.findings.causes_loader import STARVED_GAIN, word_storage
from feedrate.doctor.findings.evidence import (
    WORTH_TELLING,
    Evidence,
    capped,
    percent,
    saved_by,
    wait_words,
    waits_for_data,
    weigh,
)
from feedrate.doctor.findings.scenarios import decoding, read_blocked, saved_without, transforming
from feedrate.units import format_bytes, format_count, format_seconds

MANY_BY_PILLOW = 0.05  # of the images: from here on it is worth a word


def find_slow_storage(m: Measured) -> Evidence | None:
    sample, stages = m.sample, m.stages
    if sample is None or stages is None or not waits_for_data(m):
        return None
    blocked = read_blocked(m)
    share = capped(m, saved_without(m, blocked))
    if share < WORTH_TELLING:
        return None
    lines = [wait_words(m)]
    if m.loader.get("remote"):
        of_stages = percent(stages.share("fetch"))
        lines.insert(0, f"the loader's threads wait {of_stages} of their time for what is fetched")
        if stages.requests:
            size = format_bytes(stages.fetched_bytes)
            lines.insert(1, f"{size} a batch come in {stages.requests:.0f} requests from {m.loader['pack']}")
        cause = "The pack is remote, and its bytes come slower than they are used."
    else:
        if m.drain is not None and m.again is not None:
            again = format_seconds(m.again.seconds)
            lines.insert(
                0, f"a batch takes {format_seconds(m.drain.seconds)}, {again} when its bytes are in memory"
            )
        lines.insert(1, word_storage(m))
        cause = "Reading is slow: the storage gives no more."
    numbers = {"blocked_s": blocked.blocked_s, "read_bytes": sample.read_bytes}
    return _of_loader(m, share, lines, numbers, cause)


def find_slow_decoding(m: Measured) -> Evidence | None:
    sample, stages = m.sample, m.stages
    if sample is None or stages is None or not waits_for_data(m):
        return None
    decode = decoding(m)
    share = capped(m, saved_without(m, Cost(decode.cpu_s)))
    if share < WORTH_TELLING:
        return None
    took, of_stages = format_seconds(decode.cpu_s), percent(stages.share("read and decode"))
    lines = [
        f"reading and decoding are {of_stages} of the loader's work ({_threads(m)}), {took} of CPU a sample"
    ]
    if stages.by_pillow >= MANY_BY_PILLOW:
        why = f" ({stages.reasons[0]})" if stages.reasons else ""
        lines.append(f"{percent(stages.by_pillow)} of the images go through Pillow, which is slower{why}")
    if stages.cached_share is not None:
        lines.append(f"{percent(stages.cached_share)} of the samples are in the cache by now")
    lines.append(wait_words(m))
    numbers = {"decode_cpu_s": decode.cpu_s, "by_pillow": round(stages.by_pillow, 4)}
    cause = "The loader decodes on the cores that it has, and the device is faster than they are."
    return _of_loader(m, share, lines, numbers, cause)


def find_slow_transforms(m: Measured) -> Evidence | None:
    sample, stages = m.sample, m.stages
    if sample is None or stages is None or not waits_for_data(m):
        return None
    own = transforming(m).plus(sample.kind("collate"))
    share = capped(m, saved_without(m, own))
    in_python = stages.share("transform", "collate")
    if share < WORTH_TELLING or in_python < WORTH_TELLING:
        return None
    name = m.loader.get("transform")
    what = f"transform={name}" if name else "collate="
    lines = [
        f"{what}, and making batches of what it returns, are {percent(in_python)} of the loader's work "
        f"({_threads(m)}), {format_seconds(own.cpu_s)} of CPU a sample",
        wait_words(m),
    ]
    cause = (
        "The function that was given to the Loader runs in Python, which one thread at a time can do; "
        "image=, flip= and on_device= need none."
    )
    title = "Training waits for the Loader's transform"
    return Evidence(share, tuple(lines), {"transform_cpu_s": own.cpu_s}, cause, weigh(m, share), title)


def find_few_threads(m: Measured) -> Evidence | None:
    """Fewer threads than cores, because somebody said so."""
    if not waits_for_data(m) or not has_few_threads(m):
        return None
    now, cores = m.pipeline, int(m.around.cores)
    gain = now.gain_of(now.with_(workers=cores * m.each_worker))
    if gain < STARVED_GAIN:
        return None
    lines = (
        f"threads={m.threads} on {m.around.cores:.0f} usable cores; {cores} give {gain:.2f}x (by the model)",
        wait_words(m),
    )
    numbers = {"threads": m.threads, "better_threads": cores, "gain": round(gain, 3)}
    cause = "Cores stand idle while the training waits for its batches."
    share = capped(m, saved_by(gain))
    return Evidence(share, lines, numbers, cause, weigh(m, share), "Too few threads")


def has_few_threads(m: Measured) -> bool:
    """Whether threads= is what keeps the loader from cores that are there, and decoding would use them."""
    stages = m.stages
    if stages is None or not m.loader.get("threads_given") or m.threads >= int(m.around.cores):
        return False
    return stages.share("read and decode") >= 0.5


def find_epoch_pause(m: Measured) -> Evidence | None:
    found = causes_loop.find_epoch_pause(m)
    first = ", and its first bytes have to come" if m.loader.get("remote") else ""
    cause = f"The loader begins each epoch with nothing made in advance{first}."
    return None if found is None else replace(found, cause=cause)


def find_busy_device(m: Measured) -> Evidence | None:
    """Of another framework only the time between two batches is known, not what computes in it."""
    found = causes_loop.find_busy_device(m)
    if found is None or not m.framework:
        return found
    lines = (f"the loader has its batches ready: {wait_words(m)}",)
    return replace(found, lines=lines, title=f"{m.framework} is the limit, not the loader")


def _never(_m: Measured) -> None:
    return None


def _threads(m: Measured) -> str:
    return format_count(m.threads, "thread")


def _of_loader(
    m: Measured, share: float, lines: list[str], numbers: Mapping[str, float | int | str | None], cause: str
) -> Evidence:
    return Evidence(share, tuple(lines), numbers, cause, weigh(m, share))


# In place of those of a DataLoader, by code. What there are no workers for is never found.
FINDERS: dict[str, Callable[[Measured], Evidence | None]] = {
    "storage-bound": find_slow_storage,
    "decode-bound": find_slow_decoding,
    "transform-bound": find_slow_transforms,
    "workers-starved": find_few_threads,
    "epoch-start-pause": find_epoch_pause,
    "device-bound": find_busy_device,
    "cold-cache": _never,
    "repeated-work": _never,
    "workers-oversubscribed": _never,
    "workers-pinned": _never,
    "handover-bound": _never,
}
