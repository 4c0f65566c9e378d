# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan` in a terminal: what was found, the ways side by side, and what to type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from feedrate.figures import Figure, list_figures
from feedrate.machine.results import StoreSpeed
from feedrate.plan.results import Node, Plan, Survey, Way
from feedrate.report.figures import TIE, list_marks, mark, say_figure, short_time
from feedrate.report.lines import Chosen, Command, Line, Number, count_cells, lay_out, measure_names
from feedrate.units import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seconds,
    is_number,
)

_USUAL_NAME = 24  # cells: a table with less room for its names leaves columns out

# A column: its head, in two lines, and what it says of a way.
Column = tuple[tuple[str, str], Callable[[Way], str]]


def draw_plan(plan: Plan, width: int | None = None) -> str:
    head = _lay_facts([*describe_survey(plan.survey), *describe_node(plan.node)], width)
    title = f"{format_count(plan.epochs, 'epoch')}; as it is, {say_loader(plan)}:"
    ways = lay_out(["", title, *_draw_ways(plan, width)], width)
    unfit = [f"  {names}: {why}" for why, names in list_unfit(plan).items()]
    lines: list[Line] = [
        f"  {line}" for line in list_marks(head + ways, (one for _, one in list_figures(plan)))
    ]
    lines += ["", "Not possible, or not needed, here:", *unfit] if unfit else []
    return head + ways + lay_out([*lines, "", *_recommend(plan), *_list_notes(plan.notes)], width)


def _list_notes(notes: Sequence[str]) -> list[str]:
    lines = [f"note: {note}" for note in dict.fromkeys(notes)]
    return ["", *lines] if lines else []


def _lay_facts(rows: Sequence[tuple[str, str]], width: int | None) -> str:
    return lay_out([(f"{name:<9}", text) for name, text in rows], width).replace(TIE, " ")


def describe_survey(survey: Survey) -> list[tuple[str, str]]:
    """Return what was found of a dataset and of where it lies, a few lines of name and words."""
    formats = sorted(survey.formats.items(), key=lambda item: -item[1])
    named = ", ".join(f"{format_percent(share)} {name}" for name, share in formats[:4])
    pixels = f"; {survey.width:,.0f} x {survey.height:,.0f} pixels" if survey.width else ""
    return [row for row in (
        ("dataset", f"{survey.dataset} ({survey.kind}): {say_figure(survey.samples, 'samples')}, "
                    f"{say_figure(survey.total_bytes, 'bytes')}, in {say_figure(survey.files, 'files')} and "
                    f"{say_figure(survey.folders, 'folders')}"),
        ("parts", _describe_parts(survey)),
        ("a sample", f"{say_figure(survey.sample_bytes, 'bytes')}, decoded "
                     f"{say_figure(survey.decoded_bytes, 'bytes')} (K, the ratio: "
                     f"{say_figure(survey.factor, '')})"
                     f"{pixels}{'; ' if named else ''}{named}"),
        ("decoding", f"{_describe_decoding(survey)}; packing takes {say_figure(survey.pack_s, 's')}"),
        ("source", f"{describe_store(survey.source)}; {_describe_cached(survey.resident)}"),
        ("looked at", f"{survey.how} ({format_seconds(survey.took_s)})"),
    ) if row[1]]  # fmt: skip


def _describe_parts(survey: Survey) -> str:
    if not survey.parts:
        return ""
    counts = [f"{name}: {say_figure(count, '')}" for name, count in survey.parts.items()]
    return f"{', '.join(counts)}; an epoch is {survey.trained or 'all of them'}"


def _describe_decoding(survey: Survey) -> str:
    if survey.pillow_s is None and survey.feedrate_s is None:
        return "nothing to decode"
    return (
        f"{say_figure(survey.pillow_s, 's')} with Pillow, {say_figure(survey.feedrate_s, 's')} by feedrate, "
        f"on one core; all cores give {survey.pillow_cores:.3g} and {survey.feedrate_cores:.3g} times as much"
    )


def _describe_cached(resident: float | None) -> str:
    if resident is None:
        return "the file system does not tell what is in the page cache"
    return f"{format_percent(resident)} of the data is in the page cache"


def describe_store(store: StoreSpeed) -> str:
    latency = f"{say_figure(store.file_s, 's')} a file, {say_figure(store.files_per_s, 'files/s')} at most"
    rates = f"{say_figure(store.stream_bytes_per_s, 'bytes/s')} a stream"
    rates += f", {say_figure(store.total_bytes_per_s, 'bytes/s')} at most"
    writes = (
        ""
        if store.write_bytes_per_s is None
        else f"; writes {say_figure(store.write_bytes_per_s, 'bytes/s')}"
    )
    return f"{store.path} ({store.kind}): {latency}; {rates}{writes}"


def describe_node(node: Node) -> list[tuple[str, str]]:
    """Return what the node has, in the same lines."""
    count = f"{node.nodes:,} nodes, each " if node.nodes > 1 else ""
    has = f"{say_figure(node.cores, 'cores')}, {say_figure(node.memory_bytes, 'bytes')} of memory"
    return [
        ("node", f"{node.name}: {count}{has} ({node.memory_origin})"),
        ("GPU", describe_gpus(node)),
        ("scratch", _describe_scratch(node)),
    ]


