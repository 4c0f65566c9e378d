# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan --html`: each way as a bar on one scale of time, the table, and every figure's origin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from feedrate.figures import Figure
from feedrate.machine.results import StoreSpeed
from feedrate.plan.results import FIRST, LATER, Node, Plan, Survey, Way
from feedrate.report.figures import TIE, describe_origin, find_spread, say_bounds, say_value, short_time
from feedrate.report.page import draw_facts, draw_frame, draw_key, draw_points, draw_section, show
from feedrate.report.plan import describe_gpus, list_columns, list_unfit
from feedrate.units import format_count, format_duration, format_percent, format_seconds, is_number

_STYLE = """
.way { display: grid; grid-template-columns: minmax(0, 15rem) minmax(0, 1fr) 10rem; gap: 0 1rem;
  align-items: center; padding: .2rem 0; border-top: 1px solid var(--line); }
.way.best { font-weight: 600; } .way .time { text-align: right; font-variant-numeric: tabular-nums; }
.way .time small { display: block; font-weight: 400; } .way svg { height: 1.5rem; }
.way .ticks span:last-child { transform: translateX(-100%); }
.way .whole { stroke: var(--text); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.scroll { overflow-x: auto; } .scroll table { font-size: .85rem; } .scroll .number { padding-right: .6rem; }
.scroll th { white-space: normal; vertical-align: bottom; } .scroll .words { white-space: nowrap; }
td, th { overflow-wrap: normal; } td:first-child { min-width: 9rem; } .best td { font-weight: 600; }
@media (max-width: 40rem) { .way { grid-template-columns: 1fr auto; }
  .way .bars { grid-column: 1 / 3; grid-row: 2; } .way .time small, .between { display: none; } }
"""
_KEY = (
    ("copy", "before training: packing, staging"), ("forward", "first epoch"), ("optimizer", "later epochs"),
)  # fmt: skip
_LABELS, _TONES = {FIRST: "first epoch", LATER: "later epochs"}, {FIRST: "forward", LATER: "optimizer"}
_HEIGHT, _WIDTH = 24, 1000
# What a scale may be divided by: seconds, minutes, hours, days, years.
_STEPS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30), *(60 * n for n in (1, 2, 5, 10, 20, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)), *(86_400 * n for n in (1, 2, 5, 10, 20, 50, 100)),
    *(31_557_600.0 * factor * 10**power for power in range(25) for factor in (1, 2, 5)),
)  # fmt: skip


def draw_plan_page(plan: Plan) -> str:
    """Return the page as HTML."""
    way = next((one for one in plan.ways if plan.recommended and one.code == plan.recommended), None)
    fitting = [one for one in plan.ways if one.fits]
    unfit = (f"{names}: {why}" for why, names in list_unfit(plan).items())
    # A way far slower than reading in place, which comes first, would press all others flat.
    now_s = plan.ways[0].total_s.value if plan.ways else 0.0
    most = 2 * now_s if is_number(now_s) else math.inf
    sections = (
        draw_section("What to type", _draw_commands(way)),
        draw_section(f"How long {format_count(plan.epochs, 'epoch')} take", _draw_bars(fitting, way, most)),
        draw_section("The ways side by side", _draw_table(plan, fitting, way)),
        draw_section("Not possible, or not needed, here", draw_points(unfit)),
        draw_section("Notes", draw_points(note[:1].upper() + note[1:] for note in plan.notes)),
        draw_section("The dataset", _draw_survey(plan.survey)),
        draw_section("The node", _draw_node(plan.node)),
    )
    named = f"{way.name}: {plan.reason}." if way else f"Nothing is worth doing: {plan.reason}."
    return draw_frame(
        f"feedrate plan: {plan.survey.dataset}",
        "".join(sections),
        heading="How to train on this dataset, here",
        lead=f"<code>{show(plan.survey.dataset)}</code>",
        verdict=named[:1].upper() + named[1:],
        tone="good",
        style=_STYLE,
    )


