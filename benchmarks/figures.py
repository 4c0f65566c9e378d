# SPDX-License-Identifier: Apache-2.0
"""Write the figures of pages from benchmarks/results/*.json, so that no number there is typed by hand.

python benchmarks/figures.py          rewrites the blocks between <!-- figures: NAME --> and <!-- end -->
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from feedrate.units import format_bytes, format_ratio, format_seconds

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
IMAGENET_BYTES = 147_897_477_120  # ILSVRC2012_img_train.tar
RESULTS = Path(__file__).parent / "results"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.S)


def render(page: Path) -> str:
    """Return a page's text with every block of figures made anew."""
    text = BLOCK.sub(
        lambda m: m.group(1) + BLOCKS[m.group(2)](_load(m.group(2))) + m.group(3), page.read_text()
    )
    return text if page.parent == ROOT else text.replace("](benchmarks/", "](")


def _demo(result: dict[str, Any]) -> str:
    before, after = result["before"], result["after"]
    lines = [
        _head(f"{result['images']:,} images, {result['threads']} cores", before, after),
        _row("images per second", before, after, "images_per_s", lambda v: f"{v:,.0f}", result["ratio"]),
        _row("share of time waiting for data", before, after, "wait_share", lambda v: f"{v:.0%}"),
        _row("CPU time per image", before, after, "cpu_s_per_image", format_seconds),
        _row("peak memory", before, after, "peak_memory_bytes", format_bytes),
    ]
    return "\n".join(lines) + f"\n\n{_where(result['machine'], 'demo')}\n"


def _accuracy(result: dict[str, Any]) -> str:
    spreads = {name: statistics.stdev(values) for name, values in result["accuracies"].items()}
    seeds = len(next(iter(result["accuracies"].values())))
    parts = [f"{name} {result['means'][name]:.1%} ± {spread:.1%}" for name, spread in spreads.items()]
    return (
        f"Training the demo's network with {seeds} seeds each: {', '.join(parts)} of held-out images right "
        f"(difference {100 * result['difference']:+.2f} points, standard error "
        f"{100 * result['standard_error']:.2f}); "
        f"raw results: [accuracy.json](benchmarks/results/accuracy.json).\n"
    )


def _threads(result: dict[str, Any]) -> str:
    runs = result["results"]
    lines = [
        "| threads | " + " | ".join(str(run["threads"]) for run in runs) + " |",
        "|---" * (1 + len(runs)) + "|",
        "| images per second, `Loader` | " + _rates(runs, "loader"),
        "| images per second, bare kernel | " + _rates(runs, "kernel"),
    ]
    machine = result["machine"]
    where = f"{machine['cpu_model']}, {machine['usable_cores']} cores, {result['simd_level']}"
    return "\n".join(lines) + f"\n\n{where}; raw results: [threads.json](benchmarks/results/threads.json).\n"


def _rates(runs: list[dict[str, Any]], name: str) -> str:
    return " | ".join(f"{run['images_per_s'][name]:,.0f}" for run in runs) + " |"


def _kernel_made(result: dict[str, Any]) -> str:
    return _decoders(result, "kernel-made")


def _kernel_photos(result: dict[str, Any]) -> str:
    return _decoders(result, "kernel-photos")


def _decoders(result: dict[str, Any], name: str) -> str:
    """A row per set of images and job; how many times as many feedrate decodes stands behind each rate."""
    tasks = [(one, task) for one in result["sets"] for task in one["tasks"]]
    others = list(dict.fromkeys(s["contestant"] for _, task in tasks for s in task["standings"]))[1:]
    lines = [f"| images | job | feedrate | {' | '.join(others)} |", "|---" * (3 + len(others)) + "|"]
    for one, task in tasks:
        rates = {s["contestant"]: s for s in task["standings"]}
        cells = [f"{_rate(rates['feedrate'])}", *(_behind(rates.get(other)) for other in others)]
        what = f"{task['what']}, to {task['side']}"
        lines.append(f"| {one['name']}, {one['mean_megapixels']:.1f} MP | {what} | {' | '.join(cells)} |")
    machine = result["machine"]
    where = f"{machine['cpu_model']}, {result['simd_level']}, Pillow {machine['versions']['pillow']}"
    return "\n".join(lines) + f"\n\n{where}; raw results: [{name}.json](benchmarks/results/{name}.json).\n"


