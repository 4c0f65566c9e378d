# SPDX-License-Identifier: Apache-2.0
"""What causes and remedies share: the form of a cause's answer, when a number is worth telling, and what the
run would be with something changed, by the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.analyse.stacks import Looks, source_of
from feedrate.doctor.results import Remedy
from feedrate.model.pipeline import Pipeline, Prediction, predict_change
from feedrate.units import format_seconds

_FRESH = 1.3  # a batch that was just made is copied slower than a buffer that was copied before
VECTORISED = 0.05  # what stays of a Python loop over elements that was turned into array operations
_BETWEEN = {"validation": "validation-bound", "save": "checkpoint-bound", "epoch-start": "epoch-start-pause"}
_WRITING = (
    "write(", "writerow", "flush(", "fsync", "save(", "dump(", "savez", "savefig", "to_csv", "imwrite",
    "print(",
)  # fmt: skip
WORTH_TELLING = 0.05  # of the time; less is noise
WORTH_A_VERDICT = 0.10  # less than this, and the run is healthy
_MUCH = 0.20


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a test found.

    Attributes:
        share: of the run's time, what would be saved if the cause were gone.
        cause, title: stand in for the catalogue's words where this run tells more.
        weight: what it counts for in the order of findings, where that is not its share.
        cures: names of remedies that cure it in this run, besides the catalogue's.
    """

    share: float
    lines: tuple[str, ...]
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    cause: str = ""
    weight: float | None = None
    title: str = ""
    cures: tuple[str, ...] = ()

    @property
    def rank_by(self) -> float:
        return self.share if self.weight is None else self.weight


def saved_by(speedup: float) -> float:
    """Return the share of the time that a speed-up saves."""
    return max(1.0 - 1.0 / speedup, 0.0) if speedup > 0 else 0.0


def percent(share: float) -> str:
    return f"{share:.0%}"


def waits_for_data(m: Measured) -> bool:
    """Whether the loader holds up the training at all: by waits, or by the cores that it takes from it."""
    return m.loop.exposed_share + m.slowed_share >= WORTH_TELLING


def capped(m: Measured, share: float) -> float:
    """No cause inside the loader can cost more than the loader does."""
    return min(share, m.loop.exposed_share + m.slowed_share)


def weigh(m: Measured, share: float) -> float:
    """Return what a cause inside the loader counts for in the order of findings.

    Where nobody waits and the loader only shares the cores with the computing, that is how two cores are used
    well; only much of it is worth a verdict.
    """
    if m.loop.exposed_share < WORTH_A_VERDICT and share < _MUCH:
        return min(share, 0.9 * WORTH_A_VERDICT)
    return share


def of_loader(
    m: Measured,
    share: float,
    lines: Iterable[str],
    numbers: Mapping[str, float | int | str | None],
    cause: str = "",
    title: str = "",
) -> Evidence:
    """Return the evidence of a cause inside the loader."""
    return Evidence(share, tuple(lines), numbers, cause, weigh(m, share), title)


def wait_words(m: Measured) -> str:
    share, seconds = percent(m.loop.exposed_share), format_seconds(m.loop.exposed_s)
    waiting = f"waiting for data: {share} of the time, {seconds} a step"
    if m.slowed_share < WORTH_TELLING:
        return waiting
    who = "the loader's threads" if m.loader.is_of_pack else "the workers"
    return f"{waiting}; {who} take cores from the computing: {percent(m.slowed_share)} more"


def on_gpu_of_others(m: Measured) -> float:
    """Return the share of the time in which the GPU worked for others while this run had work for it."""
    others = m.machine.gpu_others
    if not m.training.is_on_gpu or not m.machine.gpu_others_share:
        return 0.0
    # Processes take turns: who has work gets its turn, however much the others could use.
    theirs = min(m.machine.gpu_others_share, others / (others + 1))
    return theirs * max(m.loop.own_s - m.loop.exposed_s, 0.0) / m.loop.step_s


