# SPDX-License-Identifier: Apache-2.0
"""From what was measured to what is said: verdict, findings, remedies, and the tables behind them.

A finding's share is the part of the run's time that would be saved if its cause were gone, by the cost model.
Some causes explain others (decoding is slow because all workers sit on one core): they come first, whatever
the shares.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from feedrate.doctor.analyse.metrics import Measured, Timing
from feedrate.doctor.analyse.timeline import measure_overhead
from feedrate.doctor.findings.catalogue import CATALOGUE, GOOD_CASE, Entry, list_remedies
from feedrate.doctor.findings.evidence import WORTH_A_VERDICT, WORTH_TELLING, Evidence
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import (
    RUN,
    Diagnosis,
    Finding,
    HotLine,
    Rate,
    Remedy,
    RunFacts,
    SamplePart,
    StepRow,
    TimeShare,
    name_phase,
)
from feedrate.machine.results import Machine
from feedrate.model import limits
from feedrate.units import format_count

_TIMELINE_STEPS = 400
_FEWEST_STEPS = 20
_LOOP, _REPEATED = "transform-bound", "repeated-work"
# Work of the workers, which costs the computing its cores where nobody waits for it.
_TAKE_CORES = (limits.DECODE, limits.TRANSFORM, limits.REPEATED, limits.HANDOVER, limits.UNPACK)
_AS_MUCH = 0.95  # of the gain of keeping results, at least: as much as that
_SECOND_WAY = (
    "a second way: the same work repeats in every epoch, and its result could be kept (repeated-work)"
)
_TITLES = {
    "copy": "copy to the device", "sync": "waiting for the device", "readback": "copy back from the device",
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "write": "writing files",
    "validation": "validation", "save": "saving", "epoch-start": "start of epochs",
}  # fmt: skip


def diagnose(
    m: Measured,
    *,
    command: Sequence[str],
    mode: str,
    exit_code: int | None,
    seconds: float,
    machine: Machine,
    origin_ns: int | None = None,
) -> Diagnosis:
    """Judge one run. `origin_ns`: where the timeline's clock begins; None: at the first step."""
    remedies = list_remedies(m)
    if _is_under_run(command):
        remedies.pop(RUN, None)
    elif (one := remedies.get(RUN)) is not None:
        remedies[RUN] = replace(one, command=f"{one.command} {shlex.join(command)}")
    findings = find_causes(m, remedies)
    return Diagnosis(
        command=tuple(command),
        verdict=word_verdict(m, findings),
        findings=findings,
        remedies=rank_remedies(findings, remedies.values()),
        run=_run_facts(m, mode, exit_code, seconds),
        split=_split(m),
        sample=_sample_parts(m),
        hot_lines=_hot_lines(m),
        rates=_rates(m),
        timeline=_timeline(m, m.loop.start_ns if origin_ns is None else origin_ns),
        overhead=measure_overhead(m.loop),
        machine=machine,
    )


def _is_under_run(command: Sequence[str]) -> bool:
    """Return whether a command begins with `feedrate run`, or `python -m feedrate run`."""
    names = [os.path.basename(word) for word in command[:4]]
    return ["feedrate", RUN] in [names[:2], names[2:]]


def find_causes(m: Measured, remedies: Mapping[str, Remedy]) -> tuple[Finding, ...]:
    """Return the findings of a run, the verdict first: reasons before what they explain."""
    found = {entry.code: (entry, evidence) for entry in CATALOGUE if (evidence := entry.look(m)) is not None}
    shares = {code: evidence.share for code, (_, evidence) in found.items()}
    weights = {code: evidence.rank_by for code, (_, evidence) in found.items()}
    explains = {
        code: tuple(other for other in entry.explains if other in found)
        for code, (entry, _) in found.items()
        if min(shares[code], weights[code]) >= entry.explains_from
    }
    if _is_loop_the_root(shares, remedies):
        entry, evidence = found[_LOOP]
        found[_LOOP] = (entry, replace(evidence, lines=(*evidence.lines, _SECOND_WAY)))
        explains[_REPEATED] = tuple(other for other in explains.get(_REPEATED, ()) if other != _LOOP)
        explains[_LOOP] = (_REPEATED,)
    outside = {code for code, (entry, _) in found.items() if entry.is_outside}
    curable = {code for code in found if code != GOOD_CASE and weights[code] >= WORTH_A_VERDICT}
    if GOOD_CASE in found and curable:
        # What a cause costs that can be cured is not the device's own work.
        rest = max(1.0 - max(shares[code] for code in curable), 0.0)
        shares[GOOD_CASE] = weights[GOOD_CASE] = min(shares[GOOD_CASE], rest)
    # A device at work is the good case: it never hides a cause that can be cured.
    order = rank(weights, explains, outside=outside, after={GOOD_CASE: curable})
    return tuple(_make(*found[code], shares[code], explains.get(code, ()), remedies) for code in order)


