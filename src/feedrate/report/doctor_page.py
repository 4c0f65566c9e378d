# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --html`: whatever comes from the user's run is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from feedrate.doctor.results import Diagnosis, Finding, HotLine, Rate, Remedy, SamplePart, TimeShare
from feedrate.report import doctor_charts as charts
from feedrate.report import doctor_words as words
from feedrate.report.page import draw_frame, draw_section, show, show_sentence
from feedrate.units import format_count, is_number


def draw_doctor_page(diagnosis: Diagnosis) -> str:
    """Return the page as HTML."""
    command = shlex.join(diagnosis.command)
    sections = (
        draw_section("What would help", _remedies(diagnosis.remedies))
        if diagnosis.run.steps
        else draw_section("What to do", _cures(diagnosis.remedies)),
        draw_section("Why", "".join(_finding(one, diagnosis) for one in diagnosis.findings)),
        draw_section("Where a step's time goes", _draw_split(diagnosis.split)),
        draw_section("Where a sample's time goes", _draw_sample(diagnosis.sample)),
        draw_section("Step by step", _draw_steps(diagnosis)),
        draw_section("What each part could do", _draw_rates(diagnosis.rates)),
        draw_section("Busy lines of code", _hot_lines(diagnosis.hot_lines)),
        draw_section("What the machine did", _draw_curves(diagnosis)),
        draw_section("Machine and data", _facts({one.name: one.value for one in diagnosis.facts})),
        draw_section("What was done and seen", _run(diagnosis)),
    )
    return draw_frame(
        f"feedrate doctor: {command}",
        _figures(diagnosis) + "".join(sections),
        heading="Is it slow?" if words.is_healthy(diagnosis) else "Why is it slow?",
        lead=f"<code>{show(command)}</code>",
        verdict=words.verdict(diagnosis),
        tone="good" if words.is_healthy(diagnosis) else "",
        machine=diagnosis.machine,
    )


