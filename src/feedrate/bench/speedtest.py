# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest`: a standard model trained for a while, with the plain loader and with feedrate.

Measured in this order, all within one time budget: what the device takes of batches that are on it already;
what each loader gives when nobody trains; then training, the loaders in turn (A B A B). Which part is the
limit comes from the cost model, which is given the parts as they were measured alone.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from feedrate.bench.loader import FILES, NAMES, PACK, FeedOptions
from feedrate.bench.results import SpeedStanding, SpeedtestResult, Subset
from feedrate.bench.rounds import Clock
from feedrate.bench.turns import ALONE, LEAST_TURN, ROUNDS, Budget, Contest, GpuWatch, Timed, Watch, mean
from feedrate.errors import UsageError
from feedrate.format.manifest import FILE_NAME
from feedrate.lab.device import (
    ModelRate,
    Step,
    check_side,
    describe_device,
    make_model,
    measure_model,
    quick_convolutions,
)
from feedrate.loader.device.transfer import check_device
from feedrate.machine.cpu import count_usable_cores, measure_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.machine.gpu import describe_gpus
from feedrate.model.pipeline import Pipeline, soft_max
from feedrate.model.results import check_model
from feedrate.stats import median_ratio
from feedrate.units import (
    format_count,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    shell_quote,
)

if TYPE_CHECKING:
    import torch