def _is_loop_the_root(shares: Mapping[str, float], remedies: Mapping[str, Remedy]) -> bool:
    """Return whether work repeats that would be short without its Python loop: then the loop is the cause."""
    if _REPEATED not in shares or shares.get(_LOOP, 0.0) < shares[_REPEATED]:
        return False
    vectorised = remedies.get("vectorise-transform")
    kept = [remedies[name] for name in ("preprocess-once", "cache-in-memory") if name in remedies]
    if vectorised is None or not vectorised.helps:
        return False
    return vectorised.predicted_speedup >= _AS_MUCH * max((r.predicted_speedup for r in kept), default=1.0)


def rank(
    weights: Mapping[str, float],
    explains: Mapping[str, Collection[str]],
    *,
    outside: Collection[str] = (),
    after: Mapping[str, Collection[str]] | None = None,
) -> list[str]:
    """Return the codes of `weights` in order; of equal ones, the one that `weights` names first.

    Args:
        explains: what each code is the reason of; no circles. It weighs as much as the heaviest of them.
        outside: codes that weigh no more for what they explain.
        after: further codes that one has to stand behind.
    """

    def pull(code: str) -> float:
        own = weights[code]
        return own if code in outside else max([own, *(pull(other) for other in explains.get(code, ()))])

    before = {code: {reason for reason in weights if code in explains.get(reason, ())} for code in weights}
    for code, others in (after or {}).items():
        before.setdefault(code, set()).update(others)
    left, ordered = list(weights), []
    while left:
        ready = [code for code in left if before[code].isdisjoint(left)]
        ordered.append(max(ready, key=pull))
        left.remove(ordered[-1])
    return ordered


def _make(
    entry: Entry, evidence: Evidence, share: float, explains: tuple[str, ...], remedies: Mapping[str, Remedy]
) -> Finding:
    cures = [remedies[name] for name in (*evidence.cures, *entry.cures) if name in remedies]
    return Finding(
        code=entry.code,
        share=round(share, 4),
        title=evidence.title or entry.title,
        cause=evidence.cause or entry.cause,
        evidence=tuple(evidence.lines),
        numbers=evidence.numbers,
        remedies=tuple(sorted(cures, key=lambda remedy: -remedy.predicted_speedup)),
        explains=explains,
    )


def word_verdict(m: Measured, findings: Sequence[Finding]) -> str:
    """Return one sentence: the first finding's, with its number."""
    if not findings:
        return f"Nothing holds this run up for more than {WORTH_A_VERDICT:.0%} of its time."
    first = findings[0]
    if first.code == "device-bound":
        return f"{first.title}; data is waited for {m.loop.exposed_share:.0%} of the time."
    if first.share < WORTH_TELLING:
        return f"{first.title}."
    text = f"{first.title}; that costs {first.share:.0%} of the time"
    is_hidden = first.share > m.loop.exposed_share + WORTH_TELLING
    if first.code in _TAKE_CORES and is_hidden and m.slowed_share >= WORTH_TELLING:
        who = "the loader's threads" if m.loader.is_of_pack else "the workers"
        waits = f"{m.loop.exposed_share:.0%} in waiting"
        return f"{text}: {waits}, the rest because {who} take cores from the computing."
    return f"{text}."