def _draw_commands(way: Way | None) -> str:
    if way is None or not way.commands:
        return ""
    needs = f'<p class="soft">It needs {show(way.needs)}.</p>' if way.needs else ""
    return needs + "".join(f"<pre>{show(line)}</pre>" for line in way.commands)


def _draw_bars(ways: Sequence[Way], best: Way | None, most: float) -> str:
    """Return a bar for each way; `most`: where the scale ends at the latest."""
    totals = [way.total_s.value for way in ways if is_number(way.total_s.value)]
    if not any(totals):
        return ""
    end = min(max(totals), most or math.inf) * 1.02
    rows = "".join(_draw_way(way, is_best=way is best, end=end) for way in ways)
    legend = "On one scale, from the command to the end of the run. The line: between which bounds it ends."
    legend += " What is longer than twice reading in place goes on." if max(totals) > end else ""
    scale = f'<div class="way"><span></span><div class="bars">{_draw_ticks(end)}</div><span></span></div>'
    return f'<p class="soft">{legend}</p>{rows}{scale}{draw_key(_KEY)}'


def _draw_way(way: Way, *, is_best: bool, end: float) -> str:
    shapes, left = [], 0.0
    for part, seconds in way.timeline:
        tone, x = _TONES.get(part, "copy"), _place(left, end)
        right = _place(left + seconds, end) if is_number(seconds) else 0.0
        if right > x:
            shapes.append(
                f'<rect class="{tone}" x="{x:.2f}" y="2" width="{right - x:.2f}" height="{_HEIGHT - 8}">'
                f"<title>{show(_LABELS.get(part, part))}: {format_seconds(seconds)}</title></rect>"
            )
            left += seconds
    low, high = (
        _place(bound, end) if is_number(bound) else 0.0 for bound in (way.total_s.low, way.total_s.high)
    )
    line = f'<line class="whole" x1="{low:.2f}" x2="{high:.2f}" y1="{_HEIGHT - 3}" y2="{_HEIGHT - 3}"/>'
    said = short_time(way.total_s, has_spread=False)
    parts = "; ".join(
        f"{_LABELS.get(part, part)} {format_seconds(s)}" for part, s in way.timeline if is_number(s) and s > 0
    )
    return (
        f'<div class="way{" best" * is_best}"><span>{show(way.name)}</span><div class="bars">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{show(parts)}">{"".join(shapes)}{line}</svg></div>'
        f'<span class="time">{show(said)} <small>{show(_say_bounds(way.total_s))}</small></span></div>'
    )


def _say_bounds(figure: Figure) -> str:
    bounds = [format_duration(bound) for bound in (figure.low, figure.high) if is_number(bound) and bound > 0]
    return " to ".join(bounds) if find_spread(figure) else ""


def _place(seconds: float, end: float) -> float:
    return _WIDTH * min(max(seconds / end, 0.0), 1.0)


def _draw_ticks(end: float) -> str:
    step = next((one for one in _STEPS if end / one <= 5), end)
    at = [n * step for n in range(int(end / step) + 1)]
    return '<div class="ticks">' + "".join(
        f'<span style="left: {_place(one, end) / _WIDTH:.2%}">{_name_tick(one)}</span>'
        for one in at
    ) + "</div>"  # fmt: skip


def _name_tick(seconds: float) -> str:
    text = format_duration(seconds) if seconds else "0"
    return text[:-3] if text.endswith(("00s", "00m", "00h")) else text


def _draw_table(plan: Plan, ways: Sequence[Way], best: Way | None) -> str:
    columns = list_columns(plan, is_full=True, has_spread=True)
    kinds = [*["number"] * (len(columns) - 1), "words"]
    heads = "".join(
        f'<th class="{kind}">{show(" ".join(filter(None, head)))}</th>'
        for (head, _), kind in zip(columns, kinds, strict=True)
    )
    rows = "".join(
        f'<tr class="{"best" if way is best else ""}"><td>{show(way.name)}</td>'
        + "".join(
            f'<td class="{kind}">{show(say(way))}</td>' for (_, say), kind in zip(columns, kinds, strict=True)
        )
        + "</tr>"
        for way in ways
    )
    legend = "* assumed, or computed from what is assumed; ° from stored measurements; see the tables below."
    table = f'<div class="scroll"><table><tr><th>way</th>{heads}</tr>{rows}</table></div>'
    return f'{table}<p class="soft">{legend}</p>'