SECONDS, QUICK_SECONDS, SHORTEST_S = 110.0, 45.0, 15.0
GPU_BATCH_SIZE, CPU_BATCH_SIZE = 128, 8
INSTALL = "pip install --force-reinstall torch"  # on Linux, PyPI has the build for CUDA
_SIDES = (224, 160, 128, 96, 64)  # multiples of the vision transformer's patches
_STEPS = 8  # at least, in a turn: fewer tell nothing
_FEWEST_STEPS = 12  # in all the time that is left
_LONG_EPOCH_IMAGES = 50_000
_BUSY = 0.75  # processes per core that run or wait for the disk, over the last minute
_NOISE = 0.05  # two rates on a shared machine differ by this much without a reason


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What the user may say. None: chosen by what the device and the time allow."""

    model: str = "densenet121"
    batch_size: int | None = None
    side: int | None = None
    seconds: float = SECONDS
    device: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_model(self.model)
        if self.side is not None:
            check_side(self.model, self.side)
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"--device must be cpu, cuda or cuda:N, got '{self.device}'")
        if self.seconds < SHORTEST_S:
            raise UsageError(f"--seconds must be at least {SHORTEST_S:.0f}, got {self.seconds:g}")


class Choice(NamedTuple):
    """The device to train on. `unused`: about a GPU that is here all the same; `install`: what mends that."""

    device: torch.device
    unused: str = ""
    install: str = ""


def choose_device(asked: str | None) -> Choice:
    """Return the device that was asked for; else a GPU where torch finds one.

    Raises:
        UsageError: it is not there; the hint says what to install, where that is the reason.
    """
    import torch

    gpus = [gpu.name for gpu in describe_gpus()]
    is_cpu_build = torch.version.cuda is None and getattr(torch.version, "hip", None) is None
    build = f"torch {torch.__version__} is a build for the CPU"
    if asked is not None and asked.startswith("cuda") and is_cpu_build:
        where = f"{gpus[0]} is here, but {build}" if gpus else f"{build}, and NVML sees no GPU here"
        raise UsageError(f"--device {asked}: {where}", hint=INSTALL if gpus else "leave out --device")
    device = check_device(asked or ("cuda" if torch.cuda.is_available() else "cpu"), "torch")
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return Choice(torch.device("cuda", index))
    if not gpus or (asked == "cpu" and not is_cpu_build):
        return Choice(device)
    if is_cpu_build:
        return Choice(device, f"{gpus[0]} is here, but not used: {build}; to mend it: {INSTALL}", INSTALL)
    return Choice(device, f"{gpus[0]} is here, but torch {torch.__version__} cannot use it: see nvidia-smi")


def run_speedtest(
    files: str,
    pack: str,
    subset: Subset,
    options: SpeedOptions,
    *,
    source: str | None,
    started: float,
    watch: Watch,
    make: Callable[..., Any] = make_model,
    clock: Clock = time.perf_counter,
) -> SpeedtestResult:
    """Train with both loaders on the images under `files` and in `pack`, which hold the same.

    Args:
        source: the dataset as the user named it; None: the images were made.
        started: when the budget of time began, by `clock`.
        make: makes the model, as `make_model` does.

    Raises:
        UsageError: a batch of the size that was asked for does not fit into memory.
        RunFailed: the workers of the DataLoader were ended.
    """
    budget = Budget(started, options.seconds, watch, clock)
    choice, busy = choose_device(options.device), describe_load()
    device = choice.device
    workers = options.workers or count_usable_cores()
    budget.begin("measuring the device alone")
    batch_size, side = _choose_sizes(options, device, budget, make)
    alone = measure_model(
        options.model, device, training=True, batch_size=batch_size, side=side,
        seconds=ALONE * budget.left, make=make, clock=clock,
    )  # fmt: skip
    if alone.batch_size < batch_size and options.batch_size is not None:
        raise UsageError(
            f"a batch of {batch_size} images of {side} x {side} pixels does not fit into the memory of "
            f"{describe_device(device)}",
            hint=f"{alone.batch_size} do: --batch-size {alone.batch_size}",
        )
    feed_options = FeedOptions(
        alone.batch_size, workers, side, repeat=-(-_LONG_EPOCH_IMAGES // subset.images), device=str(device)
    )
    contest = Contest(files, pack, feed_options, Step(make(options.model, side=side), device, training=True))
    with quick_convolutions(), contest, GpuWatch(device) as gpu:
        contest.run(budget, gpu)
    facts = Facts(subset, alone, contest.measure_copy(), workers, measure_usable_cores())
    before, after = (_sum_up(contest, kind, facts, device.type) for kind in (FILES, PACK))
    ratio = median_ratio(
        *([r.images_per_s for r in contest.runs if r.contestant == NAMES[kind]] for kind in (PACK, FILES))
    )
    verdict, advice, command = judge(before, after, ratio, facts, choice, source)
    return SpeedtestResult(
        source=source,
        subset=subset,
        model=options.model,
        device=describe_device(device),
        device_kind=device.type,
        dtype=alone.dtype,
        batch_size=alone.batch_size,
        image_side=side,
        workers=workers,
        device_alone=alone,
        copy_s=facts.copy_s,
        before=before,
        after=after,
        ratio=ratio,
        runs=tuple(contest.runs),
        verdict=verdict,
        advice=advice,
        next_command=command,
        notes=tuple(note for note in (choice.unused, busy) if note),
        seconds=clock() - started,
        machine=describe_machine(),
    )


def describe_load(load: float | None = None, cores: int | None = None) -> str:
    """Return a sentence about other processes that keep this machine busy; nothing where they do not."""
    load, cores = os.getloadavg()[0] if load is None else load, cores or os.cpu_count() or 1
    if load < _BUSY * cores:
        return ""
    where = f"{load:.1f} on {format_count(cores, 'core')}"
    return f"the load was {where} when this began: other processes make all rates lower and less steady"


def _choose_sizes(
    options: SpeedOptions, device: torch.device, budget: Budget, make: Callable[..., Any]
) -> tuple[int, int]:
    """Return batch size and image side; what was not asked for is such that a CPU gets some steps done.

    Raises:
        UsageError: what was asked for takes too long.
    """
    if device.type == "cuda":
        return options.batch_size or GPU_BATCH_SIZE, options.side or _SIDES[0]
    batch_size, least = options.batch_size or CPU_BATCH_SIZE, min(options.side or _SIDES[-1], _SIDES[-1])
    tried = measure_model(
        options.model, device, training=True, batch_size=min(batch_size, CPU_BATCH_SIZE), side=least,
        seconds=0.0, make=make, clock=budget.clock,
    )  # fmt: skip

    def step_s(side: int) -> float:
        """Say how long a step takes, at most: it grows a little slower than the number of pixels."""
        return batch_size / tried.images_per_s * (side / least) ** 2

    left_s = max(budget.left, 2 * ROUNDS * LEAST_TURN * options.seconds)
    turn_s = (1 - 3 * ALONE) * left_s / (2 * ROUNDS)
    side = options.side or next((one for one in _SIDES if step_s(one) <= turn_s / _STEPS), least)
    longest_s = left_s / _FEWEST_STEPS
    fitting = int(batch_size * longest_s / step_s(side))
    if fitting >= batch_size or (fitting and options.batch_size is None):
        return min(fitting, batch_size), side
    smaller = f"smaller images: --size {least}" if side > least else "is this machine busy? see top"
    raise UsageError(
        f"a step with {format_count(batch_size, 'image')} of {side} x {side} pixels takes up to "
        f"{format_seconds(step_s(side))} on this CPU: too long for a test of {options.seconds:.0f} s",
        hint=f"--batch-size {fitting}" if fitting else f"{smaller}; or more --seconds",
    )


class Facts(NamedTuple):
    """What the parts of a training were measured to take, each alone."""

    subset: Subset
    device: ModelRate
    copy_s: float
    workers: int
    cores: float

    @property
    def compute_s(self) -> float:
        return self.device.batch_size / self.device.images_per_s

    def make_pipeline(self, alone: Timed, kind: str) -> Pipeline:
        batch_size, blocked_s, compute_s = self.device.batch_size, 0.0, self.compute_s
        if kind == FILES and self.subset.read_images_per_s:
            # What a worker waits for files, as they were found: in a first epoch, or if memory is too small.
            blocked_s = batch_size * self.workers / self.subset.read_images_per_s
        # feedrate copies the next batch while the device computes; the plain loop does one after the other.
        device_s = compute_s + self.copy_s if kind == FILES else soft_max(compute_s, self.copy_s)
        return Pipeline(
            device_s=device_s,
            device_cpu_s=self.device.cpu_s_per_image * batch_size,
            fetch_cpu_s=alone.cpu_s / alone.images * batch_size,
            fetch_blocked_s=blocked_s,
            handover_s=0.0,
            workers=self.workers,
            cores=self.cores,
            loader_s=(alone.ended - alone.began) / alone.images * batch_size,
        )

    def name_limit(self, pipeline: Pipeline, device_kind: str) -> str:
        """Return disk, cpu, copy or device: the slowest part of a pipeline, as users know it."""
        slowest = pipeline.slowest
        if slowest == "cores" and device_kind == "cpu" and pipeline.device_cpu_s > pipeline.fetch_cpu_s:
            slowest = "device"  # the cores are busy with training
        if slowest == "device":
            return "copy" if self.copy_s > self.compute_s else "device"
        return "disk" if slowest == "workers" and pipeline.fetch_blocked_s > pipeline.fetch_cpu_s else "cpu"


def _sum_up(contest: Contest, kind: str, facts: Facts, device_kind: str) -> SpeedStanding:
    runs = [run for run in contest.runs if run.contestant == NAMES[kind]]
    alone, whole_s = contest.alone[kind], sum(run.seconds for run in runs)
    copy_s, compute_s = sum(run.copy_s for run in runs), sum(run.compute_s for run in runs)
    rates, images = [run.images_per_s for run in runs], sum(run.images for run in runs)
    pipeline = facts.make_pipeline(alone, kind)
    return SpeedStanding(
        contestant=NAMES[kind],
        images=images,
        images_per_s=images / whole_s,
        low_images_per_s=min(rates),
        high_images_per_s=max(rates),
        alone_images_per_s=alone.images / (alone.ended - alone.began),
        alone_cpu_s_per_image=alone.cpu_s / alone.images,
        wait_share=sum(run.wait_s for run in runs) / whole_s,
        copy_share=copy_s / whole_s,
        compute_share=compute_s / whole_s,
        cpu_s=sum(run.cpu_s for run in runs),
        device_s=copy_s + compute_s,
        utilisation=mean([run.utilisation for run in runs]),
        power_w=mean([run.power_w for run in runs]),
        loading=contest.stages[kind],
        by_gpu_share=contest.by_gpu_share if kind == PACK else 0.0,
        limit=facts.name_limit(pipeline, device_kind),
        limits_images_per_s={
            name: facts.device.batch_size / seconds
            for name, seconds in pipeline.limits.items()
            if seconds > 0
        },
    )


def judge(
    before: SpeedStanding,
    after: SpeedStanding,
    ratio: float,
    facts: Facts,
    choice: Choice,
    source: str | None,
) -> tuple[str, str, str]:
    """Return which part is the limit in one sentence, what to do about it, and the command to type."""
    is_gpu = choice.device.type == "cuda"
    device = "the GPU" if is_gpu else "the CPU, on which the model trains,"
    names = {"disk": "the disk", "cpu": "the CPU", "copy": "the copy to the GPU", "device": device}
    limit, then, plain, ours = names[before.limit], names[after.limit], before.contestant, after.contestant
    is_pack = source is not None and os.path.exists(os.path.join(source, FILE_NAME))
    dataset = "DATASET" if source is None else shell_quote(source)
    again = "feedrate speedtest" + ("" if source is None else f" {dataset}")
    doctor = "feedrate doctor -- python train.py"
    gain = f"{ours} trains {format_ratio(ratio)} the images per second"
    slow, fast = sorted((before, after), key=lambda one: one.images_per_s)
    is_clear = abs(ratio - 1) > _NOISE and slow.high_images_per_s < fast.low_images_per_s
    if not is_clear:
        gain = f"{ours} trains as many images per second, within noise"
    if before.limit == "device":
        busy = format_percent(before.compute_share)
        verdict = f"{limit[0].upper()}{limit[1:]} is the limit: with {plain} it computes {busy} of the time"
        verdict += f"; {gain}."
        if choice.install:
            return verdict, "Let torch use the GPU that is here:", choice.install
        if not is_gpu:
            return verdict, "Train on a machine with a GPU, and run this again there:", again
        return verdict, "To see what your own script does with its time:", doctor
    waits = f"{'the GPU' if is_gpu else 'training'} waits {format_percent(before.wait_share)} of the time"
    if before.limit == "disk":
        rate = format_rate(facts.subset.read_images_per_s or 0.0, "images")
        verdict = (
            f"The disk is the limit: it gives {rate} of files as they were found, and {device.rstrip(',')} "
            f"takes {facts.device.images_per_s:,.0f}; with all files in the page cache, {gain}."
        )
        return verdict, "Pack it, stage it, or keep it in memory? Compare:", f"feedrate plan {dataset}"
    if is_clear and ratio > 1:
        is_same = "still" if then == limit else "then"
        verdict = (
            f"With {plain} {limit} is the limit, and {waits}; {gain}, and {is_same} {then} is the limit."
        )
        if is_pack:
            return verdict, "It is packed already: load it with feedrate.Loader. In your own script:", doctor
        advice = "Pack the dataset once, and load it with feedrate.Loader:"
        return verdict, advice, f"feedrate pack {dataset} PACK"
    verdict = f"{limit[0].upper()}{limit[1:]} is the limit with both loaders: {waits}."
    if before.limit == "copy":
        return verdict, "Copy bytes instead of floats, from pinned memory. In your own script:", doctor
    if facts.workers < int(facts.cores):
        advice = f"Use all {format_count(int(facts.cores), 'core')} that this job has:"
        return verdict, advice, f"{again} --workers {int(facts.cores)}"
    wanted = math.ceil(facts.cores * facts.device.images_per_s / after.alone_images_per_s)
    advice = f"Ask for more cores ({max(wanted, int(facts.cores) + 1)} would do), or look who takes them:"
    return verdict, advice, doctor