def waiting_for_cores(m: Measured) -> float:
    """Return the share of the time in which whoever makes the step long had no core because of others."""
    others, ours = m.machine.cores_others + m.machine.steal_cores, m.machine.cores_ours or 0.0
    waits = (
        m.loop.exposed_s * m.samples.queue_share + (m.loop.own_s - m.loop.exposed_s) * m.training.queue_share
    )
    # Of more workers than cores, some wait for each other, whoever else is there.
    theirs = 1.0 if m.loader.workers <= m.machine.cores else others / max(others + ours, 1e-9)
    return min(waits * theirs / m.loop.step_s, 0.95)


def next_bottleneck(m: Measured, then: Pipeline, decode_s: float | None = None) -> str:
    """Return the finding that would come first in the changed pipeline.

    `decode_s`: what decoding a sample takes then; None: as long as now.
    """
    slowest = then.slowest
    if slowest == "device":
        return "device-bound" if m.device_s > 0.5 * then.device_s else "main-thread-bound"
    if slowest == "loader" and m.unseen_s:
        return "handover-bound"
    if slowest == "between":
        parts = {code: m.loop.per_step(name) for name, code in _BETWEEN.items()}
        return max(parts, key=lambda code: parts[code])
    sample = m.samples.cost
    if sample is None:
        return "workers-starved"
    costs = {
        "storage-bound": then.fetch_blocked_s,
        "decode-bound": (m.samples.decoding.cpu_s if decode_s is None else decode_s)
        * m.loop.samples_per_step,
        "transform-bound": m.samples.transforming.cpu_s * m.loop.samples_per_step,
    }
    return max(costs, key=lambda code: min(costs[code], then.fetch_s))


def change(m: Measured, **changes: float) -> tuple[Prediction, Pipeline]:
    """Predict the run with some of its pipeline's times changed (never below zero)."""
    now = m.pipeline
    if "device_s" in changes and now.device_s > 0:
        # The training process works for as long as its step lasts.
        shrunk = max(changes["device_s"], 0.0) / now.device_s
        changes.setdefault("device_cpu_s", now.device_cpu_s * min(shrunk, 1.0))
    then = now.with_(**{name: max(value, 0.0) for name, value in changes.items()})
    if then.fetch_s < now.fetch_s:
        # An epoch begins with a batch that nobody made in advance.
        pauses = (
            m.loop.epochs / len(m.loop.steps) * min(m.loop.each("epoch-start", m.loop.epochs), now.fetch_s)
        )
        then = then.with_(between_s=max(then.between_s - pauses * (1 - then.fetch_s / now.fetch_s), 0.0))
    return predict_change(now, then, m.loop.step_s), then


def tried_gain(m: Measured, workers: int) -> float:
    """Return what another number of workers gave when it was tried."""
    # A trial holds no validation, no checkpoint and no start of an epoch; they stay as they are.
    # And more workers give no more than never to wait, fewer no more than all cores for the computing:
    # what is above that is the machine's mood.
    least_s = (
        m.loop.step_s - m.loop.exposed_s if workers > m.loader.workers else m.device_s + m.loop.between_s
    )
    never_waiting = m.loop.step_s / max(least_s, 1e-9)
    own = m.experiments.trials.get(m.loader.workers)
    present_s = m.loop.step_s if own is None else own.seconds + m.loop.between_s
    return min(present_s / (m.experiments.trials[workers].seconds + m.loop.between_s), never_waiting * 1.03)


def shortened(m: Measured, seconds: float) -> float:
    """Return the device's part of a step with so many seconds of a real step left out.

    Real steps, in which `seconds` were measured, may take longer than those on batches that are there.
    """
    return m.device_s * max(1.0 - seconds / max(m.loop.own_s - m.loop.exposed_s, 1e-9), 0.0)


