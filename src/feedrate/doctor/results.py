# SPDX-License-Identifier: Apache-2.0
"""What the doctor returns, and a diagnosis read back from its own document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedrate import documents
from feedrate.errors import UsageError, clean
from feedrate.machine.results import Machine
from feedrate.units import format_factor, is_number

GAIN_WORTH_NAMING = 1.03  # below this a prediction is not worth a change to a script
RUN = "run"  # the name of the remedy that edits nothing
CONTENDED = "contended"  # the code of the finding that others use the machine
DOCUMENT_VERSION = 1  # of the documents that can be read back
# The run and its experiments, by what the hook calls them, in words for the user.
PHASE_NAMES = {
    "real": "the run itself",
    "drain": "the loader alone",
    "again": "the same samples again",
    "trial": "other workers",
    "replay": "training on batches kept in memory",
    "replay-half-precision": "half precision",
    "replay-channels-last": "channels last",
    "replay-loader-layout": "laid out as a Loader's",
}


def name_phase(phase: str) -> str:
    """Return what the user is told that a phase of the run is."""
    return PHASE_NAMES.get(phase, phase)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to change, and what it would give.

    Attributes:
        name: a stable word, e.g. `more-workers`.
        title: what to do, as an order: "use 8 workers instead of 2".
        predicted_speedup: of the whole run, 1.0 when it gives nothing; `low` and `high` bound it.
        next_bottleneck: the code of the finding that would then come first; None: not known.
        command: what to type, only where that command exists; a line of Python is in `change`.
        code: lines of Python to paste after that, complete.
        left_out: sentences: what the script does now and `code` does not, or does otherwise.
        basis: "measured" (tried in this very run), "predicted" (by the cost model).
        note: a sentence: why it gives nothing, what it costs, what it may spoil. Empty: nothing to say.
    """

    name: str
    title: str
    predicted_speedup: float
    low: float
    high: float
    next_bottleneck: str | None = None
    command: str | None = None
    change: str | None = None
    basis: str = "predicted"
    note: str = ""
    code: str | None = field(default=None, metadata={"has_lines": True})
    left_out: tuple[str, ...] = ()

    @property
    def helps(self) -> bool:
        return self.predicted_speedup >= GAIN_WORTH_NAMING

    @property
    def gain(self) -> str:
        """Return `2.4x (2.0-2.8)`."""
        speedup = self.predicted_speedup
        if not is_number(speedup):
            return "unknown"
        text = f"{format_factor(speedup)}x"
        if not (is_number(self.low) and is_number(self.high)):
            return text
        return f"{text} ({format_factor(self.low, speedup)}-{format_factor(self.high, speedup)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Attributes:
        share: of the run's time, what would be saved if the cause were gone, 0 to 1.
        explains: codes of findings of this run that it is the reason of; they stand after it.
    """

    code: str
    share: float
    title: str
    cause: str
    evidence: tuple[str, ...]
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    explains: tuple[str, ...] = ()

    @property
    def company(self) -> str:
        """Return who else used the machine, where that is the finding; empty: it is another one."""
        return clean(self.evidence[0] if self.evidence else self.title) if self.code == CONTENDED else ""


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of the step as the training process lived it. The shares of all parts add up to 1."""

    name: str  # "waiting for data", "copy to the device", "forward", ...
    seconds_per_step: float
    share: float
    exposed_s_per_step: float | None = None  # of a wait: the device stood idle; None: not a wait
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SamplePart:
    """A part of making one sample, in seconds per sample: wall = cpu + queue + blocked."""

    kind: str  # "read", "decode", "transform", "rest", "collate", "hand-over"
    name: str  # "PIL.ImageFile.load", "RandomResizedCrop", ...
    cpu_s: float
    queue_s: float
    blocked_s: float
    share: float  # of the whole sample


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the user's code that looks at the stack fell on. `share`: of the looks at that process."""

    place: str  # file:line
    function: str
    where: str  # "worker" or "main"
    share: float
    source: str  # the text of the line, when it could be read


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate. `name`: real, device, loader, loader-again, kernel, trial-8-workers ..."""

    name: str
    title: str
    samples_per_s: float
    low: float
    high: float
    batches: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on the timeline, seconds from the first one; what is not listed is `other`."""

    start_s: float
    wall_s: float
    wait_s: float
    exposed_s: float
    parts: Mapping[str, float]  # "copy", "forward", "backward", "optimizer", "sync", "save", "validation"
    phase: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """A reading of the machine over time.

    Attributes:
        limit: where the scale ends, when there is such a place.
        mean: over the steps that were seen, as facts and findings have it; None: unknown.
    """

    name: str
    unit: str
    times_s: tuple[float, ...]
    values: tuple[float | None, ...]
    limit: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the machine or the data, in words: ("file system", "nfs4, server:/home")."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the doctor itself cost, from steps that it left unprobed."""

    seconds_per_step: float
    share: float
    probed_steps: int
    unprobed_steps: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was run and seen.

    Attributes:
        mode: "experiments", "passive", or "ended" (the script was over before the experiments).
        exit_code: of the command; None when the doctor ended it.
        unseen: sentences on what was not seen ("no validation in 112 steps: use --passive").
        experiments: what was done to the run, in words, in order.
        threads: of the feedrate.Loader that fed it; None: a DataLoader did.
        model: its class; empty: an older document does not tell.
    """

    mode: str
    exit_code: int | None
    seconds: float
    steps: int
    warmup_steps: int
    samples_per_step: float
    seconds_per_step: float
    samples_per_s: float
    exposed_wait_share: float
    device: str  # "cpu" or the GPU's name
    ranks: int
    workers: int
    usable_cores: float
    unseen: tuple[str, ...]
    experiments: tuple[str, ...]
    threads: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`feedrate doctor`. `findings` are ordered, the verdict first, reasons before what they explain."""

    command: tuple[str, ...]
    verdict: str
    findings: tuple[Finding, ...]
    remedies: tuple[Remedy, ...]  # each once, best first; those that give nothing last, with the reason
    run: RunFacts
    split: tuple[TimeShare, ...] = ()
    sample: tuple[SamplePart, ...] = ()
    hot_lines: tuple[HotLine, ...] = ()
    rates: tuple[Rate, ...] = ()
    timeline: tuple[StepRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    facts: tuple[Fact, ...] = ()
    overhead: Overhead | None = None
    machine: Machine

    def keeps_wait_below(self, limit: float) -> bool:
        """Return whether the device waited for data for at most this share of the time.

        What could not be measured does not pass.
        """
        return is_number(self.run.exposed_wait_share) and self.run.exposed_wait_share <= limit


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the step in two runs, in seconds per step; None: that run has no such part."""

    name: str
    before_s: float | None
    after_s: float | None


@dataclass(frozen=True, slots=True)
class Verification:
    """`feedrate doctor --verify`: what had been predicted, and what came."""

    before_samples_per_s: float
    after_samples_per_s: float
    actual_speedup: float
    applied: Remedy | None  # the remedy that was recognised as applied
    is_inside: bool | None  # actual in [low, high]; None when no remedy was recognised
    changed: tuple[str, ...]  # what differs between the two runs, in words: "workers: 2 -> 8"
    gone: tuple[str, ...]  # codes of findings that went away
    new: tuple[str, ...]
    still: tuple[str, ...] = ()
    before_spread: tuple[float, float] | None = None  # of the samples per second, low and high
    after_spread: tuple[float, float] | None = None
    before_exposed_share: float | None = None
    after_exposed_share: float | None = None
    parts: tuple[PartChange, ...] = ()
    notes: tuple[str, ...] = ()  # sentences: why the two runs may not be compared like for like
    differs: tuple[str, ...] = ()  # not comparable: what shows that these are runs of two different things
    busy_before: str = ""  # not comparable: who else used the machine in the earlier run; empty: nobody
    busy_after: str = ""

    def keeps_speed(self, limit: float) -> bool:
        """Return whether the run lost at most this share of the earlier one's speed.

        A busy machine makes it slower, never faster; an earlier run on a busy machine is no measure.
        """
        return not (self.differs or self.busy_before) and self.actual_speedup >= 1 - limit


_HINT = "make one with 'feedrate doctor --json FILE -- COMMAND'"


def load_diagnosis(document: object) -> Diagnosis:
    """Return the diagnosis of a document that `feedrate doctor --json` wrote, of whatever age.

    What it does not tell, or tells as something else, is unknown: NaN for a number, "" for a text.

    Raises:
        UsageError: it is another document, or of a version that cannot be read.
    """
    whole = document if isinstance(document, Mapping) else {}
    if "command" not in whole or "schema_version" not in whole:
        raise UsageError("this is not a document of 'feedrate doctor --json'", hint=_HINT)
    if whole["command"] != "doctor":
        command = clean(str(whole["command"]))[:40]
        raise UsageError(f"this is a document of 'feedrate {command}', not of 'feedrate doctor'", hint=_HINT)
    version = whole["schema_version"]
    if version != DOCUMENT_VERSION:
        is_newer = isinstance(version, int) and version > DOCUMENT_VERSION
        said = clean(str(version))[:20]
        raise UsageError(
            f"this document has schema version {said}, and this feedrate reads version {DOCUMENT_VERSION}",
            hint="upgrade feedrate" if is_newer else "run the doctor again with this version of feedrate",
        )
    if not (isinstance(whole.get("run"), Mapping) and whole["run"]):
        raise UsageError("this document of 'feedrate doctor' is not whole: it has no 'run'", hint=_HINT)
    return documents.load(Diagnosis, {**whole, "command": whole.get("argv")}, _guess)


def _guess(kind: Any, value: Any) -> Any:
    """Return what stands for something that a document does not tell."""
    if kind is str:
        return "" if value is None else str(value)
    if kind in (Mapping, list):
        return {} if kind is Mapping else []
    is_told = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return value if is_told else math.nan
