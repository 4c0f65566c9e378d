# SPDX-License-Identifier: Apache-2.0
"""Causes in a loader whose stages cannot be seen, as DALI's: how long it is waited for, and by which signs
of the machine its limit may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.findings import loop
from feedrate.doctor.findings.evidence import (
    WORTH_TELLING,
    Evidence,
    capped,
    wait_words,
    waits_for_data,
    weigh,
)

_BUSY = 0.8  # of the cores, or of the time


def find_slow_loader(m: Measured) -> Evidence | None:
    """The training waits for a loader, and that is all that can be said of it from here."""
    if not m.loader.opaque or not waits_for_data(m):
        return None
    share = capped(m, m.loop.exposed_share)
    if share < WORTH_TELLING:
        return None
    threads, ahead = m.loader.get("pipeline_threads"), m.loader.get("prefetch")
    settings = [
        f"num_threads={threads}" if threads else "",
        f"prefetch_queue_depth={ahead}" if ahead else "",
    ]
    has = f": {', '.join(filter(None, settings))}" if any(settings) else ""
    lines = (
        wait_words(m),
        f"batches come from {m.loader.opaque}{has}; what its stages take cannot be seen",
        *_word_machine(m),
    )
    numbers = {"exposed_s": m.loop.exposed_s, "threads": threads, "prefetch": ahead}
    title = f"Training waits for {m.loader.opaque}'s pipeline"
    return Evidence(share, lines, numbers, _advise(m), weigh(m, share), title)


def _word_machine(m: Measured) -> list[str]:
    around, words = m.machine, []
    if around.cores_ours is not None:
        words.append(f"the run uses {around.cores_ours:.1f} of {around.cores:g} cores")
    if around.disk_busy is not None:
        words.append(f"the busiest disk works {around.disk_busy:.0%} of the time")
    if around.gpu_utilisation is not None:
        words.append(f"the GPU {around.gpu_utilisation:.0%}")
    return [", ".join(words)] if words else []


def _advise(m: Measured) -> str:
    """Say what the machine's readings speak for; without a look inside that is no more than likely."""
    around = m.machine
    if around.cores_ours is not None and around.cores_ours >= _BUSY * around.cores:
        return "The cores are busy: decode on the GPU (fn.decoders.image with device='mixed'), if it is not."
    if (around.disk_busy or 0.0) >= _BUSY:
        return "The disk is busy: `feedrate stage` brings the data to a faster one."
    known = {"cores": around.cores_ours, "disks": around.disk_busy}
    idle = " and ".join(name for name, use in known.items() if use is not None)
    left = f"{idle.capitalize()} have time left" if idle else "How busy cores and disks were is not known"
    return f"{left}: try a larger num_threads, then a larger prefetch_queue_depth."


def find_epoch_pause(m: Measured) -> Evidence | None:
    found = loop.find_epoch_pause(m)
    cause = f"{m.loader.opaque} is reset at the end of an epoch, and fills its queue before the first batch."
    return None if found is None else replace(found, cause=cause)


def _never(_m: Measured) -> None:
    return None


# In place of those of a DataLoader, by code. There are no workers, and nothing is handed over.
FINDERS: dict[str, Callable[[Measured], Evidence | None]] = {
    "epoch-start-pause": find_epoch_pause,
    "workers-starved": _never,
    "workers-oversubscribed": _never,
    "workers-pinned": _never,
    "handover-bound": _never,
}
