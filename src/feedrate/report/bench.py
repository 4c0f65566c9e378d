# SPDX-License-Identifier: Apache-2.0
"""Results of `bench`, `demo` and `speedtest` as tables and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from feedrate.bench.results import BenchResult, MachineResult, Standing
from feedrate.demo.results import DemoResult, SpeedtestResult
from feedrate.figures import ASSUMED, Figure
from feedrate.loader.results import PixelCheck
from feedrate.machine.results import MachineNumbers, StoreSpeed
from feedrate.report.doctor import draw_diagnosis
from feedrate.report.lines import Command, Line, Number, lay_out
from feedrate.units import (
    format_bytes,
    format_count,
    format_factor,
    format_rate,
    format_ratio,
    format_seconds,
)

# Two medians on a shared machine differ by this much without a reason.
_NOISE = 0.05
_VIRTUAL = "a virtual disk, which its host may cache"  # as the measurement says it
_FEW = 0.1  # a share of what was read: with less of it cold, it was memory that answered
# Of the doctor's rates and facts: what says how fast the parts are alone, and what the machine did meanwhile.
_RATES = {"device": "device alone", "loader": "loader alone", "feedrate-loader": "feedrate.Loader alone"}
_FACTS = ("precision", "batch", "in the page cache", "GPU utilisation", "GPU power")

# One number of a machine: its name, None where it was not measured, and how it is said.
_Row = tuple[str, Figure | None, Callable[[float], str]]


def draw_bench(result: BenchResult, width: int | None = None) -> str:
    before, after = result.before, result.after
    rounds = 1 + max(run.round for run in result.runs)
    head = (
        f"{result.source}: {format_count(result.dataset_images, 'image')}, crops of {result.image_side} x "
        f"{result.image_side}, batches of {result.batch_size}, {result.threads} threads or workers, "
        f"{format_count(rounds, 'round')}, files in the page cache"
    )
    rows = [
        (
            one.contestant,
            f"{one.images_per_s:,.0f}",
            f"{one.slow_images_per_s:,.0f}-{one.fast_images_per_s:,.0f}",
            format_seconds(one.cpu_s_per_image),
            format_bytes(one.peak_memory_bytes),
            format_seconds(one.first_batch_s),
        )
        for one in (before, after)
    ]
    ratios = (
        "ratio",
        format_ratio(result.ratio),
        "",
        *(
            _compare(before, after, name)
            for name in ("cpu_s_per_image", "peak_memory_bytes", "first_batch_s")
        ),
    )
    titles = ("", "images/s", "quartiles", "CPU/image", "memory", "first batch")
    end = [_describe_pixels(result.pixels), _describe_ratio(result)]
    return lay_out([head, "", *map(_numbers, (titles, *rows, ratios)), "", *end], width)


def _describe_pixels(pixels: PixelCheck) -> str:
    crops = format_count(pixels.images, "random crop")
    if pixels.by_pillow:
        crops += f" ({pixels.by_pillow} by Pillow both times: not for the kernel)"
    if pixels.lowest_psnr_db is None:
        return f"Pixels: {crops} are equal to Pillow's in every pixel."
    differ = f"differ by at most {format_count(pixels.largest_difference, 'level')} of 255"
    psnr = f"PSNR {pixels.lowest_psnr_db:.1f} dB or more"
    if pixels.is_same:
        return f"Pixels: {crops} {differ} from Pillow's ({psnr}): the same but for rounding."
    return f"Pixels: NOT the same: {crops} {differ} from Pillow's ({psnr}). Please report this as a bug."


def _describe_ratio(result: BenchResult | DemoResult) -> str:
    """Return the verdict in one sentence; losses are said as plainly as gains."""
    ratio, before, after = format_ratio(result.ratio), result.before.contestant, result.after.contestant
    if result.ratio > 1 + _NOISE:
        return f"{after} gives {ratio} the images per second of {before}."
    if result.ratio < 1 - _NOISE:
        return f"{after} loses here: {ratio} the images/s of {before}."
    return f"No difference here beyond noise ({ratio} the images per second)."


def _compare(before: Standing, after: Standing, name: str) -> str:
    old, new = getattr(before, name), getattr(after, name)
    return format_ratio(new / old) if old else "-"


def _numbers(row: Sequence[str]) -> tuple[str, ...]:
    return (row[0], *map(Number, row[1:]))


def draw_demo(result: DemoResult, width: int | None = None) -> str:
    before, after = both = result.before, result.after

    def row(title: str, name: str, say: Callable[[Standing], str]) -> tuple[str, ...]:
        return (title, *map(say, both), _compare(before, after, name))

    rows = [
        ("", before.contestant, after.contestant, "ratio"),
        ("images per second", *(f"{one.images_per_s:,.0f}" for one in both), format_ratio(result.ratio)),
        row("waited for data", "wait_s", lambda one: f"{format_seconds(one.wait_s)} ({one.wait_share:.0%})"),
        row("CPU time per image", "cpu_s_per_image", lambda one: format_seconds(one.cpu_s_per_image)),
        row("peak memory", "peak_memory_bytes", lambda one: format_bytes(one.peak_memory_bytes)),
    ]
    if before.accuracy is not None and after.accuracy is not None:
        compared = _compare_accuracies(before.accuracy, after.accuracy, result.held_out_images)
        rows.append(("accuracy, held out", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}", compared))
    lines: list[Line] = [
        *map(_numbers, rows),
        "",
        _describe_ratio(result),
        f"Packing {format_count(result.images, 'image')} took {format_seconds(result.pack_s)}, once.",
        "",
        "Next, with your own images:",
        Command("  feedrate bench loader FOLDER     the same comparison on them, without training"),
        Command("  feedrate pack FOLDER PACK        pack them once"),
        Command('  feedrate.Loader("PACK", ...)     in place of the DataLoader in your script'),
    ]
    lines += [] if result.kept is None else ["", f"Images and pack are kept in {result.kept}"]
    return lay_out(lines, width)


def _compare_accuracies(before: float, after: float, images: int) -> str:
    """Say whether so many held-out images can tell the two accuracies from chance."""
    # Two standard errors of a difference of two shares; that crops are random adds to it.
    mean = (before + after) / 2
    if abs(after - before) <= 2 * math.sqrt(2 * mean * (1 - mean) / images):
        return "within chance"
    return f"{100 * (after - before):+.1f} points"


def draw_speedtest(result: SpeedtestResult, width: int | None = None) -> str:
    """Return totals of the training, and the doctor's screen below them."""
    diagnosis = result.diagnosis
    machine, run, facts = diagnosis.machine, diagnosis.run, {one.name: one.value for one in diagnosis.facts}
    steps = f"of {format_seconds(result.steps_s)} in {run.steps} steps"
    rows = [
        ("device", machine.cpu_model if run.device == "cpu" else run.device),
        ("model", result.model),
        ("images", result.source or "made here"),
        *((name, facts[name]) for name in _FACTS if name in facts),
        ("device time in total", f"{format_seconds(result.device_s)} {steps}"),
    ]
    if result.cpu_s is not None:
        rows.append(("CPU time in total", f"{format_seconds(result.cpu_s)}, all processes together"))
    rates = {one.name: _images(one.samples_per_s) for one in diagnosis.rates}
    rows += [(title, rates[name]) for name, title in _RATES.items() if name in rates]
    return f"{lay_out(rows, width)}\n{draw_diagnosis(diagnosis)}"