def saved_without(m: Measured, cost: Cost) -> float:
    """Return the share of the time that would be saved if samples cost that much less, by the model alone."""
    now, n = m.pipeline, m.loop.samples_per_step
    then = now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - cost.cpu_s * n, 0.0),
        fetch_blocked_s=max(now.fetch_blocked_s - cost.blocked_s * n, 0.0),
    )
    return max(1.0 - 1.0 / now.gain_of(then), 0.0)


def make_remedy(
    m: Measured,
    name: str,
    title: str,
    prediction: Prediction,
    then: Pipeline | None = None,
    *,
    decode_s: float | None = None,
    **rest: str | None,
) -> Remedy:
    speedup = prediction.speedup
    return Remedy(
        name=name,
        title=title,
        predicted_speedup=round(speedup, 3),
        low=round(prediction.low, 3),
        high=round(prediction.high, 3),
        next_bottleneck=next_bottleneck(m, then, decode_s) if then is not None else None,
        **rest,  # type: ignore[arg-type]
    )


def repeated_share(m: Measured) -> float | None:
    """Return the share of a sample's CPU work that every epoch repeats, collating left out; None: unknown."""
    sample = m.samples.cost
    if sample is None or sample.total.cpu_s <= 0:
        return None
    collate = sample.kind("collate").cpu_s / sample.total.cpu_s
    if m.experiments.is_repeatable:
        return 1.0 - collate
    if m.samples.looks.undrawn is None:
        return None
    return m.samples.looks.undrawn * (1.0 - collate)


def write_s(m: Measured) -> float:
    """Return the time per step that goes into writing files: timed calls, and lines that write and wait."""
    timed = m.loop.per_step("write")
    waiting = _places_of(m, "sync") | _places_of(m, "readback")  # print(loss.item()) waits, it does not write
    lines = sum(
        share
        for line, share in m.training.looks.lines.items()
        if line not in waiting and _writes(source_of(line))
    )
    outside = m.loop.own_s - m.loop.wait_s
    # What is on the line of a timed call goes with it: a picture is drawn in order to be saved.
    return max(timed + _beside_s(m, "write") if timed else 0.0, min(lines * outside, outside))


def _writes(source: str) -> bool:
    return any(word in source for word in _WRITING) and "torch.save" not in source


def freeing_s(m: Measured) -> float:
    """Return the time per step in the loop's own header: there, the batch before is given back to the system.

    A batch from a worker is in shared memory; to unmap many megabytes takes as long as to fill them.
    """
    if m.loader.workers == 0 or m.loader.handed_bytes < 1e6:
        return 0.0
    return min(header_share(m, m.training.looks) * (m.loop.own_s - m.loop.wait_s), m.loop.other_s)


def header_share(m: Measured, looks: Looks) -> float:
    """Return the share of the looks that fell on `for batch in loader:`."""
    asked_at = m.loader.batch.get("asked_at")
    return sum(
        share
        for line, share in looks.lines.items()
        if (line == asked_at if asked_at else source_of(line).startswith("for "))
    )


def sync_s(m: Measured) -> float:
    """Return the time per step that goes with waiting for the device: the calls, and their lines."""
    timed = m.loop.per_step("sync")
    if not timed:
        return 0.0
    # After a wait the device idles until it is given work again: no longer than it takes to give it a step.
    given = (
        sum(m.loop.per_step(part) for part in ("forward", "backward", "optimizer", "copy")) + m.loop.other_s
    )
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
    given = sum(m.loop.per_step(part) for part in ("forward", "backward", "optimizer"))
    return max(given - m.machine.gpu_utilisation * m.loop.step_s, 0.0)


def idle_share(m: Measured) -> float | None:
    """Return how much of the time the GPU neither computed nor copied; None: unknown."""
    if m.machine.gpu_utilisation is None:
        return None
    return max(1.0 - m.machine.gpu_utilisation - copying_s(m) / m.loop.step_s, 0.0)
