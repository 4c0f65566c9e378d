# SPDX-License-Identifier: Apache-2.0
"""What the tests of the catalogue share: the form of their answer, and when a number is worth telling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from feedrate.doctor.analyse.metrics import Measured
from feedrate.units import format_seconds

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
    """

    share: float
    lines: tuple[str, ...]
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    cause: str = ""
    weight: float | None = None
    title: str = ""

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


def wait_words(m: Measured) -> str:
    share, seconds = percent(m.loop.exposed_share), format_seconds(m.loop.exposed_s)
    waiting = f"waiting for data: {share} of the time, {seconds} a step"
    if m.slowed_share < WORTH_TELLING:
        return waiting
    who = "the loader's threads" if m.loader.is_of_pack else "the workers"
    return f"{waiting}; {who} take cores from the computing: {percent(m.slowed_share)} more"


def queue_share(m: Measured) -> float:
    """Return how much of a sample's time is spent ready to run, without a core."""
    return (
        m.samples.cost.total.queue_s / max(m.samples.cost.total.wall_s, 1e-9)
        if m.samples.cost is not None
        else 0.0
    )


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
    waits = m.loop.exposed_s * queue_share(m) + (m.loop.own_s - m.loop.exposed_s) * m.training.queue_share
    # Of more workers than cores, some wait for each other, whoever else is there.
    theirs = 1.0 if m.loader.workers <= m.machine.cores else others / max(others + ours, 1e-9)
    return min(waits * theirs / m.loop.step_s, 0.95)
