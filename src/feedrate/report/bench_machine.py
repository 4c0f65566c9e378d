# SPDX-License-Identifier: Apache-2.0
"""The numbers of a machine as text and as a Markdown page, alone or beside those of another machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from feedrate.bench.results import MachineResult
from feedrate.figures import ASSUMED, Figure
from feedrate.machine.results import StoreSpeed
from feedrate.report.lines import Line, lay_out
from feedrate.units import (
    format_bytes,
    format_count,
    format_factor,
    format_rate,
    format_ratio,
    format_seconds,
)

_VIRTUAL = "a virtual disk, which its host may cache"  # as the measurement says it
_FEW = 0.1  # a share of what was read: with less of it cold, it was memory that answered


class Row(NamedTuple):
    """One number. `is_time`: less of it is faster."""

    section: str
    name: str
    figure: Figure
    format: Callable[[float], str]
    is_time: bool = False


def draw_machine(result: MachineResult, width: int | None = None, other: MachineResult | None = None) -> str:
    lines: list[Line] = [f"This machine: {describe(result)}"]
    if other is not None:
        lines.append(f"The other:    {describe(other)}")
    section = ""
    for row, theirs in _pair(result, other):
        if row.section != section:
            section = row.section
            lines += ["", section]
            if other is not None:
                lines.append(("", "this", "the other", "this is"))
        if other is None:
            cells = (row.name, row.format(row.figure.value), _describe_range(row))
            # How many files and batches stand in the documents.
            is_short = row.figure.origin == ASSUMED or row.figure.note.startswith("from ")
            lines.append((*cells, _note(row.figure)) if is_short else cells)
        else:
            lines.append((row.name, *_compare(row, theirs)))
    lines += ["", *_list_notes(result, other)]
    return lay_out(lines, width)


def write_page(result: MachineResult, other: MachineResult | None) -> str:
    """Return the same as Markdown."""
    lines = ["# Numbers of a machine", "", f"This machine: {_escape(describe(result))}"]
    if other is not None:
        lines += ["", f"The other: {_escape(describe(other))}"]
    section = ""
    for row, theirs in _pair(result, other):
        if row.section != section:
            section = row.section
            heads = ("", "", "range", "note") if other is None else ("", "this", "the other", "this is")
            lines += ["", f"## {_escape(section)}", "", _join(heads), _join(("---", "--:", "--:", "---"))]
        cells = (
            (row.format(row.figure.value), _describe_range(row), _note(row.figure))
            if other is None
            else _compare(row, theirs)
        )
        lines.append(_join((row.name, *cells)))
    notes = [f"- {_escape(note)}" for note in _list_notes(result, other)]
    return "\n".join([*lines, "", *notes, "", "Made by `feedrate bench machine`.", ""])


def describe(result: MachineResult) -> str:
    """Return what a machine is made of: cores, memory, GPUs, and when it was measured."""
    machine = result.numbers.machine
    gpus = f", {', '.join(machine.gpus)}" if machine.gpus else ""
    return (
        f"{machine.cpu_model}, {format_count(machine.usable_cores, 'core')}, "
        f"{format_bytes(machine.memory_bytes)} of memory{gpus}; {result.numbers.date}"
        f"{', quick' if result.is_quick else ''}"
    )


def list_rows(result: MachineResult) -> Iterator[Row]:
    """Yield every number that there is, section by section."""
    numbers = result.numbers
    for name, store in numbers.stores.items():
        yield from _list_store(f"{name} ({store.kind})", store)
    for name, figure in numbers.decode_images_per_s.items():
        yield Row(
            "Cores", f"decode, {name.capitalize() if name == 'pillow' else name}, one core", figure, _images
        )
    every = format_count(numbers.machine.usable_cores, "core")
    yield Row("Cores", f"decode, feedrate, {every}", result.decode_all_images_per_s, _images)
    yield Row("Cores", f"{every} are so many times one", numbers.core_gain, format_factor)
    yield Row("Cores", "copying within memory", numbers.memory_bytes_per_s, _rate)
    for what, optional, format_ in (
        ("host to device, pinned", numbers.to_device_bytes_per_s, _rate),
        ("host to device, pageable", result.pageable_bytes_per_s, _rate),
        ("decode on the GPU", numbers.gpu_decode_images_per_s, _images),
    ):
        if optional is not None:
            yield Row("GPU", what, optional, format_)
    for model, rates in numbers.models.items():
        yield Row("Models, 224 pixels", f"{model}, forward", rates.forward, _images)
        if rates.training is not None:
            yield Row("Models, 224 pixels", f"{model}, training", rates.training, _images)


def _list_store(section: str, store: StoreSpeed) -> Iterator[Row]:
    yield Row(section, "open a file, cold", store.file_s, format_seconds, True)
    if store.warm_file_s is not None:
        yield Row(section, "open a file, again", store.warm_file_s, format_seconds, True)
    yield Row(section, "read 8 KB anywhere, cold", store.read_s, format_seconds, True)
    yield Row(section, "read on, one reader, cold", store.stream_bytes_per_s, _rate)
    yield Row(section, f"read, {store.streams} readers, cold", store.total_bytes_per_s, _rate)
    if store.warm_bytes_per_s is not None:
        yield Row(section, "read on, again", store.warm_bytes_per_s, _rate)
    yield Row(
        section, f"open files, {store.streams} readers", store.files_per_s, lambda v: format_rate(v, "files")
    )
    if store.write_bytes_per_s is not None:
        yield Row(section, "write", store.write_bytes_per_s, _rate)
    if store.create_s is not None:
        yield Row(section, "make a small file", store.create_s, format_seconds, True)


def _images(per_second: float) -> str:
    return format_rate(per_second, "images")


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _describe_range(row: Row) -> str:
    low, high = row.format(row.figure.low), row.format(row.figure.high)
    # 5.1-5.4 ms: the unit once, where it is the same.
    return (
        f"{low.partition(' ')[0]}-{high}"
        if low.partition(" ")[2] == high.partition(" ")[2]
        else f"{low}-{high}"
    )


def _note(figure: Figure) -> str:
    return f"{'assumed: ' if figure.origin == ASSUMED else ''}{figure.note}"


def _pair(result: MachineResult, other: MachineResult | None) -> Iterator[tuple[Row, Row | None]]:
    """Yield every row with that of the other machine; then those that it alone has are left out."""
    theirs = {} if other is None else {(row.section, row.name): row for row in list_rows(other)}
    for row in list_rows(result):
        yield row, theirs.get((row.section, row.name))


def _compare(row: Row, theirs: Row | None) -> tuple[str, str, str]:
    mine = row.format(row.figure.value)
    if theirs is None:
        return mine, "-", ""
    ratio = row.figure.value / theirs.figure.value if theirs.figure.value else 0.0
    if row.is_time and ratio:
        ratio = 1 / ratio
    return mine, theirs.format(theirs.figure.value), f"{format_ratio(ratio)} as fast" if ratio else ""


def _list_notes(result: MachineResult, other: MachineResult | None) -> list[str]:
    notes = [f"left out: {what}: {why}" for what, why in result.left_out.items()]
    notes += [f"{result.busy}: these numbers say too little of this machine"] if result.busy else []
    for name, store in result.numbers.stores.items():
        if store.cold_share is not None and store.cold_share < _FEW:
            notes.append(f"{name}: its files stay in memory, so nothing there is cold")
        elif store.keeps_pages is False:
            notes.append(f"{name}: keeps nothing in memory: a file is read from the store each time")
        if _VIRTUAL in store.file_s.note:
            notes.append(f"{name}: {_VIRTUAL}: what is cold here may not be cold there")
    batches = {rates.forward.note for rates in result.numbers.models.values() if rates.forward.note}
    notes += [f"models: {'; '.join(sorted(batches))}"] if batches else []
    if other is not None:
        mine = {(row.section, row.name) for row in list_rows(result)}
        missing = [
            f"{row.section}: {row.name}" for row in list_rows(other) if (row.section, row.name) not in mine
        ]
        if missing:
            notes.append(f"only the other has: {'; '.join(missing)}")
        if set(result.numbers.stores) != set(other.numbers.stores):
            notes.append("stores are compared by name: --store NAME=DIR gives them one")
    return [*notes, f"took {format_seconds(result.took_s)}"]


def _join(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", text)
