# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan --html`: each way as a bar on one scale of time, the table, and every figure's origin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from feedrate.figures import Figure
from feedrate.machine.results import StoreSpeed
from feedrate.plan.results import FIRST, LATER, Node, Plan, Survey, Way
from feedrate.report.figures import TIE, describe_origin, find_spread, say_bounds, say_value, short_time
from feedrate.report.page import (
    Drawn,
    draw_bar,
    draw_facts,
    draw_frame,
    draw_key,
    draw_points,
    draw_section,
    draw_table,
    draw_ticks,
    draw_track,
    show,
)
from feedrate.report.plan import describe_gpus, list_columns, list_unfit
from feedrate.units import (
    format_count,
    format_duration,
    format_percent,
    format_seconds,
    is_number,
    place,
)

_STYLE = """
.ways td { vertical-align: middle; } .ways small { display: block; font-weight: 400; }
.ways tr:last-child td { border: none; } .ways .bar { height: 1.1rem; margin: .2rem 0 .1rem; }
.ways .track { height: 2px; margin: 0; background: none; } .ways .track i { background: var(--text); }
.ways .ticks span:last-child { transform: translateX(-100%); }
.scroll { overflow-x: auto; } .scroll table { font-size: .85rem; } .scroll .number { padding-right: .6rem; }
.scroll th { white-space: normal; vertical-align: bottom; } .scroll .words { white-space: nowrap; }
td, th { overflow-wrap: normal; } td:first-child { min-width: 9rem; }
@media (max-width: 40rem) { .ways tr { display: grid; grid-template-columns: 1fr auto; }
  .ways .widest { grid-column: 1 / 3; grid-row: 2; width: auto; } .ways small { display: none; } }
"""
_KEY = (
    ("copy", "before training: packing, staging"), ("forward", "first epoch"), ("optimizer", "later epochs"),
)  # fmt: skip
_LABELS, _TONES = {FIRST: "first epoch", LATER: "later epochs"}, {FIRST: "forward", LATER: "optimizer"}
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
    rows = [_draw_way(way, end) for way in ways]
    chosen = next((row for row, way in zip(rows, ways, strict=True) if way is best), None)
    legend = "On one scale, from the command to the end of the run. The line: between which bounds it ends."
    legend += " What is longer than twice reading in place goes on." if max(totals) > end else ""
    table = draw_table([*rows, ("", _draw_scale(end), "")], ("", "widest", "number"), best=chosen)
    return f'<p class="soft">{legend}</p><div class="ways">{table}</div>{draw_key(_KEY)}'


def _draw_way(way: Way, end: float) -> tuple[str, ...]:
    """Return the row of a way: its name, its bar with the bounds of the end below, and how long it takes."""
    bar = draw_bar(
        ((_TONES.get(part, "copy"), s, f"{_LABELS.get(part, part)}: {format_seconds(s)}")
         for part, s in way.timeline if is_number(s)),
        total=end,
    )  # fmt: skip
    bounds = draw_track([("", place(way.total_s.low, 0, end), place(way.total_s.high, 0, end))])
    said = show(short_time(way.total_s, has_spread=False))
    time = Drawn(f"{said} <small>{show(_say_bounds(way.total_s))}</small>")
    return way.name, Drawn(bar + bounds), time


def _say_bounds(figure: Figure) -> str:
    bounds = [format_duration(bound) for bound in (figure.low, figure.high) if is_number(bound) and bound > 0]
    return " to ".join(bounds) if find_spread(figure) else ""


def _draw_scale(end: float) -> str:
    step = next((one for one in _STEPS if end / one <= 5), end)
    at = (n * step for n in range(int(end / step) + 1))
    return draw_ticks((place(one, 0, end), _name_tick(one)) for one in at)


def _name_tick(seconds: float) -> str:
    text = format_duration(seconds) if seconds else "0"
    return text[:-3] if text.endswith(("00s", "00m", "00h")) else text


def _draw_table(plan: Plan, ways: Sequence[Way], best: Way | None) -> str:
    columns = list_columns(plan, is_full=True, has_spread=True)
    heads = ("way", *(" ".join(head).strip() for head, _ in columns))
    rows = {way.code: (way.name, *(say(way) for _, say in columns)) for way in ways}
    kinds = ("", *["number"] * (len(columns) - 1), "words")
    table = draw_table(rows.values(), kinds, heads, rows.get(best.code) if best else None)
    legend = "* assumed, or computed from what is assumed; ° from stored measurements; see the tables below."
    return f'<div class="scroll">{table}</div><p class="soft">{legend}</p>'


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
    cells = (
        (name, say_value(one.value, unit), say_bounds(one, unit), describe_origin(one))
        for name, one, unit in rows
        if one is not None and is_number(one.value)
    )
    return draw_table(cells, ("", "number", "soft aside", ""), ("figure", "value", "between", "where from"))