def _rate(standing: dict[str, Any]) -> str:
    rate = standing["images_per_cpu_s"]
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _behind(standing: dict[str, Any] | None) -> str:
    return f"{_rate(standing)} ({standing['ratio']:.2f}x)" if standing else "-"


def _loader(result: dict[str, Any]) -> str:
    before, after = result["before"], result["after"]
    lines = [
        _head(f"loading only, {result['threads']} cores", before, after),
        _row("images per second", before, after, "images_per_s", lambda v: f"{v:,.0f}", result["ratio"]),
        _row("CPU time per image", before, after, "cpu_s_per_image", format_seconds),
        _row("peak memory", before, after, "peak_memory_bytes", format_bytes),
        _row("first batch after", before, after, "first_batch_s", format_seconds),
    ]
    return "\n".join(lines) + f"\n\n{_where(result['machine'], 'loader')}\n"


def _filters(result: dict[str, Any]) -> str:
    loader, kernel = result["loader_cpu_s_per_image"], result["kernel_images_per_cpu_s"]
    others = [name for name in kernel["bilinear"] if name != "feedrate"]
    lines = [
        f"| filter | `Loader`, CPU time an image | of bilinear's | feedrate | {' | '.join(others)} |",
        "|---" * (4 + len(others)) + "|",
    ]
    for name, seconds in loader.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, loader["bilinear"], strict=True))
        rates = [f"{kernel[name]['feedrate']:,.0f}", *(_other(kernel[name], other) for other in others)]
        time = format_seconds(statistics.median(seconds))
        lines.append(f"| `{name}` | {time} | {ratio:.2f} | {' | '.join(rates)} |")
    where = f"{result['machine']['cpu_model']}, {result['simd_level']}"
    return "\n".join(lines) + f"\n\n{where}; raw results: [filters.json](benchmarks/results/filters.json).\n"