def draw_machine(result: MachineResult, width: int | None = None) -> str:
    machine, quick = result.numbers.machine, ", quick" if result.is_quick else ""
    gpus = f", {', '.join(machine.gpus)}" if machine.gpus else ""
    made_of = (
        f"{machine.cpu_model}, {format_count(machine.usable_cores, 'core')}, "
        f"{format_bytes(machine.memory_bytes)} of memory{gpus}"
    )
    lines: list[Line] = [f"This machine: {made_of}; {result.numbers.date}{quick}"]
    for title, rows in _list_sections(result.numbers):
        known = [(name, figure, say) for name, figure, say in rows if figure is not None]
        lines += ["", title] if known else []
        for name, figure, say in known:
            # How many files and batches stand in the documents.
            assumed = (f"assumed: {figure.note}",) if figure.origin == ASSUMED else ()
            lines.append(
                (name, say(figure.value), _describe_range(say(figure.low), say(figure.high)), *assumed)
            )
    return lay_out([*lines, "", *_list_notes(result)], width)


def _list_sections(numbers: MachineNumbers) -> Iterator[tuple[str, list[_Row]]]:
    for name, store in numbers.stores.items():
        yield f"{name} ({store.kind})", _list_store(store)
    decoding = numbers.decode_images_per_s.items()
    every = format_count(numbers.machine.usable_cores, "core")
    yield (
        "Cores",
        [
            *((f"decode, {'Pillow' if name == 'pillow' else name}, one core", figure, _images)
              for name, figure in decoding),
            (f"{every} are so many times one", numbers.core_gain, format_factor),
        ],
    )  # fmt: skip
    yield (
        "GPU",
        [
            ("host to device, pinned", numbers.to_device_bytes_per_s, _rate),
            ("decode on the GPU", numbers.gpu_decode_images_per_s, _images),
        ],
    )
    models = [
        (f"{model}, {what}", figure, _images)
        for model, rates in numbers.models.items()
        for what, figure in (("forward", rates.forward), ("training", rates.training))
    ]
    yield "Models, 224 pixels", [*models]


def _list_store(store: StoreSpeed) -> list[_Row]:
    many = f"{store.streams} readers"
    return [
        ("open a file, cold", store.file_s, format_seconds),
        ("open a file, again", store.warm_file_s, format_seconds),
        ("read 8 KB anywhere, cold", store.read_s, format_seconds),
        ("read on, one reader, cold", store.stream_bytes_per_s, _rate),
        (f"read, {many}, cold", store.total_bytes_per_s, _rate),
        ("read on, again", store.warm_bytes_per_s, _rate),
        (f"open files, {many}", store.files_per_s, lambda value: format_rate(value, "files")),
        ("write", store.write_bytes_per_s, _rate),
        ("make a small file", store.create_s, format_seconds),
    ]


def _images(per_second: float) -> str:
    return format_rate(per_second, "images")


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _describe_range(low: str, high: str) -> str:
    # 5.1-5.4 ms: the unit once, where it is the same.
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low}-{high}"


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