def rank_remedies(findings: Sequence[Finding], remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Order by gain; what cures the first finding goes first among equals, what gives nothing last.

    What others would have to do stands behind what the user can, unless it is the verdict.
    """
    favoured = {remedy.name for finding in findings[:1] for remedy in finding.remedies}

    def key(remedy: Remedy) -> tuple[bool, bool, float, bool]:
        return (
            not remedy.helps,
            remedy.name == "stop-others" and remedy.name not in favoured,
            -remedy.predicted_speedup,
            remedy.name not in favoured,
        )

    return tuple(sorted(remedies, key=key))


def _run_facts(m: Measured, mode: str, exit_code: int | None, seconds: float) -> RunFacts:
    return RunFacts(
        mode=mode,
        exit_code=exit_code,
        seconds=seconds,
        steps=len(m.loop.steps),
        warmup_steps=m.loop.warmup_steps,
        samples_per_step=m.loop.samples_per_step,
        seconds_per_step=m.loop.step_s,
        samples_per_s=m.loop.samples_per_step / m.loop.step_s,
        exposed_wait_share=m.loop.exposed_s / m.loop.step_s,
        device=m.loader.framework
        or ((m.machine.gpu_name or str(m.training.module.get("device"))) if m.training.is_on_gpu else "cpu"),
        ranks=len(m.loops),
        workers=m.loader.workers,
        threads=m.loader.threads or None,
        model=str(m.training.module.get("class") or "unknown"),
        usable_cores=m.machine.cores,
        unseen=tuple(_unseen(m, mode)),
        experiments=tuple(_experiments(m)),
    )


def _unseen(m: Measured, mode: str) -> list[str]:
    # A script that ended by itself has shown all that there is to see.
    steps, hint = len(m.loop.steps), ": use --passive to see more" if mode == "experiments" else ""
    unseen = []
    if m.loader.framework:
        unseen.append(
            f"what {m.loader.framework} does in a step, which is from one batch that it takes to the next: "
            "it takes them ahead of their use"
        )
    if m.training.is_on_gpu and not m.machine.gpu_name and importlib.util.find_spec("pynvml") is None:
        unseen.append("how busy the GPU was: nvidia-ml-py is not installed (pip install nvidia-ml-py)")
    if not m.loop.validations and m.loop.has_optimizer:
        unseen.append(f"no validation in {steps} steps{hint}")
    if not m.loop.saves and m.loop.has_optimizer:
        unseen.append(f"no checkpoint in {steps} steps{hint}")
    if not m.loop.epochs:
        unseen.append(f"no start of an epoch in {steps} steps{hint}")
    reasons = {str(fact["why"]) for fact in m.experiments.skipped}
    if len(reasons) == 1 and len(m.experiments.skipped) >= len(layout.EXPERIMENTS):
        return [f"no experiments: {reasons.pop()}", *unseen, *m.machine.notes]
    if mode == "ended":
        made = steps + m.loop.warmup_steps + 1
        unseen.append(f"the script ended after {made} steps, before the experiments{_why_late(m)}")
    skipped = {
        f"{name_phase(layout.PHASES[fact['phase']])}: {fact['why']}": bool(fact.get("is_dropped"))
        for fact in m.experiments.skipped
        if fact.get("phase", 99) < len(layout.PHASES)
    }
    # First of all what was tried in vain: the short report names one or two.
    dropped = [text for text, is_dropped in skipped.items() if is_dropped]
    return [*dropped, *unseen, *(text for text in skipped if text not in dropped), *m.machine.notes]


def _why_late(m: Measured) -> str:
    """Return why experiments that were due had not begun, and what would let them."""
    due, left, needed = (int(m.experiments.no_room.get(name) or 0) for name in ("steps", "left", "needed"))
    if not due:
        return ""
    in_time = due + left - needed
    hint = f"; --steps {in_time} begins them in time" if in_time >= _FEWEST_STEPS else ""
    return f": after {due} steps its epoch had {left} left, and they need {needed}{hint}"


def _experiments(m: Measured) -> list[str]:
    words = {
        layout.DRAIN: "took {n} batches without training: what the loader could give",
        layout.AGAIN: "took the same {n} batches again: what it would give from memory",
        layout.TRIAL: "trained {n} steps with {workers}",
        layout.REPLAY: "trained {n} steps on batches kept in memory: what the device could take",
        layout.REPLAY_HALF_PRECISION: "the same in half precision, {n} steps",
        layout.REPLAY_CHANNELS_LAST: "the same in channels-last layout and as before in turn, {n} steps",
        layout.REPLAY_LOADER_LAYOUT: "the same on batches laid out as feedrate.Loader's, {n} steps",
    }
    said = []
    for fact in m.experiments.phases:
        text = words.get(int(fact.get("phase", -1)))
        if text is not None:
            workers = (fact.get("detail") or {}).get("workers")
            named = "other workers" if workers is None else format_count(int(workers), "worker")
            named += ", as before, to compare with" if workers == m.loader.workers else ""
            said.append(text.format(n=fact.get("batches", 0), workers=named))
    if m.experiments.blocked:
        said.append(
            f"held back {format_count(len(m.experiments.blocked), 'write')} of the spoilt run: "
            + ", ".join(sorted({str(f.get("what")) for f in m.experiments.blocked})[:3])
        )
    return said


def _split(m: Measured) -> tuple[TimeShare, ...]:
    shares = [TimeShare("waiting for data", m.loop.wait_s, m.loop.wait_s / m.loop.step_s, m.loop.exposed_s)]
    for part, title in _TITLES.items():
        seconds = m.loop.per_step(part)
        if seconds > 0:
            detail = m.loop.place_of(part)
            shares.append(TimeShare(title, seconds, seconds / m.loop.step_s, None, detail))
    rest = max(m.loop.other_s, 0.0)
    name = f"{m.loader.framework}, and the loop's own code" if m.loader.framework else "the loop's own code"
    shares.append(TimeShare(name, rest, rest / m.loop.step_s))
    # Parts are known from the probed steps, the whole from all: make the shares add up.
    total = sum(share.share for share in shares) or 1.0
    return tuple(replace(s, share=s.share / total) for s in sorted(shares, key=lambda s: -s.share))


def _sample_parts(m: Measured) -> tuple[SamplePart, ...]:
    sample = m.samples.cost
    if not sample.samples:
        return ()
    handover_s = m.samples.feeder_cpu_s / max(m.loop.samples_per_step, 1)
    whole = sample.total.wall_s + handover_s or 1.0
    parts = [
        SamplePart(kind, name or "the dataset's own code", c.cpu_s, c.queue_s, c.blocked_s, c.wall_s / whole)
        for (kind, name), c in sample.parts.items()
        if c.wall_s > 0.002 * whole
    ]
    if handover_s > 0:
        share = handover_s / whole
        parts.append(SamplePart("hand-over", "pickling, beside the rest", handover_s, 0.0, 0.0, share))
    return tuple(sorted(parts, key=lambda part: -part.share))


def _hot_lines(m: Measured) -> tuple[HotLine, ...]:
    return tuple(
        HotLine(p.place, p.function, where, p.share, p.source)
        for where, looks in (("worker", m.samples.looks), ("main", m.training.looks))
        for p in looks.places[:5]
        if p.share >= 0.03
    )


def _rates(m: Measured) -> tuple[Rate, ...]:
    n, tried = m.loop.samples_per_step, m.tried
    rates = []

    def add(name: str, title: str, timing: Timing | None) -> None:
        if timing is not None and timing.seconds > 0:
            low, high = n / max(timing.high, 1e-9), n / max(timing.low, 1e-9)
            rates.append(Rate(name, title, n / timing.seconds, low, high, timing.batches))

    def add_tried(name: str, title: str, per_s: float, count: int) -> None:
        rates.append(Rate(name, title, per_s, per_s * 0.9, per_s * 1.1, count))

    add("real", "the run as it is", Timing.of([step.wall_s for step in m.loop.steps]))
    add("device", "the device, on batches kept in memory", m.experiments.device)
    add("loader", "the loader, without training", m.experiments.drain)
    add("loader-again", "the loader, the same samples again", m.experiments.again)
    for k, timing in sorted(m.experiments.trials.items()):
        how = "as it is, once more" if k == m.loader.workers else f"with {format_count(k, 'worker')}"
        add(f"trial-{k}-workers", f"the run {how}", timing)
    add("half-precision", "the device in half precision", m.experiments.half_precision)
    add("channels-last", "the device in channels-last layout", m.experiments.channels_last)
    if tried.kernel is not None and tried.kernel.taken:
        files = "those files that it takes" if tried.kernel.left else "these files"
        title = f"feedrate's decoder on {files}, one core"
        add_tried("kernel", title, 1 / tried.kernel.cpu_s_per_image, tried.kernel.taken)
    if tried.trial is not None:
        cores = format_count(tried.trial.threads, "core")
        title = f"feedrate.Loader on these files, without training, {cores}"
        add_tried("feedrate-loader", title, tried.trial.images_per_s, tried.trial.images)
    return tuple(rates)


def _timeline(m: Measured, origin_ns: int) -> tuple[StepRow, ...]:
    rows = []
    for rank, loop in m.loops.items():
        for step in loop.steps[:_TIMELINE_STEPS]:
            start_s = (step.start_ns - origin_ns) * 1e-9
            parts = {name: seconds for name, seconds in step.parts.items() if seconds > 0}
            rows.append(StepRow(start_s, step.wall_s, step.wait_s, step.exposed_s, parts, "real", rank))
    for phase, waits in m.experiments.waits.items():
        for start, wait, after in waits[:_TIMELINE_STEPS]:
            start_s, wall_s, wait_s = (ns * 1e-9 for ns in (start - origin_ns, after - start, wait))
            rows.append(StepRow(start_s, wall_s, wait_s, wait_s, {}, layout.PHASES[phase], min(m.loops)))
    return tuple(rows)