def _epochs(result: dict[str, Any]) -> str:
    lines = [
        "| epoch | threads | a batch keeps the loop | seam before | seam now | leaves before | leaves now |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in result["results"]:
        seams = [one["medians"][name]["seam_s"] for name in ("before", "feedrate")]
        epoch_s = one["batches"] * one["step_s"]
        cells = [format_seconds(one["step_s"]), *map(format_seconds, seams)]
        cells += [f"{epoch_s / (epoch_s + seam):.1%}" for seam in seams]
        kind = f"{one['batches']} batches of {one['batch_size']}"
        lines.append(f"| {kind} | {one['threads']} | {' | '.join(cells)} |")
    machine = result["machine"]
    where = f"{machine['cpu_model']}, {machine['usable_cores']} cores"
    return "\n".join(lines) + f"\n\n{where}; raw results: [epochs.json](benchmarks/results/epochs.json).\n"


def _other(rates: dict[str, float], name: str) -> str:
    return f"{rates[name]:,.0f} ({format_ratio(rates['feedrate'] / rates[name])})" if name in rates else "-"


def _feeding(result: dict[str, Any]) -> str:
    lines = [
        '| | ceiling | `Loader(device="cuda")` | of the ceiling | `Loader` alone | DataLoader + Pillow |',
        "|---|---|---|---|---|---|",
    ]
    for run in result["results"]:
        seen = {kind: statistics.median(rates) for kind, rates in run["images_per_s"].items()}
        alone, usual = (
            next(rate for kind, rate in seen.items() if kind.startswith(words))
            for words in ("Loader alone", "DataLoader")
        )
        fed = next(rate for kind, rate in seen.items() if kind.startswith('Loader(device="cuda"'))
        cells = [f"{rate:,.0f}" for rate in (seen["ceiling"], fed)]
        cells += [f"{fed / seen['ceiling']:.1%}", f"{alone:,.0f}", f"{usual:,.0f}"]
        lines.append(f"| {run['model']}, {run['mode']} | {' | '.join(cells)} |")
    where = f"{result['gpu']}, {result['cores']} cores, torch {result['torch']}"
    return "\n".join(lines) + f"\n\n{where}; raw results: [feeding.json](benchmarks/results/feeding.json).\n"


def _feeding_cores(result: dict[str, Any]) -> str:
    cores = sorted({one["cores"] for one in result["results"]})
    lines = [
        "| | ceiling | decoded by | " + " | ".join(f"{n} core{'s' * (n > 1)}" for n in cores) + " |",
        "|---" * (3 + len(cores)) + "|",
    ]
    names = {"cpu": "CPU", "gpu": "GPU", "auto": "both (`auto`)", "cache": "nobody: a cache on the GPU"}
    for model, mode in dict.fromkeys((one["model"], one["mode"]) for one in result["results"]):
        runs = [one for one in result["results"] if (one["model"], one["mode"]) == (model, mode)]
        ceiling = statistics.median(one["ceiling"] for one in runs)
        for decode in (kind for kind in names if any(one["decode"] == kind for one in runs)):
            shares = {one["cores"]: one["share_of_ceiling"] for one in runs if one["decode"] == decode}
            cells = [f"{shares[n]:.0%}" if n in shares else "" for n in cores]
            lines.append(f"| {model}, {mode} | {ceiling:,.0f} | {names[decode]} | {' | '.join(cells)} |")
    where = f"{result['gpu']}, torch {result['torch']}"
    return (
        "\n".join(lines)
        + f"\n\n{where}; raw results: [feeding-cores.json](benchmarks/results/feeding-cores.json).\n"
    )


def _gpu_decode(result: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for run in result["runs"] for name in run["images_per_s"]))
    heads = ["bytes between entry points", "batch", *names, "kernels, an image", "over PCIe, an image"]
    lines = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    for run in result["runs"]:
        rates = [f"{run['images_per_s'][name]:,.0f}" if name in run["images_per_s"] else "" for name in names]
        cells = [
            f"{run['bytes_per_entry']:,}", str(run["batch"]), *rates,
            f"{sum(run['kernel_us_per_image'].values()):.2f} µs",
            f"{run['staged_bytes_per_image'] / 1e3:.0f} of {run['file_bytes_per_image'] / 1e3:.0f} KB",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| kernel | threads of a block | registers | shared memory | theoretical occupancy |",
        "|---" * 5 + "|",
    ]
    lines += [
        f"| {name} | {one['threads_per_block']} | {one['registers']} | {one['shared_bytes']:,} bytes | "
        f"{one['theoretical_occupancy']:.0%} |"
        for name, one in result["kernels"].items()
    ]
    where = (
        f"{result['gpu']}, {result['host_threads']} threads of the host, {result['images']:,} images in turn"
    )
    return (
        "\n".join(lines)
        + f"\n\n{where}; raw results: [gpu-decode.json](benchmarks/results/gpu-decode.json).\n"
    )


def _model_rates(result: dict[str, Any]) -> str:
    """Images per second, and how long a device takes for 1 GB of JPEGs and for ImageNet."""
    in_a_gb = 1e9 * result["imagenet_images"] / IMAGENET_BYTES
    lines = [
        f"| | forward, images/s | 1 GB of JPEGs ({in_a_gb:,.0f} images) | ImageNet "
        f"({result['imagenet_images']:,} images) | training, images/s | an epoch of ImageNet |",
        "|---|---|---|---|---|---|",
    ]
    rows = {(row["model"], row["training"]): row for row in result["results"]}
    for model in dict.fromkeys(model for model, _ in rows):
        forward, training = rows[model, False], rows[model, True]
        lines.append(
            f"| {model} | {forward['images_per_s']:,.0f} | "
            f"{format_seconds(in_a_gb / forward['images_per_s'])} | "
            f"{format_seconds(forward['imagenet_s'])} | {training['images_per_s']:,.0f} | "
            f"{format_seconds(training['imagenet_s'])} |"
        )
    device = result["results"][0]
    raw = "[model-rates.json](benchmarks/results/model-rates.json)"
    return "\n".join(lines) + (
        f"\n\n{device['device']}, torch {result['torch']}, {device['dtype']}, batches of "
        f"{device['batch_size']} that are on the GPU already, {device['image_side']} pixels; "
        f"raw results: {raw}.\n"
    )