def _figures(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    if not run.steps:
        return ""
    figures = (
        ("speed", words.rate(run.samples_per_s)),
        ("a step", f"{words.seconds(run.seconds_per_step)}, {words.number(run.samples_per_step)} samples"),
        ("device idle, waiting", words.share(run.exposed_wait_share)),
        ("device", words.list_setting(run)[0]),
        ("workers, cores", ", ".join(words.list_setting(run)[1:])),
    )
    return '<dl class="figures">' + "".join(
        f"<div><dt>{name}</dt><dd>{show(value)}</dd></div>" for name, value in figures
    ) + "</dl>"  # fmt: skip


def _remedies(remedies: Sequence[Remedy]) -> str:
    helping, useless = words.part_remedies(remedies)
    highs = [one.high for one in helping if is_number(one.high)]
    end = min(100.0, max([1.5, *highs])) * 1.03
    start = max(0.2, min([1.0, *(one.low for one in helping if is_number(one.low))]))
    text = "".join(_remedy(one, start, end) for one in helping)
    if helping:
        legend = "Speed-up of the whole run: what is predicted, and the interval that it should fall into."
        text = f'<p class="soft">{legend}</p>{text}'
        text += f'<div class="remedy"><span></span>{charts.draw_scale(start, end)}</div>'
    if useless:
        rows = "".join(f"<li>{show(words.useless(one))}</li>" for one in useless)
        text += f"<article><h3>Would give nothing</h3><ul>{rows}</ul></article>"
    return text


def _cures(remedies: Sequence[Remedy]) -> str:
    """Of a run that ended before its first step nothing can be predicted; there is something to do first."""
    return "".join(
        f"<article><h3>{show_sentence(one.title)}</h3>"
        + (f'<p class="soft">{show_sentence(one.note)}</p>' if one.note else "")
        + "".join(f"<pre>{show(line)}</pre>" for line in (one.command, one.change) if line)
        + "</article>"
        for one in remedies
    )


def _remedy(one: Remedy, start: float, end: float) -> str:
    said = ["tried in this run" if one.basis == "measured" else "predicted"]
    if one.next_bottleneck:
        said.append(f"then the limit is {one.next_bottleneck}")
    typed = "".join(
        f"<pre>{show(line)}</pre>" for line in (one.command, one.change) if line
    )  # fmt: skip
    if one.code:
        typed += f"<pre>{chr(10).join(map(show, one.code.rstrip().split(chr(10))))}</pre>"
    if one.left_out:
        rows = "".join(f"<li>{show(text)}</li>" for text in one.left_out)
        typed += f'<p class="soft">What this does not do, or does otherwise:</p><ul>{rows}</ul>'
    return f"""
<article><div class="remedy">
<h3>{show_sentence(one.title)}</h3>
<div><span class="gain">{one.gain}</span> <small>{show(", ".join(said))}</small>
{charts.draw_interval(one.low, one.predicted_speedup, one.high, start=start, end=end)}</div></div>
{f'<p class="soft">{show_sentence(one.note)}</p>' if one.note else ""}{typed}</article>"""


def _finding(one: Finding, diagnosis: Diagnosis) -> str:
    # A run that died before its first step has no time to take a share of.
    share = f" {words.share(one.share)} of the time" if diagnosis.run.steps else ""
    reason = words.reason(one, diagnosis.findings)
    evidence = "".join(f"<li>{show(text)}</li>" for text in one.evidence)
    numbers = [words.named(name, value) for name, value in one.numbers.items()]
    helping, _ = words.part_remedies(one.remedies)
    helped = "; ".join(f"{remedy.title}, {remedy.gain}" for remedy in helping)
    return f"""
<article>
<h3><code>{show(one.code)}</code>{share}{show(reason)}: {show(one.title)}</h3>
{f"<p>{show(one.cause)}</p>" if one.cause else ""}
{f"<ul>{evidence}</ul>" if evidence else ""}
{f'<p class="soft">Helps: {show(helped)}</p>' if helped else ""}
{f"<p><small>{show('; '.join(numbers))}</small></p>" if numbers else ""}
</article>"""


def _hot_lines(lines: Sequence[HotLine]) -> str:
    return "".join(
        f'<article><h3>{words.share(one.share)} of the looks at the '
        f'{"training process" if one.where == "main" else show(one.where)}: <code>{show(one.place)}</code> '
        f"{show(one.function)}</h3>{f'<pre>{show(one.source)}</pre>' if one.source else ''}</article>"
        for one in lines
    )  # fmt: skip


def _run(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    done = "".join(f"<li>{show(text)}</li>" for text in run.experiments)
    unseen = "".join(f"<li>{show(text)}</li>" for text in run.unseen)
    cost = diagnosis.overhead
    probed = f" ({cost.probed_steps:,} probed against {cost.unprobed_steps:,} unprobed steps)" if cost else ""
    return f"""
<p>{show_sentence(words.end(run))}; {words.seconds(run.seconds)}.
{format_count(run.warmup_steps, "step")} of warm-up left out of the figures.</p>
{f"<p>Experiments, in order:</p><ul>{done}</ul>" if done else ""}
{f"<p>Not seen:</p><ul>{unseen}</ul>" if unseen else ""}
<p>The doctor itself: {show(words.overhead(diagnosis))}{probed}.</p>"""


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{show(name)}</dt><dd>{show(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>' if rows else ""


_STATES = (
    ("cpu", "on a core"),
    ("queue", "ready, but no core was free"),
    ("blocked", "blocked: disk, network, locks"),
)
_GROUND = " Grey ground: experiments of the doctor."
_STEP_KEY = (
    ("exposed", "waiting, device idle"), ("hidden", "waiting, device busy"), ("copy", "copy"),
    ("forward", "forward"), ("backward", "backward"), ("optimizer", "optimizer"),
    ("sync", "synchronising, outputs"), ("save", "saving"), ("validation", "validation"), ("other", "other"),
)  # fmt: skip


def _draw_split(split: Sequence[TimeShare]) -> str:
    if not split:
        return ""
    parts, rows = [], []
    for one in split:
        tone, share = charts.find_tone(one.name), one.share
        idle = one.exposed_s_per_step
        title = f"{one.name}: {words.seconds(one.seconds_per_step)}, {words.share(share)}"
        if is_number(idle) and one.seconds_per_step > 0:
            exposed = share * words.clamp(idle / one.seconds_per_step)
            parts.append(("exposed", exposed, f"{title}, device idle"))
            parts.append(("hidden", share - exposed, f"{title}, device busy"))
        else:
            parts.append((tone, share, title))
        detail = [f"device idle for {words.seconds(idle)} of it"] if idle is not None else []
        rows.append(
            f'<tr><td><i class="dot {tone}"></i>{show(one.name)}</td>'
            f'<td class="number">{words.seconds(one.seconds_per_step)}</td>'
            f'<td class="number">{words.share(share)}</td>'
            f'<td class="soft">{show(", ".join([*detail, *([one.detail] if one.detail else [])]))}</td></tr>'
        )
    return f"{charts.draw_bar(parts)}<table>{''.join(rows)}</table>"


def _draw_sample(sample: Sequence[SamplePart]) -> str:
    walls = [one.cpu_s + one.queue_s + one.blocked_s for one in sample]
    largest = max((wall for wall in walls if is_number(wall)), default=0.0)
    if not largest > 0:
        return ""
    rows = "".join(
        f"<tr><td>{show(one.kind)}</td><td>{show(one.name)}</td>"
        f'<td class="number">{words.seconds(wall)}</td><td class="number">{words.share(one.share)}</td>'
        f'<td class="wide">{_states(one, largest)}</td></tr>'
        for one, wall in zip(sample, walls, strict=True)
    )
    total = words.seconds(sum(wall for wall in walls if is_number(wall)))
    head = f'<p class="soft">{total} per sample, where samples are made.</p>'
    return f"{head}<table>{rows}</table>{charts.draw_key(_STATES)}"


def _states(one: SamplePart, largest: float) -> str:
    states = (("cpu", one.cpu_s), ("queue", one.queue_s), ("blocked", one.blocked_s))
    return charts.draw_bar(
        [(tone, seconds, f"{tone} {words.seconds(seconds)}") for tone, seconds in states],
        total=largest, small=True,
    )  # fmt: skip


def _draw_steps(diagnosis: Diagnosis) -> str:
    rows = diagnosis.timeline
    if not rows:
        return ""
    seen = {charts.find_tone(name) for row in rows for name in row.parts} | {"exposed", "hidden", "other"}
    key = charts.draw_key([(tone, name) for tone, name in _STEP_KEY if tone in seen])
    ground = _GROUND if any(row.phase != "real" for row in rows) else ""
    legend = (
        f"One column per step, as high as it is long; a mark on top: longer than the chart is high.{ground}"
    )
    return f'<p class="soft">{legend}</p>{charts.draw_timeline(rows)}{key}'


def _draw_rates(rates: Sequence[Rate]) -> str:
    known = sorted(one.samples_per_s for one in rates if is_number(one.samples_per_s))
    if not known:
        return ""
    # One rate far above all others would press those flat that are to be compared.
    end = 1.25 * known[-2] if len(known) > 1 and known[-1] > 3 * known[-2] else known[-1]
    rows = "".join(
        f"<tr><td>{show(one.title)}</td>"
        f'<td class="number">{words.rate(one.samples_per_s)}</td>'
        f'<td class="number soft">{words.number(one.low)} to {words.number(one.high)}</td>'
        f'<td class="wide">{_rate_bar(one, end)}</td></tr>'
        for one in rates
    )
    return f"<table>{rows}</table>"


def _rate_bar(one: Rate, end: float) -> str:
    if not (is_number(one.samples_per_s) and end > 0):
        return ""
    tone = "exposed" if one.name == "real" else "cpu"
    if one.samples_per_s > 1.001 * end:
        tone += " cut"
    title = f"{words.rate(one.samples_per_s)}, {one.batches:,} batches"
    return charts.draw_bar([(tone, one.samples_per_s / end, title)], small=True)


def _draw_curves(diagnosis: Diagnosis) -> str:
    if not diagnosis.curves:
        return ""
    tried = [row.start_s for row in diagnosis.timeline if row.phase != "real" and is_number(row.start_s)]
    until = min(tried, default=None)
    still = [one for one in diagnosis.curves if not any(one.values)]
    moving = [one for one in diagnosis.curves if one not in still]
    drawn = "".join(charts.draw_curve(one, real_until_s=until) for one in moving)
    ground = _GROUND if until is not None else ""
    legend = f"The mean of the steps, and the largest reading; dashed: the limit.{ground}"
    names = show("; ".join(one.name for one in still))
    rest = f"<p><small>Zero all the time: {names}.</small></p>" if still else ""
    return f'<p class="soft">{legend}</p><div class="curves">{drawn}</div>{rest}'
