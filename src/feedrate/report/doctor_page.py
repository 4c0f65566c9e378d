# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --html`: whatever comes from the user's run is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from feedrate.doctor.results import Diagnosis, Rate, SamplePart, TimeShare
from feedrate.report import doctor_charts as charts
from feedrate.report import doctor_words as words
from feedrate.report.doctor import LEFT_OUT
from feedrate.report.page import (
    Drawn,
    draw_article,
    draw_bar,
    draw_facts,
    draw_frame,
    draw_key,
    draw_points,
    draw_section,
    draw_table,
    show,
    show_sentence,
)
from feedrate.units import clamp, is_number


def draw_doctor_page(diagnosis: Diagnosis) -> str:
    """Return the page as HTML."""
    command = shlex.join(diagnosis.command)
    sections = (
        draw_section("What would help" if diagnosis.run.steps else "What to do", _remedies(diagnosis)),
        draw_section("Why", _items(words.list_findings(diagnosis))),
        draw_section("Where a step's time goes", _draw_split(diagnosis.split)),
        draw_section("Where a sample's time goes", _draw_sample(diagnosis.sample)),
        draw_section("Step by step", _draw_steps(diagnosis)),
        draw_section("What each part could do", _draw_rates(diagnosis.rates)),
        draw_section("Busy lines of code", _items(words.list_hot_lines(diagnosis))),
        draw_section("What the machine did", _draw_curves(diagnosis)),
        draw_section("Machine and data", draw_facts((one.name, one.value or "-") for one in diagnosis.facts)),
        draw_section("What was done and seen", draw_points(words.list_doings(diagnosis))),
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


def _remedies(diagnosis: Diagnosis) -> str:
    items = words.list_remedies(diagnosis)
    if not diagnosis.run.steps:
        return _items(items)
    helping, useless = words.part_remedies(diagnosis.remedies)
    highs = [one.high for one in helping if is_number(one.high)]
    end = min(100.0, max([1.5, *highs])) * 1.03
    start = max(0.2, min([1.0, *(one.low for one in helping if is_number(one.low))]))
    text = ""
    if helping:
        legend = "Speed-up of the whole run: what is predicted, and the interval that it should fall into."
        text = f'<p class="soft">{legend}</p>{_items(items, start, end)}'
        text += f'<div class="remedy"><span></span>{charts.draw_scale(start, end)}</div>'
    if useless:
        text += draw_article("Would give nothing", draw_points(map(words.useless, useless)))
    return text


def _items(items: Iterable[words.Item], start: float = 1.0, end: float = 1.0) -> str:
    """Return an article for each; the gains of remedies on a scale from `start` to `end`."""
    return "".join(_item(one, start, end) for one in items)


def _item(one: words.Item, start: float, end: float) -> str:
    title = f"<h3>{show_sentence(one.title) if one.remedy else show(one.title)}</h3>"
    if (best := one.remedy) is not None:
        track = charts.draw_interval(best.low, best.predicted_speedup, best.high, start=start, end=end)
        gain = f'<div><span class="gain">{best.gain}</span>{track}</div>'
        title = f'<div class="remedy">{title}{gain}</div>'
    text = "".join(f'<p class="soft">{show_sentence(line)}</p>' for line in one.lines)
    text += draw_points(one.points) + "".join(f"<pre>{show(line)}</pre>" for line in one.typed)
    if one.code:
        text += f"<pre>{chr(10).join(map(show, one.code.rstrip().split(chr(10))))}</pre>"
    if one.left_out:
        text += f'<p class="soft">{LEFT_OUT}</p>{draw_points(one.left_out)}'
    return f"\n<article>{title}{text}</article>"


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
        tone, share, idle = charts.find_tone(one.name), one.share, one.exposed_s_per_step
        time = words.seconds(one.seconds_per_step)
        title = f"{one.name}: {time}, {words.share(share)}"
        if is_number(idle) and one.seconds_per_step > 0:
            exposed = share * clamp(idle / one.seconds_per_step)
            parts.append(("exposed", exposed, f"{title}, device idle"))
            parts.append(("hidden", share - exposed, f"{title}, device busy"))
        else:
            parts.append((tone, share, title))
        waited = "" if idle is None else f"device idle for {words.seconds(idle)} of it"
        name = Drawn(f'<i class="dot {tone}"></i>{show(one.name)}')
        rows.append((name, time, words.share(share), ", ".join(filter(None, (waited, one.detail)))))
    return draw_bar(parts) + draw_table(rows, ("", "number", "number", "soft"))


def _draw_sample(sample: Sequence[SamplePart]) -> str:
    walls = [one.cpu_s + one.queue_s + one.blocked_s for one in sample]
    largest = max((wall for wall in walls if is_number(wall)), default=0.0)
    if not largest > 0:
        return ""
    rows = [
        (one.kind, one.name, words.seconds(wall), words.share(one.share), _draw_states(one, largest))
        for one, wall in zip(sample, walls, strict=True)
    ]
    total = words.seconds(sum(wall for wall in walls if is_number(wall)))
    head = f'<p class="soft">{total} per sample, where samples are made.</p>'
    return head + draw_table(rows, ("", "", "number", "number", "wide aside")) + draw_key(_STATES)


def _draw_states(one: SamplePart, largest: float) -> str:
    states = (("cpu", one.cpu_s), ("queue", one.queue_s), ("blocked", one.blocked_s))
    parts = ((tone, seconds, f"{tone} {words.seconds(seconds)}") for tone, seconds in states)
    return draw_bar(parts, total=largest, small=True)


def _draw_steps(diagnosis: Diagnosis) -> str:
    rows = diagnosis.timeline
    if not rows:
        return ""
    seen = {charts.find_tone(name) for row in rows for name in row.parts} | {"exposed", "hidden", "other"}
    key = draw_key([(tone, name) for tone, name in _STEP_KEY if tone in seen])
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
    rows = (
        (one.title, words.rate(one.samples_per_s), f"{words.number(one.low)} to {words.number(one.high)}",
         _draw_rate(one, end))
        for one in rates
    )  # fmt: skip
    return draw_table(rows, ("", "number", "number soft", "wide aside"))


def _draw_rate(one: Rate, end: float) -> str:
    if not (is_number(one.samples_per_s) and end > 0):
        return ""
    tone = "exposed" if one.name == "real" else "cpu"
    if one.samples_per_s > 1.001 * end:
        tone += " cut"
    title = f"{words.rate(one.samples_per_s)}, {one.batches:,} batches"
    return draw_bar([(tone, one.samples_per_s / end, title)], small=True)


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