def _predictions(result: dict[str, Any]) -> str:
    lines = ["| combination | what | predicted (from, to) | measured | error |", "|---|---|---|---|---|"]
    errors = []
    for one in result["combinations"]:
        for name, row in one["quantities"].items():
            figure = row["predicted"]
            errors.append(row["error"])
            interval = f"{format_seconds(figure['low'])}, {format_seconds(figure['high'])}"
            lines.append(
                f"| {one['name']} | {name} | {format_seconds(figure['value'])} ({interval}) | "
                f"{format_seconds(row['measured_s'])} | {row['error']:.0%} |"
            )
    machine = result["combinations"][0]["machine"]
    return "\n".join(lines) + (
        f"\n\n{len(errors)} figures of {len(result['combinations'])} combinations: median error "
        f"{statistics.median(errors):.1%}, largest {max(errors):.0%}. {machine['cpu_model']}, "
        f"{machine['usable_cores']} cores; raw results: "
        "[predictions.json](benchmarks/results/predictions.json).\n"
    )


def _head(name: str, before: Any, after: Any) -> str:
    return f"| {name} | {before['contestant']} | {after['contestant']} | ratio |\n|---|---|---|---|"


def _row(name: str, before: Any, after: Any, key: str, show: Any, ratio: float | None = None) -> str:
    ratio = after[key] / before[key] if ratio is None else ratio
    return f"| {name} | {show(before[key])} | {show(after[key])} | {format_ratio(ratio)} |"


def _run(result: dict[str, Any]) -> str:
    lines = ["| script | later epochs: rate | CPU time | first epoch: rate | CPU time |", "|---" * 5 + "|"]
    for row in result["rows"]:
        shown = [
            row["ratios"][f"{part}_{cost}"] for part in ("later", "first") for cost in ("wall_s", "cpu_s")
        ]
        lines.append(f"| {row['case']} | {' | '.join(map(_times, shown))} |")
    return "\n".join(lines) + f"\n\n{_where(result['rows'][0]['machine'], 'run')}\n"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def _run_gpu(result: dict[str, Any]) -> str:
    lines = [
        "| an epoch with validation | bare | under `feedrate run` | faster | less CPU | doctor had said |",
        "|---" * 6 + "|",
    ]
    for row in result["rows"]:
        seconds, cpu = (
            [
                statistics.median(
                    e[key] for run in row["runs"] if run["way"] == way for e in run["epochs"][1:]
                )
                for way in ("bare", "run")
            ]
            for key in ("wall_s", "cpu_s")
        )
        said = row.get("predicted")
        told = f"{_times(said['predicted_speedup'])} ({said['low']:.2f}-{said['high']:.2f})" if said else "-"
        ratios = f"{_times(seconds[0] / seconds[1])} | {_times(cpu[0] / cpu[1])}"
        lines.append(f"| {row['script']} | {seconds[0]:.1f} s | {seconds[1]:.1f} s | {ratios} | {told} |")
    where = f"{result['machine']}; raw results: [run-gpu.json](benchmarks/results/run-gpu.json)."
    return "\n".join(lines) + f"\n\n{where}\n"


def _where(machine: dict[str, Any], name: str) -> str:
    versions = machine["versions"]
    parts = [
        machine["cpu_model"],
        f"{machine['usable_cores']} cores",
        f"Python {machine['python']}",
        f"torch {versions['torch']}",
        f"Pillow {versions['pillow']}",
    ]
    return f"{', '.join(parts)}; raw results: [{name}.json](benchmarks/results/{name}.json)."


def _load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{name.replace('_', '-')}.json").read_text())
    return document


BLOCKS = {
    "accuracy": _accuracy,
    "demo": _demo,
    "epochs": _epochs,
    "feeding": _feeding,
    "feeding_cores": _feeding_cores,
    "filters": _filters,
    "gpu_decode": _gpu_decode,
    "kernel_made": _kernel_made,
    "kernel_photos": _kernel_photos,
    "loader": _loader,
    "model_rates": _model_rates,
    "predictions": _predictions,
    "run": _run,
    "run_gpu": _run_gpu,
    "threads": _threads,
}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page))
