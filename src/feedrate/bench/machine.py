# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench machine`: the numbers that everybody should know of a node.

Stores: reading, writing. Cores: decoding. The GPU: copying to it, decoding on it. The device that torch has:
standard models. What is not there is left out, with the reason.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrate import kernel
from feedrate.arrays import U8
from feedrate.bench.loader import Say
from feedrate.bench.results import MachineResult
from feedrate.errors import FeedrateError, UsageError
from feedrate.figures import Figure
from feedrate.files.atomic import writing
from feedrate.files.own_folder import own_folder
from feedrate.kernel.cuda import batch as kernels
from feedrate.kernel.cuda.launcher import compile_source
from feedrate.lab.child import Clock
from feedrate.lab.decode import Samples, decode_as_torchvision, open_files
from feedrate.lab.device import BATCH_SIZE, choose_device, describe_device, measure_model
from feedrate.lab.photographs import make_photograph
from feedrate.lab.store import Neighbours
from feedrate.lab.trial_files import FULL, QUICK, Sizes, check_store, choose_sizes, measure_files
from feedrate.loader.geometry import Geometry
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine, find_node, read_cpu_model
from feedrate.machine.disk import describe_storage, find_scratch
from feedrate.machine.results import MachineNumbers, ModelRates
from feedrate.model.gpus import KNOWN_MODELS
from feedrate.units import format_count, format_seconds

if TYPE_CHECKING:
    import torch

SCRATCH, TEMPORARY = "scratch", "temporary folder"
_NO_TORCH = "torch is not installed: pip install 'feedrate[torch]'"
_SIDE = 224
_MODEL = "resnet50"
_LEAST_ROUNDS = 3
_BATCHES = 8  # that the GPU is given at once
_STEPS, _BACKWARD = 5, 4  # steps at least that a model is measured with; training by forward, in time


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: photographs, seconds for each figure, bytes to copy to a GPU, models.

    `most_s`: what a CPU may take for the training of a model.
    """

    photographs: int
    seconds: float
    transfer_bytes: int
    models: tuple[str, ...]
    cpu_models: tuple[str, ...]
    cpu_batch: int
    most_s: float


_FULL = Effort(96, 1.5, 64 << 20, KNOWN_MODELS, ("resnet18", _MODEL), 4, 20.0)
_QUICK = Effort(32, 0.5, 16 << 20, (_MODEL,), ("resnet18",), 2, 4.0)


def choose_stores(words: Sequence[str]) -> dict[str, Path]:
    """Return the folders to measure, by name: DIR or NAME=DIR; without any the scratch folder of this node.

    Raises:
        UsageError: two have one name.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, is_named, folder = word.partition("=")
        if not is_named or not name or "/" in name or os.path.exists(word):
            name = folder = word
        if name in found:
            raise UsageError(f"two stores are called '{name}'", hint="name them: --store NAME=DIR")
        found[name] = Path(folder)
    if found:
        return found
    scratch = find_scratch()
    return {SCRATCH: scratch} if scratch else {TEMPORARY: Path(tempfile.gettempdir())}


def bench_machine(
    stores: Mapping[str, Path], *, is_quick: bool, say: Say
) -> tuple[MachineResult, MachineNumbers]:
    """Measure; return what to show and share, and what to keep of this node.

    Raises:
        NotFound, StorageError: a store is not there, cannot be written to, is full, or does not answer.
    """
    began, effort, neighbours = time.perf_counter(), _QUICK if is_quick else _FULL, Neighbours()
    left_out: dict[str, str] = {}

    def say_of(name: str) -> Say:
        return lambda text: say(f"{name}: {text}")

    with ExitStack() as stack:
        # All are tried before the first is measured.
        opened = {name: _open_store(folder, is_quick, stack, say) for name, folder in stores.items()}
        speeds = {name: measure_files(*store, say_of(name)) for name, store in opened.items()}
        say(f"decoding {format_count(effort.photographs, 'photograph')} on one core and on all")
        jpegs = [make_photograph(number).jpeg for number in range(effort.photographs)]
        with _open_photographs(jpegs, next(iter(opened.values()))[0]) as samples:
            geometry = samples.draw(_SIDE, seed=0)
            decode, gain = _measure_decoding(samples, geometry, effort.seconds)
        say("the device")
        gpu = _measure_gpu(jpegs, geometry, effort, left_out)
        models, device = _measure_models(effort, left_out, say)
    numbers = MachineNumbers(
        node=find_node(),
        date=date.today().isoformat(),
        machine=describe_machine(["bench", "machine", *(["--quick"] if is_quick else [])]),
        stores={
            describe_storage(folder).mount_point: replace(speeds[name], path=str(folder))
            for name, folder in stores.items()
        },
        decode_images_per_s=decode,
        core_gain=gain,
        to_device_bytes_per_s=gpu.get("pinned"),
        gpu_decode_images_per_s=gpu.get("decode"),
        models=models,
        device=device,
    )
    named = {name: replace(speed, path=name) for name, speed in speeds.items()}
    result = MachineResult(
        numbers=replace(numbers, node="", stores=named),
        is_quick=is_quick,
        left_out=left_out,
        busy=neighbours.describe(),
        took_s=time.perf_counter() - began,
    )
    return result, numbers


