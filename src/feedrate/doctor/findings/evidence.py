# SPDX-License-Identifier: Apache-2.0
"""What causes and remedies share: the form of a cause's answer, when a number is worth telling, and what the
run would be with something changed, by the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feedrate.doctor.analyse.metrics import Measured
from feedrate.doctor.analyse.sample import Cost
from feedrate.doctor.findings.prediction import saved_by
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


def lost(m: Measured, gain: float) -> float:
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
    return lost(m, now.gain_of(then))


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
