# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --html`: one file that needs no network, no script and no other file.

Its policy forbids the browser to fetch or run anything at all; whatever comes from the user's run is escaped.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from feedrate.doctor.results import Diagnosis, Finding, HotLine, Remedy
from feedrate.report.doctor_charts import draw_interval, draw_scale
from feedrate.report.doctor_parts import draw_curves, draw_rates, draw_sample, draw_split, draw_steps
from feedrate.report.doctor_style import STYLE
from feedrate.report.doctor_words import (
    describe_end,
    describe_gain,
    describe_named,
    describe_number,
    describe_overhead,
    describe_rate,
    describe_reason,
    describe_seconds,
    describe_share,
    describe_useless,
    describe_verdict,
    is_healthy,
    is_number,
    list_setting,
    part_remedies,
)
from feedrate.report.page import describe_machine, show
from feedrate.units import format_count

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def draw_doctor_page(diagnosis: Diagnosis) -> str:
    """Return the page as HTML."""
    command = shlex.join(diagnosis.command)
    sections = (
        _section("What would help", _remedies(diagnosis.remedies))
        if diagnosis.run.steps
        else _section("What to do", _cures(diagnosis.remedies)),
        _section("Why", "".join(_finding(one, diagnosis) for one in diagnosis.findings)),
        _section("Where a step's time goes", draw_split(diagnosis.split)),
        _section("Where a sample's time goes", draw_sample(diagnosis.sample)),
        _section("Step by step", draw_steps(diagnosis)),
        _section("What each part could do", draw_rates(diagnosis.rates)),
        _section("Busy lines of code", _hot_lines(diagnosis.hot_lines)),
        _section("What the machine did", draw_curves(diagnosis)),
        _section("Machine and data", _facts({one.name: one.value for one in diagnosis.facts})),
        _section("What was done and seen", _run(diagnosis)),
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>feedrate doctor: {show(command)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{"Is it slow?" if is_healthy(diagnosis) else "Why is it slow?"}</h1>
<p class="soft"><code>{show(command)}</code></p>
<p class="verdict{" good" if is_healthy(diagnosis) else ""}">{show(describe_verdict(diagnosis))}</p>
{_figures(diagnosis)}
{"".join(sections)}
<p class="soft"><small>{show(describe_machine(diagnosis.machine))}</small></p>
</body>
</html>
"""


def _section(title: str, body: str) -> str:
    return f"\n<section>\n<h2>{title}</h2>\n{body}\n</section>" if body else ""


def _sentence(text: str) -> str:
    return show(text[:1].upper() + text[1:])


def _figures(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    if not run.steps:
        return ""
    figures = (
        ("speed", describe_rate(run.samples_per_s)),
        (
            "a step",
            f"{describe_seconds(run.seconds_per_step)}, {describe_number(run.samples_per_step)} samples",
        ),
        ("device idle, waiting", describe_share(run.exposed_wait_share)),
        ("device", list_setting(run)[0]),
        ("workers, cores", ", ".join(list_setting(run)[1:])),
    )
    return '<dl class="figures">' + "".join(
        f"<div><dt>{name}</dt><dd>{show(value)}</dd></div>" for name, value in figures
    ) + "</dl>"  # fmt: skip


def _remedies(remedies: Sequence[Remedy]) -> str:
    helping, useless = part_remedies(remedies)
    highs = [one.high for one in helping if is_number(one.high)]
    end = min(100.0, max([1.5, *highs])) * 1.03
    start = max(0.2, min([1.0, *(one.low for one in helping if is_number(one.low))]))
    text = "".join(_remedy(one, start, end) for one in helping)
    if helping:
        legend = "Speed-up of the whole run: what is predicted, and the interval that it should fall into."
        text = f'<p class="soft">{legend}</p>{text}'
        text += f'<div class="remedy"><span></span>{draw_scale(start, end)}</div>'
    if useless:
        rows = "".join(f"<li>{show(describe_useless(one))}</li>" for one in useless)
        text += f"<article><h3>Would give nothing</h3><ul>{rows}</ul></article>"
    return text


def _cures(remedies: Sequence[Remedy]) -> str:
    """Of a run that ended before its first step nothing can be predicted; there is something to do first."""
    return "".join(
        f"<article><h3>{_sentence(one.title)}</h3>"
        + (f'<p class="soft">{_sentence(one.note)}</p>' if one.note else "")
        + "".join(f"<pre>{show(line)}</pre>" for line in (one.command, one.change) if line)
        + "</article>"
        for one in remedies
    )


def _remedy(one: Remedy, start: float, end: float) -> str:
    words = ["tried in this run" if one.basis == "measured" else "predicted"]
    if one.next_bottleneck:
        words.append(f"then the limit is {one.next_bottleneck}")
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
<h3>{_sentence(one.title)}</h3>
<div><span class="gain">{describe_gain(one)}</span> <small>{show(", ".join(words))}</small>
{draw_interval(one.low, one.predicted_speedup, one.high, start=start, end=end)}</div></div>
{f'<p class="soft">{_sentence(one.note)}</p>' if one.note else ""}{typed}</article>"""


def _finding(one: Finding, diagnosis: Diagnosis) -> str:
    # A run that died before its first step has no time to take a share of.
    share = f" {describe_share(one.share)} of the time" if diagnosis.run.steps else ""
    reason = describe_reason(one, diagnosis.findings)
    evidence = "".join(f"<li>{show(text)}</li>" for text in one.evidence)
    numbers = [describe_named(name, value) for name, value in one.numbers.items()]
    helping, _ = part_remedies(one.remedies)
    helped = "; ".join(f"{remedy.title}, {describe_gain(remedy)}" for remedy in helping)
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
        f'<article><h3>{describe_share(one.share)} of the looks at the '
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
<p>{_sentence(describe_end(run))}; {describe_seconds(run.seconds)}.
{format_count(run.warmup_steps, "step")} of warm-up left out of the figures.</p>
{f"<p>Experiments, in order:</p><ul>{done}</ul>" if done else ""}
{f"<p>Not seen:</p><ul>{unseen}</ul>" if unseen else ""}
<p>The doctor itself: {show(describe_overhead(diagnosis))}{probed}.</p>"""


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{show(name)}</dt><dd>{show(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>' if rows else ""
