# SPDX-License-Identifier: Apache-2.0
"""The tools of causes and remedies: evidence, and predictions of a changed run by the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.results import Remedy
from feedrate.model.pipeline import Pipeline, Prediction, predict_change
from feedrate.units import format_seconds

VECTORISED = 0.05  # what stays of a Python loop over elements that was turned into array operations
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
    lines: Sequence[str]
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    cause: str = ""
    weight: float | None = None
    title: str = ""
    cures: tuple[str, ...] = ()

    @property
    def rank_by(self) -> float:
        return self.share if self.weight is None else self.weight


def waits_for_data(m: Measured) -> bool:
    """Whether the loader holds up the training at all: by waits, or by the cores that it takes from it."""
    return m.loop.exposed_share + m.slowed_share >= WORTH_TELLING


def lost_share(m: Measured, gain: float) -> float:
    """Return the share of the time that goes with a cause inside the loader, by the speed-up without it.

    No such cause can cost more than the loader does.
    """
    return min(saved_by(gain), m.loop.exposed_share + m.slowed_share)


def share_of(m: Measured, cost: Cost) -> float:
    """Return the share of the time that goes with a part of what each sample costs, by the model alone."""
    now, n = m.pipeline, m.loop.samples_per_step
    then = now.with_(
        fetch_cpu_s=max(now.fetch_cpu_s - cost.cpu_s * n, 0.0),
        fetch_blocked_s=max(now.fetch_blocked_s - cost.blocked_s * n, 0.0),
    )
    return lost_share(m, now.gain_of(then))


def weigh(m: Measured, share: float) -> float:
    """Return what a cause inside the loader counts for in the order of findings.

    Where nobody waits and the loader only shares the cores with the computing, that is how two cores are used
    well; only much of it is worth a verdict.
    """
    if m.loop.exposed_share < WORTH_A_VERDICT and share < _MUCH:
        return min(share, 0.9 * WORTH_A_VERDICT)
    return share


def make_evidence(
    m: Measured,
    share: float,
    lines: Sequence[str],
    numbers: Mapping[str, float | int | str | None],
    cause: str = "",
    title: str = "",
) -> Evidence:
    """Return the evidence of a cause inside the loader."""
    return Evidence(share, lines, numbers, cause, weigh(m, share), title)


def wait_words(m: Measured) -> str:
    seconds = format_seconds(m.loop.exposed_s)
    waiting = f"waiting for data: {m.loop.exposed_share:.0%} of the time, {seconds} a step"
    if m.slowed_share < WORTH_TELLING:
        return waiting
    who = "the loader's threads" if m.loader.is_of_pack else "the workers"
    return f"{waiting}; {who} take cores from the computing: {m.slowed_share:.0%} more"


_BETWEEN = {"validation": "validation-bound", "save": "checkpoint-bound", "epoch-start": "epoch-start-pause"}


def saved_by(speedup: float) -> float:
    """Return the share of the time that a speed-up saves."""
    return max(1.0 - 1.0 / speedup, 0.0) if speedup > 0 else 0.0


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
    if not sample.samples:
        return "workers-starved"
    costs = {
        "storage-bound": then.fetch_blocked_s,
        "decode-bound": (m.samples.decoding.cpu_s if decode_s is None else decode_s)
        * m.loop.samples_per_step,
        "transform-bound": m.samples.transforming.cpu_s * m.loop.samples_per_step,
    }
    return max(costs, key=lambda code: min(costs[code], then.fetch_s))


Changed = tuple[Prediction, Pipeline]  # what a run would be, and its pipeline then


def predict_pipeline(m: Measured, then: Pipeline, now: Pipeline | None = None) -> Changed:
    """Predict the run with another pipeline; `now`: in the place of its present one."""
    return predict_change(now or m.pipeline, then, m.loop.step_s), then


def predict_times(m: Measured, **changes: float) -> Changed:
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
    return predict_pipeline(m, then)


def predict_saving(m: Measured, cpu_s: float = 0.0, blocked_s: float = 0.0) -> Changed:
    """Predict the run in which a sample takes so much less."""
    now, n = m.pipeline, m.loop.samples_per_step
    return predict_times(
        m, fetch_cpu_s=now.fetch_cpu_s - cpu_s * n, fetch_blocked_s=now.fetch_blocked_s - blocked_s * n
    )


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


def make_remedy(
    m: Measured,
    name: str,
    title: str,
    changed: tuple[Prediction, Pipeline | None],
    *,
    decode_s: float | None = None,
    **rest: str | None,
) -> Remedy:
    prediction, then = changed
    return Remedy(
        name=name,
        title=title,
        predicted_speedup=round(prediction.speedup, 3),
        low=round(prediction.low, 3),
        high=round(prediction.high, 3),
        next_bottleneck=next_bottleneck(m, then, decode_s) if then is not None else None,
        **rest,  # type: ignore[arg-type]
    )