def _open_store(folder: Path, is_quick: bool, stack: ExitStack, say: Say) -> tuple[Path, Sizes]:
    """Return a folder of our own below the one that was named, and how much to write there."""
    check_store(folder)
    inside = stack.enter_context(own_folder(folder, "feedrate-bench-machine-", say))
    return inside, choose_sizes(inside, QUICK if is_quick else FULL)


def _open_photographs(jpegs: Sequence[bytes], folder: Path) -> Any:
    paths = []
    for number, jpeg in enumerate(jpegs):
        path = folder / f"{number}.jpg"
        with writing(path):
            path.write_bytes(jpeg)
        paths.append(str(path))
    return open_files(paths, in_memory=True)


def _measure_rate(count: int, act: Callable[[], object], seconds: float, clock: Clock) -> Figure:
    """Return how many a second, in rounds of `count` each, the first of which does not count."""
    act()
    rates: list[float] = []
    until = time.perf_counter() + seconds
    while len(rates) < _LEAST_ROUNDS or time.perf_counter() < until:
        began = clock()
        act()
        rates.append(count / max(clock() - began, 1e-9))
    return Figure.of_mean(rates)


def _measure_decoding(
    samples: Samples, geometry: Geometry, seconds: float
) -> tuple[dict[str, Figure], Figure]:
    """Return images per second of one core, by CPU time, and what all cores together gain."""
    count, every = len(samples), np.arange(len(samples))
    out: U8 = np.zeros((count, _SIDE, _SIDE, 3), np.uint8)
    files = [samples.read(number) for number in range(count)]

    def decode_with_pillow() -> None:
        for number, (left, top, right, bottom) in enumerate(geometry.boxes.tolist()):
            flip = bool(geometry.flips[number])
            out[number] = decode_as_torchvision(files[number], (left, top, right, bottom), _SIDE, flip)

    def decode(pool: kernel.Pool | None = None) -> None:
        samples.decode_chosen(every, geometry, out, pool)

    found = {
        "pillow": _measure_rate(count, decode_with_pillow, seconds, time.process_time),
        "feedrate": _measure_rate(count, decode, seconds, time.process_time),
    }
    gains: list[float] = []
    pools = [kernel.Pool(threads) for threads in (1, count_usable_cores())]
    until = time.perf_counter() + 2 * seconds
    try:
        while len(gains) <= _LEAST_ROUNDS or time.perf_counter() < until:
            took = []
            for pool in pools:  # in turn: others that use the machine slow down both
                began = time.perf_counter()
                decode(pool)
                took.append(time.perf_counter() - began)
            gains.append(took[0] / took[1])
    finally:
        for pool in pools:
            pool.close()
    return found, Figure.of_mean(gains[1:])  # in the first, threads start


def _measure_gpu(
    jpegs: Sequence[bytes], geometry: Geometry, effort: Effort, left_out: dict[str, str]
) -> dict[str, Figure]:
    """Return the rates of copies to the first GPU (`pinned`) and of decoding there (`decode`)."""
    found: dict[str, Figure] = {}
    try:
        choice = choose_device(None)
        if choice.device.type != "cuda":
            left_out["GPU"] = choice.unused or "there is none, or torch finds none"
            return {}
        found["pinned"] = _measure_transfer(choice.device, effort)
        batch = _GpuDecoding(jpegs, geometry, choice.device)
        rate = _measure_rate(
            _BATCHES * batch.images, lambda: batch.run(_BATCHES), effort.seconds, time.perf_counter
        )
        found["decode"] = replace(rate, note=f"batches of {batch.images}, the host's part aside")
    except ImportError:
        left_out["GPU"] = _NO_TORCH
    except (FeedrateError, RuntimeError) as error:
        left_out["decoding on the GPU" if found else "GPU"] = _explain(error)
    return found


