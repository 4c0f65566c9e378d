# SPDX-License-Identifier: Apache-2.0
"""What the training process's own parts cost a step: writing, waiting for the device, copies, Python."""

from __future__ import annotations

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.stacks import Looks, source_of

_FRESH = 1.3  # a batch that was just made is copied slower than a buffer that was copied before
_WRITING = (
    "write(", "writerow", "flush(", "fsync", "save(", "dump(", "savez", "savefig", "to_csv", "imwrite",
    "print(",
)  # fmt: skip


def write_s(m: Measured) -> float:
    """Return the time per step that goes into writing files: timed calls, and lines that write and wait."""
    timed = m.loop.per_step("write")
    waiting = _places_of(m, "sync") | _places_of(m, "readback")  # print(loss.item()) waits, it does not write
    sources = {line: source_of(line) for line in m.training.looks.lines if line not in waiting}
    lines = sum(
        m.training.looks.lines[line]
        for line, source in sources.items()
        if any(word in source for word in _WRITING) and "torch.save" not in source
    )
    outside = m.loop.own_s - m.loop.wait_s
    # What is on the line of a timed call goes with it: a picture is drawn in order to be saved.
    return max(timed + _beside_s(m, "write") if timed else 0.0, min(lines * outside, outside))


def freeing_s(m: Measured) -> float:
    """Return the time per step in the loop's own header: there, the batch before is given back to the system.

    A batch from a worker is in shared memory; to unmap many megabytes takes as long as to fill them.
    """
    if m.loader.workers == 0 or m.loader.handed_bytes < 1e6:
        return 0.0
    return min(header_share(m, m.training.looks) * (m.loop.own_s - m.loop.wait_s), m.loop.other_s)


def header_share(m: Measured, looks: Looks) -> float:
    """Return the share of the looks that fell on `for batch in loader:`."""
    return looks.lines.get(str(m.loader.batch.get("asked_at")), 0.0)


def sync_s(m: Measured) -> float:
    """Return the time per step that goes with waiting for the device: the calls, and their lines."""
    timed = m.loop.per_step("sync")
    if not timed:
        return 0.0
    # After a wait the device idles until it is given work again: no longer than it takes to give it a step.
    given = m.loop.computing_s + m.loop.per_step("copy") + m.loop.other_s
    return min(timed + _beside_s(m, "sync"), m.loop.syncs * given)


def readback_s(m: Measured) -> float:
    """Return the time per step that goes with outputs on the CPU: the copies, and their lines."""
    timed = m.loop.per_step("readback")
    return timed + _beside_s(m, "readback") if timed else 0.0


def _beside_s(m: Measured, part: str) -> float:
    """Return the time per step outside of named parts that falls on the lines of a part."""
    lines = _places_of(m, part)
    share = sum(place.share for place in m.training.looks.places if place.place in lines)
    return min(share, 1.0) * m.loop.other_s


def _places_of(m: Measured, part: str) -> set[str]:
    return {name.rpartition(" ")[2] for name in m.loop.places.get(part, {})}


def copying_s(m: Measured) -> float:
    """Return how long the copies of a step occupy the device; 0 where they have a stream of their own."""
    copied, around = m.machine.copied_bytes, m.machine
    kind = "pinned_bytes_per_s" if around.copies_are_pinned else "pageable_bytes_per_s"
    rate = m.training.copy_rates.get(kind)
    if not copied or not rate or around.copies_are_beside:
        return 0.0
    seconds = float(copied / rate)
    timed = m.loop.per_step("copy")
    if around.copies_are_pinned or not timed:
        return seconds
    # A copy from pageable memory holds up the thread that asks for it: there it was timed, together with what
    # the device had still to compute of the step before. The device's clock leaves that out, but holds what
    # else comes before the forward pass. Neither is the copy where a fresh one would be much faster.
    return min(timed, m.training.before_forward_s or timed, _FRESH * seconds)


def before_forward_s(m: Measured) -> float:
    """Return the device's time per step between a batch's arrival and the forward pass, copies left out."""
    return max(m.training.before_forward_s - copying_s(m), 0.0)


def launching_s(m: Measured) -> float:
    """Return how much longer it takes per step to give the GPU its work than the GPU takes to do it.

    A GPU that has work in store is given more while it computes; one that idles meanwhile waits for Python.
    """
    if not m.training.is_on_gpu or m.machine.gpu_utilisation is None:
        return 0.0
    return max(m.loop.computing_s - m.machine.gpu_utilisation * m.loop.step_s, 0.0)


def idle_share(m: Measured) -> float | None:
    """Return how much of the time the GPU neither computed nor copied; None: unknown."""
    if m.machine.gpu_utilisation is None:
        return None
    return max(1.0 - m.machine.gpu_utilisation - copying_s(m) / m.loop.step_s, 0.0)