def _draw_survey(survey: Survey) -> str:
    formats = ", ".join(f"{format_percent(share)} {name}" for name, share in survey.formats.items())
    cached = "unknown" if survey.resident is None else format_percent(survey.resident)
    rows: list[tuple[str, Figure | None, str]] = [
        ("samples", survey.samples, ""),
        *((f"samples of '{name}'", count, "") for name, count in survey.parts.items()),
        ("files", survey.files, ""), ("folders", survey.folders, ""),
        ("size", survey.total_bytes, "bytes"), ("a sample", survey.sample_bytes, "bytes"),
        ("a sample, decoded", survey.decoded_bytes, "bytes"),
        ("K: decoded / encoded size", survey.factor, ""),
        ("decoding with Pillow, a core", survey.pillow_s, "s"),
        ("decoding by feedrate, a core", survey.feedrate_s, "s"),
        ("packing a sample, a core", survey.pack_s, "s"), ("listing all of it", survey.list_s, "s"),
        *_list_store("source", survey.source),
    ]  # fmt: skip
    facts = (
        ("kind", survey.kind),
        ("formats", formats),
        ("pixels", f"{survey.width:,.0f} x {survey.height:,.0f}" if survey.width else ""),
        ("in the page cache", cached),
        ("looked at", f"{survey.how} ({format_seconds(survey.took_s)})"),
    )
    return draw_facts(facts) + _draw_figures(rows)


def _draw_node(node: Node) -> str:
    rows: list[tuple[str, Figure | None, str]] = [
        ("cores", node.cores, ""), ("memory", node.memory_bytes, "bytes"),
        ("memory of a GPU", node.gpu_memory_bytes, "bytes"),
        (f"training rate, {node.model or 'the model'}", node.model_rate, "images/s"),
        ("to the device", node.to_device_bytes_per_s, "bytes/s"),
        ("decoding on the GPU", node.gpu_decode_images_per_s, "images/s"),
        ("free on scratch", node.scratch_free_bytes, "bytes"),
        *(_list_store("scratch", node.scratch) if node.scratch else ()),
    ]  # fmt: skip
    facts = (
        ("node", f"{node.nodes:,} x {node.name}" if node.nodes > 1 else node.name),
        ("GPUs", describe_gpus(node).replace(TIE, " ")),
        ("memory by", node.memory_origin),
        ("scratch", node.scratch_path),
    )
    return draw_facts(facts) + _draw_figures(rows)


def _list_store(name: str, store: StoreSpeed) -> list[tuple[str, Figure | None, str]]:
    return [
        (f"{name}: opening a file", store.file_s, "s"), (f"{name}: a read", store.read_s, "s"),
        (f"{name}: files", store.files_per_s, "files/s"),
        (f"{name}: one stream", store.stream_bytes_per_s, "bytes/s"),
        (f"{name}: {store.streams} streams", store.total_bytes_per_s, "bytes/s"),
        (f"{name}: writing", store.write_bytes_per_s, "bytes/s"),
    ]  # fmt: skip


def _draw_figures(rows: Iterable[tuple[str, Figure | None, str]]) -> str:
    drawn = "".join(
        f'<tr><td>{show(name)}</td><td class="number">{show(say_value(one.value, unit))}</td>'
        f'<td class="between soft">{show(say_bounds(one, unit))}</td>'
        f"<td>{show(describe_origin(one))}</td></tr>"
        for name, one, unit in rows
        if one is not None and is_number(one.value)
    )
    heads = '<th class="number">value</th><th class="between">between</th><th>where from</th>'
    return f"<table><tr><th>figure</th>{heads}</tr>{drawn}</table>"