def _explain(error: FeedrateError | RuntimeError) -> str:
    """Return why a device was not measured: others hold its memory, or have it to themselves."""
    if isinstance(error, FeedrateError):
        return f"{error.message}. {error.hint or ''}".strip()
    return f"torch says: {(str(error) or type(error).__name__).splitlines()[0][:200]}"


def _measure_transfer(device: torch.device, effort: Effort) -> Figure:
    """Return the bytes per second from pinned memory."""
    import torch

    there = torch.empty(effort.transfer_bytes, dtype=torch.uint8, device=device)
    here = torch.zeros(effort.transfer_bytes, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        for _ in range(_BATCHES):
            there.copy_(here, non_blocking=True)
        torch.cuda.synchronize(device)

    return _measure_rate(_BATCHES * len(here), copy, effort.seconds / 3, time.perf_counter)


class _GpuDecoding:
    """A batch of photographs, each several times, to decode on a GPU: planned once, the host's part aside."""

    def __init__(self, jpegs: Sequence[bytes], geometry: Geometry, device: torch.device) -> None:
        import torch

        self._device, times = device, -(-BATCH_SIZE // len(jpegs))
        jpegs = [*jpegs] * times
        self._module = compile_source(kernels.source(), kernels.COMPILE_OPTIONS, device=device.index)
        self._plan = kernels.BatchPlan(
            lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        )
        taken = self._plan.look(
            kernel.Inputs(jpegs, [kernel.scan(jpeg).entries for jpeg in jpegs]),
            boxes=np.tile(geometry.boxes, (times, 1)),
            flips=np.tile(geometry.flips, times),
            size=(_SIDE, _SIDE),
        )
        self.images = int(taken.sum())
        staged = torch.empty(self._plan.sizes.staged, dtype=torch.uint8, pin_memory=True)
        self._plan.fill(staged.numpy())
        self._given = {"staged": staged, "words": torch.from_numpy(self._plan.words)}
        sizes = self._plan.buffer_bytes()
        self._buffers = {
            name: torch.empty(size, dtype=torch.uint8, device=device) for name, size in sizes.items()
        }
        self._out = torch.zeros(len(jpegs), _SIDE, _SIDE, 3, dtype=torch.uint8, device=device)
        self.statuses = torch.full((len(jpegs),), -1, dtype=torch.int32, device=device)

    def run(self, times: int = 1) -> None:
        import torch

        for _ in range(times):
            for name, bytes_ in self._given.items():
                self._buffers[name][: len(bytes_)].copy_(bytes_, non_blocking=True)
            kernels.run(self._plan, self._module.launch, self._buffers, self._out, self.statuses)
        torch.cuda.synchronize(self._device)


def _measure_models(effort: Effort, left_out: dict[str, str], say: Say) -> tuple[dict[str, ModelRates], str]:
    """Return what the device that torch has takes of standard models, and its name."""
    try:
        device = choose_device(None).device
    except ImportError:
        left_out["models"] = _NO_TORCH
        return {}, read_cpu_model()
    is_cuda = device.type == "cuda"
    batch_size = BATCH_SIZE if is_cuda else effort.cpu_batch
    found = {}
    for name in effort.models if is_cuda else effort.cpu_models:
        say(f"{name} on {describe_device(device)}")

        def measure(*, training: bool, name: str = name) -> Figure:
            rate = measure_model(
                name, device, training=training, batch_size=batch_size, seconds=effort.seconds
            )
            note = f"batches of {rate.batch_size}, {rate.dtype}"
            return Figure(rate.images_per_s, rate.low, rate.high, note=note)

        what, training = name, None
        try:
            forward = measure(training=False)
            what, needed_s = f"{name}, training", _STEPS * _BACKWARD * batch_size / forward.value
            if is_cuda or needed_s <= effort.most_s:
                training = measure(training=True)
            else:
                left_out[what] = f"it would take about {format_seconds(needed_s)} on this CPU"
        except (FeedrateError, RuntimeError) as error:
            left_out[what] = _explain(error)
            if what == name:
                continue
        found[name] = ModelRates(forward, training)
    return found, describe_device(device)
