# SPDX-License-Identifier: Apache-2.0
"""The parts of the doctor's page that show what was measured: shares, steps, rates, curves."""

from __future__ import annotations

from collections.abc import Sequence

from feedrate.doctor.results import Diagnosis, Rate, SamplePart, TimeShare
from feedrate.report.doctor_charts import (
    draw_bar,
    draw_curve,
    draw_key,
    draw_timeline,
    find_tone,
)
from feedrate.report.doctor_words import (
    clamp,
    describe_number,
    describe_rate,
    describe_seconds,
    describe_share,
    is_number,
)
from feedrate.report.page import show

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


def draw_split(split: Sequence[TimeShare]) -> str:
    if not split:
        return ""
    parts, rows = [], []
    for one in split:
        tone, share = find_tone(one.name), one.share
        idle = one.exposed_s_per_step
        title = f"{one.name}: {describe_seconds(one.seconds_per_step)}, {describe_share(share)}"
        if is_number(idle) and one.seconds_per_step > 0:
            exposed = share * clamp(idle / one.seconds_per_step)
            parts.append(("exposed", exposed, f"{title}, device idle"))
            parts.append(("hidden", share - exposed, f"{title}, device busy"))
        else:
            parts.append((tone, share, title))
        detail = [f"device idle for {describe_seconds(idle)} of it"] if idle is not None else []
        rows.append(
            f'<tr><td><i class="dot {tone}"></i>{show(one.name)}</td>'
            f'<td class="number">{describe_seconds(one.seconds_per_step)}</td>'
            f'<td class="number">{describe_share(share)}</td>'
            f'<td class="soft">{show(", ".join([*detail, *([one.detail] if one.detail else [])]))}</td></tr>'
        )
    return f"{draw_bar(parts)}<table>{''.join(rows)}</table>"


def draw_sample(sample: Sequence[SamplePart]) -> str:
    walls = [one.cpu_s + one.queue_s + one.blocked_s for one in sample]
    largest = max((wall for wall in walls if is_number(wall)), default=0.0)
    if not largest > 0:
        return ""
    rows = "".join(
        f"<tr><td>{show(one.kind)}</td><td>{show(one.name)}</td>"
        f'<td class="number">{describe_seconds(wall)}</td><td class="number">{describe_share(one.share)}</td>'
        f'<td class="wide">{_states(one, largest)}</td></tr>'
        for one, wall in zip(sample, walls, strict=True)
    )
    total = describe_seconds(sum(wall for wall in walls if is_number(wall)))
    head = f'<p class="soft">{total} per sample, where samples are made.</p>'
    return f"{head}<table>{rows}</table>{draw_key(_STATES)}"


def _states(one: SamplePart, largest: float) -> str:
    states = (("cpu", one.cpu_s), ("queue", one.queue_s), ("blocked", one.blocked_s))
    return draw_bar(
        [(tone, seconds, f"{tone} {describe_seconds(seconds)}") for tone, seconds in states],
        total=largest, small=True,
    )  # fmt: skip


def draw_steps(diagnosis: Diagnosis) -> str:
    rows = diagnosis.timeline
    if not rows:
        return ""
    seen = {find_tone(name) for row in rows for name in row.parts} | {"exposed", "hidden", "other"}
    key = draw_key([(tone, name) for tone, name in _STEP_KEY if tone in seen])
    ground = _GROUND if any(row.phase != "real" for row in rows) else ""
    legend = (
        f"One column per step, as high as it is long; a mark on top: longer than the chart is high.{ground}"
    )
    return f'<p class="soft">{legend}</p>{draw_timeline(rows)}{key}'


def draw_rates(rates: Sequence[Rate]) -> str:
    known = sorted(one.samples_per_s for one in rates if is_number(one.samples_per_s))
    if not known:
        return ""
    # One rate far above all others would press those flat that are to be compared.
    end = 1.25 * known[-2] if len(known) > 1 and known[-1] > 3 * known[-2] else known[-1]
    rows = "".join(
        f"<tr><td>{show(one.title)}</td>"
        f'<td class="number">{describe_rate(one.samples_per_s)}</td>'
        f'<td class="number soft">{describe_number(one.low)} to {describe_number(one.high)}</td>'
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
    title = f"{describe_rate(one.samples_per_s)}, {one.batches:,} batches"
    return draw_bar([(tone, one.samples_per_s / end, title)], small=True)


def draw_curves(diagnosis: Diagnosis) -> str:
    if not diagnosis.curves:
        return ""
    tried = [row.start_s for row in diagnosis.timeline if row.phase != "real" and is_number(row.start_s)]
    until = min(tried, default=None)
    still = [one for one in diagnosis.curves if not any(one.values)]
    charts = "".join(draw_curve(one, real_until_s=until) for one in diagnosis.curves if one not in still)
    legend = f"The median and the largest reading; dashed: the limit.{_GROUND if until is not None else ''}"
    rest = (
        f"<p><small>Zero all the time: {show('; '.join(one.name for one in still))}.</small></p>"
        if still
        else ""
    )
    return f'<p class="soft">{legend}</p><div class="curves">{charts}</div>{rest}'
