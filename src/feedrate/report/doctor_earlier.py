# SPDX-License-Identifier: Apache-2.0
"""An earlier run of the doctor, read back from the document that `--json` wrote.

Documents may be of any age, or none of ours: what is wrong with one is said in a sentence,
what is missing is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from feedrate.doctor.results import Diagnosis, Remedy
from feedrate.errors import UsageError, clean
from feedrate.report.doctor_words import describe_company
from feedrate.report.document import SCHEMA_VERSION

_MUCH = 0.1  # of the time, lost to others: speeds are then theirs, too
_HINT = "make one with 'feedrate doctor --json FILE -- COMMAND'"


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be compared of a run, the earlier one or this. None: unknown.

    Attributes:
        spread: of the samples per second, low and high.
        split: seconds per step, by part.
        sample: seconds on or queued for a core, and blocked, per sample, by kind of part.
        busy: who else used the machine, so much that speeds say little; empty: nobody.
    """

    argv: tuple[str, ...]
    samples_per_s: float
    spread: tuple[float, float] | None
    exposed_share: float | None
    steps: float | None
    samples_per_step: float | None
    workers: float | None
    ranks: float | None
    usable_cores: float | None
    device: str
    facts: Mapping[str, str]
    split: Mapping[str, float]
    sample: Mapping[str, tuple[float, float]]
    codes: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    busy: str


def read_earlier(document: object) -> Seen:
    """Return the run that a document tells of.

    Raises:
        UsageError: it is not a document of `feedrate doctor --json`, or of a version that cannot be read.
    """
    whole = _check(document)
    run = _mapping(whole.get("run"))
    speed = _number(run.get("samples_per_s"))
    if speed is None or speed <= 0:
        raise UsageError("the earlier run saw no whole step: there is nothing to compare with", hint=_HINT)
    real = next((one for one in _list(whole, "rates") if one.get("name") == "real"), {})
    low, high = _number(real.get("low")), _number(real.get("high"))
    split = {str(one.get("name")): _number(one.get("seconds_per_step")) for one in _list(whole, "split")}
    argv = whole.get("argv")
    return Seen(
        argv=tuple(map(str, argv)) if isinstance(argv, list) else (),
        samples_per_s=speed,
        spread=(low, high) if low is not None and high is not None else None,
        exposed_share=_number(run.get("exposed_wait_share")),
        steps=_number(run.get("steps")),
        samples_per_step=_number(run.get("samples_per_step")),
        workers=_number(run.get("workers")),
        ranks=_number(run.get("ranks")),
        usable_cores=_number(run.get("usable_cores")),
        device=str(run.get("device", "")),
        facts={str(one.get("name")): str(one.get("value")) for one in _list(whole, "facts")},
        split={name: seconds for name, seconds in split.items() if seconds is not None},
        sample=_add_up(
            (str(one.get("kind")), [_number(one.get(n)) or 0.0 for n in ("cpu_s", "queue_s", "blocked_s")])
            for one in _list(whole, "sample")
        ),
        codes=tuple(str(one.get("code")) for one in _list(whole, "findings")),
        remedies=tuple(filter(None, map(_remedy, _list(whole, "remedies")))),
        busy=_find_company(
            (
                str(one.get("code")),
                _number(one.get("share")),
                str(one.get("title")),
                _texts(one.get("evidence")),
            )
            for one in _list(whole, "findings")
        ),
    )


def read_present(diagnosis: Diagnosis) -> Seen:
    """Return this run in the same terms.

    Raises:
        UsageError: it has no speed.
    """
    run = diagnosis.run
    speed = _number(run.samples_per_s)
    if speed is None or speed <= 0:
        raise UsageError("this run saw no whole step: there is nothing to compare")
    real = next((one for one in diagnosis.rates if one.name == "real"), None)
    low, high = (_number(real.low), _number(real.high)) if real else (None, None)
    return Seen(
        argv=diagnosis.command,
        samples_per_s=speed,
        spread=(low, high) if low is not None and high is not None else None,
        exposed_share=_number(run.exposed_wait_share),
        steps=run.steps,
        samples_per_step=_number(run.samples_per_step),
        workers=run.workers,
        ranks=run.ranks,
        usable_cores=_number(run.usable_cores),
        device=run.device,
        facts={one.name: one.value for one in diagnosis.facts},
        split={
            one.name: one.seconds_per_step for one in diagnosis.split if math.isfinite(one.seconds_per_step)
        },
        sample=_add_up((one.kind, (one.cpu_s, one.queue_s, one.blocked_s)) for one in diagnosis.sample),
        codes=tuple(one.code for one in diagnosis.findings),
        remedies=diagnosis.remedies,
        busy=_find_company((one.code, one.share, one.title, one.evidence) for one in diagnosis.findings),
    )


def _find_company(findings: Iterable[tuple[str, float | None, str, Sequence[str]]]) -> str:
    said = (
        describe_company(code, title, evidence)
        for code, share, title, evidence in findings
        if share is not None and share >= _MUCH
    )
    return next(filter(None, said), "")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _check(document: object) -> Mapping[str, object]:
    whole = _mapping(document)
    if "command" not in whole or "schema_version" not in whole:
        raise UsageError("this is not a document of 'feedrate doctor --json'", hint=_HINT)
    if whole["command"] != "doctor":
        command = clean(str(whole["command"]))[:40]
        raise UsageError(f"this is a document of 'feedrate {command}', not of 'feedrate doctor'", hint=_HINT)
    version = whole["schema_version"]
    if version != SCHEMA_VERSION:
        is_newer = isinstance(version, int) and version > SCHEMA_VERSION
        said = clean(str(version))[:20]
        raise UsageError(
            f"this document has schema version {said}, and this feedrate reads version {SCHEMA_VERSION}",
            hint="upgrade feedrate" if is_newer else "run the doctor again with this version of feedrate",
        )
    if not _mapping(whole.get("run")):
        raise UsageError("this document of 'feedrate doctor' is not whole: it has no 'run'", hint=_HINT)
    return whole


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(document: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    value = document.get(name)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A whole number of JSON has no largest one; a float has.
    return float(value) if abs(value) < 1e300 else None


def _remedy(one: Mapping[str, object]) -> Remedy | None:
    speedup, low, high = (_number(one.get(name)) for name in ("predicted_speedup", "low", "high"))
    if speedup is None or low is None or high is None:
        return None
    change, code = one.get("change"), one.get("next_bottleneck")
    return Remedy(
        str(one.get("name", "")), str(one.get("title", "")), speedup, low, high,
        next_bottleneck=str(code) if code is not None else None,
        change=str(change) if change is not None else None,
        basis=str(one.get("basis", "")), note=str(one.get("note", "")),
    )  # fmt: skip


def _add_up(parts: Iterable[tuple[str, Sequence[float]]]) -> dict[str, tuple[float, float]]:
    kinds: dict[str, tuple[float, float]] = {}
    for kind, (cpu_s, queue_s, blocked_s) in parts:
        core, blocked = kinds.get(kind, (0.0, 0.0))
        if all(map(math.isfinite, (cpu_s, queue_s, blocked_s))):
            kinds[kind] = (core + cpu_s + queue_s, blocked + blocked_s)
    return kinds
