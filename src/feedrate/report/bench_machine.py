# SPDX-License-Identifier: Apache-2.0
"""The numbers of a machine as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from feedrate.bench.results import MachineResult
from feedrate.figures import ASSUMED, Figure
from feedrate.machine.results import StoreSpeed
from feedrate.report.lines import Line, lay_out
from feedrate.units import format_bytes, format_count, format_factor, format_rate, format_seconds

_VIRTUAL = "a virtual disk, which its host may cache"  # as the measurement says it
_FEW = 0.1  # a share of what was read: with less of it cold, it was memory that answered


class Row(NamedTuple):
    """One number."""

    section: str
    name: str
    figure: Figure
    format: Callable[[float], str]


def draw_machine(result: MachineResult, width: int | None = None) -> str:
    lines: list[Line] = [f"This machine: {describe(result)}"]
    section = ""
    for row in list_rows(result):
        if row.section != section:
            section = row.section
            lines += ["", section]
        cells = (row.name, row.format(row.figure.value), _describe_range(row))
        # How many files and batches stand in the documents.
        assumed = f"assumed: {row.figure.note}" if row.figure.origin == ASSUMED else ""
        lines.append((*cells, assumed) if assumed else cells)
    return lay_out([*lines, "", *_list_notes(result)], width)


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
    yield Row("Cores", f"{every} are so many times one", numbers.core_gain, format_factor)
    for what, optional, format_ in (
        ("host to device, pinned", numbers.to_device_bytes_per_s, _rate),
        ("decode on the GPU", numbers.gpu_decode_images_per_s, _images),
    ):
        if optional is not None:
            yield Row("GPU", what, optional, format_)
    for model, rates in numbers.models.items():
        yield Row("Models, 224 pixels", f"{model}, forward", rates.forward, _images)
        if rates.training is not None:
            yield Row("Models, 224 pixels", f"{model}, training", rates.training, _images)


def _list_store(section: str, store: StoreSpeed) -> Iterator[Row]:
    yield Row(section, "open a file, cold", store.file_s, format_seconds)
    if store.warm_file_s is not None:
        yield Row(section, "open a file, again", store.warm_file_s, format_seconds)
    yield Row(section, "read 8 KB anywhere, cold", store.read_s, format_seconds)
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
        yield Row(section, "make a small file", store.create_s, format_seconds)


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


def _list_notes(result: MachineResult) -> list[str]:
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
    return [*notes, f"took {format_seconds(result.took_s)}"]