def describe_gpus(node: Node) -> str:
    gpu = "none"
    if node.gpus:
        memory = "" if node.gpu_memory_bytes is None else f", {say_figure(node.gpu_memory_bytes, 'bytes')}"
        gpu = f"{node.gpus:,} x {node.gpu_name}{memory}"
    if node.model_rate is None:
        what = node.model or "the model"
        return f"{gpu}; how fast {what} trains is not known (--model-rate): the device is no limit here"
    model = node.model or "the model"
    return f"{gpu}; {model} trains on {say_figure(node.model_rate, 'images/s')}" + (" each" * (node.gpus > 1))


def _describe_scratch(node: Node) -> str:
    if node.scratch is None:
        return "none; name one with --scratch DIR"
    free = "" if node.scratch_free_bytes is None else f"; {say_figure(node.scratch_free_bytes, 'bytes')} free"
    return f"{describe_store(node.scratch)}{free}"


def say_loader(plan: Plan) -> str:
    """Return who reads the data when nothing is changed."""
    if plan.survey.kind == "pack":
        return "read by feedrate.Loader"
    return f"with {format_count(plan.workers, 'worker')}"


def _recommend(plan: Plan) -> list[Line]:
    way = next((one for one in plan.ways if plan.recommended and one.code == plan.recommended), None)
    if way is None:
        return [f"Nothing is worth doing: {plan.reason}."]
    lines: list[Line] = [f"Recommended: {way.name}", f"  {plan.reason[:1].upper()}{plan.reason[1:]}."]
    lines += [f"  It needs {way.needs}."] if way.needs else []
    return [*lines, *(Command(f"    {one}") for one in way.commands)]


def list_unfit(plan: Plan) -> dict[str, str]:
    """Return the names of ways that cannot be gone here, by the reason."""
    found: dict[str, list[str]] = {}
    for way in plan.ways:
        if not way.fits:
            found.setdefault(way.why_not, []).append(way.name)
    return {why: "; ".join(names) for why, names in found.items()}


def say_pays(way: Way, plan: Plan) -> str:
    if plan.ways and way is plan.ways[0]:
        return "-"  # it is what the others are held against
    if not _is_compared(way, plan):
        return "unknown"
    if not is_number(way.pays_after) or way.pays_after > 9_999:
        return "never"
    return f"epoch {format_number(max(1, math.ceil(way.pays_after)))}"


def _is_compared(way: Way, plan: Plan) -> bool:
    """Return whether the whole runs of a way and of reading in place are known well enough to compare."""
    return all(one.total_s.is_known or not is_number(one.total_s.value) for one in (way, *plan.ways[:1]))


def list_columns(plan: Plan, *, is_full: bool, has_spread: bool) -> list[Column]:
    """Return the columns beside a way's name."""
    columns: list[Column] = [
        (("", "before"), lambda way: short_time(way.before_s, has_spread=has_spread)),
        (("first", "epoch"), lambda way: short_time(way.first_epoch_s, has_spread=has_spread)),
        (("later", "epochs"), lambda way: short_time(way.later_epoch_s, has_spread=has_spread)),
        (("", "whole run"), lambda way: short_time(way.total_s)),
        (("pays", "after"), lambda way: say_pays(way, plan)),
    ]
    if is_full:
        columns += [
            (("", "disk"), lambda way: _short_bytes(way.disk_bytes)),
            (("", "memory"), lambda way: _short_bytes(way.memory_bytes)),
        ]
    if is_full and plan.node.gpus:
        columns.append((("GPU hours", "saved"), lambda way: _short_hours(way, plan)))
    return [*columns, (("", "limit"), lambda way: way.limit)]


def _short_bytes(figure: Figure) -> str:
    return f"{format_bytes(figure.value)}{mark(figure)}" if figure.value > 0 else "-"


def _short_hours(way: Way, plan: Plan) -> str:
    figure = way.gpu_hours_saved
    if not is_number(figure.value) or not _is_compared(way, plan):
        return "unknown"
    hours = round(figure.value, 1 if abs(figure.value) < 10 else 0)
    return f"{format_number(hours)}{mark(figure)}" if hours else "-"


def _draw_ways(plan: Plan, width: int | None) -> list[Line]:
    ways = [one for one in plan.ways if one.fits]
    names = [Chosen(one.name) if one.code == plan.recommended else one.name for one in ways]
    longest = max(map(count_cells, names), default=0)
    for is_full, has_spread in ((True, True), (True, False), (False, True), (False, False)):
        columns = list_columns(plan, is_full=is_full, has_spread=has_spread)
        table: list[tuple[str, ...]] = [
            (name, *(Number(head[line]) for head, _ in columns[:-1]), columns[-1][0][line])
            for line, name in enumerate(("", "way"))
        ]
        table += [
            (name, *(Number(say(way)) for _, say in columns[:-1]), columns[-1][1](way))
            for name, way in zip(names, ways, strict=True)
        ]
        if width is None or measure_names(table, width) >= min(_USUAL_NAME, longest):
            break
    return [*table]
