# SPDX-License-Identifier: Apache-2.0
"""The remedy that takes the place of the whole `DataLoader`: a pack, and `feedrate.Loader` on all cores.

What goes with the workers: collating, pickling, shared memory, pinning, their start. What stays: the device,
validation's computing, checkpoints, the loop's own Python; and reading, where samples wait for storage.
"""

from __future__ import annotations

from dataclasses import replace

from feedrate.doctor.analyse.loader_call import add_code
from feedrate.doctor.analyse.machine_summary import DataFiles
from feedrate.doctor.analyse.metrics import DONE_BY_DECODER, Measured
from feedrate.doctor.analyse.sample import SampleCost
from feedrate.doctor.findings.evidence import make_remedy
from feedrate.doctor.findings.step_parts import copying_s
from feedrate.doctor.results import Remedy
from feedrate.loader.image import RandomResizedCrop
from feedrate.loader.results import LoaderTrial
from feedrate.model.pipeline import Pipeline, around, predict_change
from feedrate.units import format_bytes, format_seconds

NAME = "loader"
_TITLE = "pack the images and feed them with feedrate.Loader"
_CHANGE = "feedrate.Loader('PACK', ...) in the place of the DataLoader: see docs/loader.md"

# Of a Loader's batch, besides its images: positions, rows of the index, tensors. Measured against a trial,
# 2 cores: 0.8 ms of CPU a batch of 16 photographs, 1.0 of 32 tiny images; and what taking it costs the loop.
_BATCH_CPU_S, _TAKING_S = 0.9e-3, 0.2e-3
_WRITTEN_BYTES_PER_S = 2.5e9  # floats made of bytes, on one core
# Besides decoding, what every dataset does: it makes a tensor, some calls of Python a sample.
_PLAIN_S, _PLAIN_BYTES_PER_S = 0.3e-3, 0.6e9
_FREED_SHARE = 0.1  # of decoding: an image is opened, and its memory given back, by no call with a name
_OWN_SHARE = 0.15  # of a sample's CPU: with more of it in code of the user's own, nothing is predicted
# What a Loader does without Python of the user's: in its kernel; on a GPU also by `on_device=`.
_IN_KERNEL = frozenset({
    *DONE_BY_DECODER, "Normalize", "ConvertImageDtype", "ToPureTensor", "PIL.mirror",
    "torchvision.to_tensor", "torchvision.pil_to_tensor",
})  # fmt: skip
_ON_DEVICE = frozenset({
    "ColorJitter", "Grayscale", "RandomGrayscale", "GaussianBlur", "RandomSolarize", "RandomErasing",
    "PIL.enhance",
})  # fmt: skip
# Packing: 1.08 times the CPU of a scan and of tar, which takes 8 us a file and 1.1 ns a byte
# (benchmarks/results/packing.json).
_PACKING, _TAR_FILE_S, _TAR_BYTE_S = 1.08, 8e-6, 1.1e-9
_CROPPED = 0.54  # of an image, what RandomResizedCrop takes on average
_WAITED_FOR = 0.2  # of a sample's time: with less, reading is not what a Loader waits for
_SMALL_BYTES = 1e6
_READ_SMALL, _READ_LARGE = 0.25, 0.8  # of waiting for files, what ranges of a pack leave of it


def replace_loader(m: Measured) -> Remedy | None:
    """Predict `feedrate.Loader` on a pack in place of the DataLoader, from what was tried on these files."""
    sample, data, trial = m.samples.cost, m.machine.data, m.tried.trial
    if data is None or trial is None or m.loader.reads_pack or sample.kind("decode").cpu_s <= 0:
        return None
    if why := _why_not(m, sample):
        return Remedy(NAME, _TITLE, 1.0, 1.0, 1.0, note=why)
    call, then = m.tried.call, predict_pipeline(m, sample, data, trial)
    prediction = predict_change(m.pipeline, then, m.loop.step_s)
    # What was never seen to be faster, the computing on batches that were there, is no faster with a Loader.
    most = m.loop.step_s / (then.device_s + then.between_s)
    prediction = around(most) if prediction.speedup > most else prediction
    packs = call.packs if call is not None and not call.why_not else ()
    return add_code(m, make_remedy(
        m, NAME, _TITLE, (prediction, then),
        decode_s=then.fetch_cpu_s / m.loop.samples_per_step,
        command=" && ".join(place.pack_command(name) for place, name in packs) or data.pack_command,
        # What was tried is a guess where no call was recognised: no line for a script.
        change=_CHANGE if call is None else None,
        note=_note(m, sample, data, trial, then),
    ))  # fmt: skip


def predict_pipeline(m: Measured, sample: SampleCost, data: DataFiles, trial: LoaderTrial) -> Pipeline:
    """Return the run with a Loader: what was tried, beside what the training itself takes."""
    now, n = m.pipeline, m.loop.samples_per_step
    own_s = sum(_other_transforms(m, sample).values())
    beside_s = _BATCH_CPU_S + own_s * n
    if m.loader.is_batch_of_floats and not m.training.is_on_gpu:
        beside_s += m.loader.batch_bytes / _WRITTEN_BYTES_PER_S
    # A sample may be made of several files, by the bytes that were read for it.
    images = n * max(round(sample.read_bytes / max(data.mean_bytes, 1.0)), 1)
    kept = _READ_SMALL if data.mean_bytes < _SMALL_BYTES else _READ_LARGE
    # What storage was seen to give, by as much as a pack is read better; more threads get no more out of it.
    reading_s = m.samples.read_blocked_s * n * kept / max(m.loader.makers, 1)
    device_s = m.as_loaded_s
    if m.training.is_on_gpu:
        # Batches arrive beside the computing, which cannot take less than the device's own time.
        computing_s = m.training.computing_s * device_s / m.device_s
        device_s = max(device_s - copying_s(m), min(computing_s, device_s))
    starting_s = m.loop.per_step("epoch-start")
    between_s = max(now.between_s - starting_s - _validating_less_s(m, trial), 0.0)
    first_s = m.loop.epochs / len(m.loop.steps) * images / trial.images_per_s
    then = replace(
        now,
        device_s=device_s,
        device_cpu_s=now.device_cpu_s * device_s / max(now.device_s, 1e-9),
        fetch_cpu_s=images * trial.cpu_s + beside_s,
        fetch_blocked_s=0.0,
        handover_s=_TAKING_S,
        workers=trial.busy_threads,
        cores=now.cores / trial.ranks,
        between_s=between_s + min(starting_s, first_s),
        drag=_drag_of_threads(now),
        # Python of the user's runs in one thread at a time.
        loader_s=max(reading_s, own_s * n),
    )
    # An image costs less where few threads are at work.
    load = (then.fetch_cpu_s + then.device_cpu_s) / max(then.cores * (then.step_s - then.between_s), 1e-9)
    each_s = trial.alone_cpu_s + (trial.cpu_s - trial.alone_cpu_s) * min(load, 1.0)
    return replace(then, fetch_cpu_s=images * each_s + beside_s)


def _validating_less_s(m: Measured, trial: LoaderTrial) -> float:
    """Return the time per step that validation takes less with the Loader that is written for it."""
    call, steps, all_s = m.tried.call, len(m.loop.steps), m.loop.per_step("validation")
    waited_s, samples = m.loop.asked.get(call.validates, (0.0, 0)) if call is not None else (0.0, 0)
    if call is None or call.validation is None or call.why_not or not samples:
        return 0.0
    # What was tried are the training's crops; validation decodes whole images.
    crops = isinstance(call.options.get("image"), RandomResizedCrop)
    making_s = samples / steps / (trial.images_per_s * (_CROPPED if crops else 1.0))
    return max(all_s - max(all_s - waited_s / steps, making_s), 0.0)


def _drag_of_threads(now: Pipeline) -> float:
    """Return what making batches adds to the computing beside it, where no worker takes its core from it.

    More processes than cores make the computing wait; of a Loader's threads the model knows that by itself.
    """
    waited_s = max(now.limits.get("cores", 0.0) - now.device_s - now.handover_s, 0.0)
    return max(now.drag - waited_s / max(now.fetch_cpu_s, 1e-9), 0.0)


def _other_transforms(m: Measured, sample: SampleCost) -> dict[str, float]:
    """Return the CPU time a sample of transforms that a Loader does not do by itself, by name."""
    done = _IN_KERNEL | _ON_DEVICE if m.training.is_on_gpu else _IN_KERNEL
    return {
        name: cost.cpu_s
        for (kind, name), cost in sample.parts.items()
        if kind == "transform" and name not in done
    }


def _dropped(m: Measured, sample: SampleCost) -> dict[str, float]:
    """Return the CPU time a sample of libraries' operations that the code to paste does not have, by name."""
    names = m.tried.call.dropped if m.tried.call is not None else ()
    return {name: s for name, s in _other_transforms(m, sample).items() if name in names}


def own_code(m: Measured, sample: SampleCost) -> tuple[float, str]:
    """Return what a sample costs in code of the user's own, and the name of the most of it.

    Transforms that are known by name, and what is more than a dataset does for every sample. What a library
    does, and the code leaves out by name, is not the user's.
    """
    dropped = _dropped(m, sample)
    named = {name: s for name, s in _other_transforms(m, sample).items() if name not in dropped}
    plain_s = _PLAIN_S + m.loader.batch_bytes / max(m.loop.samples_per_step, 1.0) / _PLAIN_BYTES_PER_S
    plain_s += _FREED_SHARE * sample.kind("decode").cpu_s
    helpers_s = m.samples.helpers_s
    rest_s = max(sample.kind("rest").cpu_s + helpers_s - plain_s, 0.0)
    largest = max(named, key=lambda name: named[name], default="")
    if rest_s > named.get(largest, 0.0):
        hot = next(iter(m.samples.looks.own), None)
        largest = f"{hot.function} ({hot.place})" if hot is not None else "the dataset's own code"
    return sum(named.values()) + rest_s, largest


def _why_not(m: Measured, sample: SampleCost) -> str:
    """Return why nothing is predicted; empty: something is."""
    if len(m.loop.loaders) > 1:
        return f"a step takes batches of {len(m.loop.loaders)} loaders, and was not tried with as many"
    own_s, name = own_code(m, sample)
    if own_s > _OWN_SHARE * sample.total.cpu_s:
        return (
            f"{format_seconds(own_s)} a sample are code of your own ({name}), which would run in one thread "
            "at a time; feedrate.Dataset in the DataLoader keeps the workers for it"
        )
    return ""


def _note(m: Measured, sample: SampleCost, data: DataFiles, trial: LoaderTrial, then: Pipeline) -> str:
    on = f"{trial.threads} cores" if trial.threads > 1 else "one core"
    call = m.tried.call
    said = [call.why_not] if call is not None and call.why_not else []
    said += [f"{trial.images_per_s:,.0f} images/s on {on}, tried with {trial.images} of these files"]
    if call is not None and call.validation is not None and _validating_less_s(m, trial):
        said.append("validation with a Loader of its own is counted")
    if dropped := _dropped(m, sample):
        took = format_seconds(sum(dropped.values()))
        said.append(f"{', '.join(dropped)}, {took} a sample, counts as done in one thread beside it")
    if m.training.is_on_gpu and then.slowest in ("workers", "cores"):
        said.append("what the GPU decodes beside them comes on top")
    if data.dataset_bytes:
        each_s = _PACKING * (trial.scan_s + _TAR_FILE_S + data.mean_bytes * _TAR_BYTE_S)
        whole_s = data.dataset_bytes / max(data.mean_bytes, 1.0) * (each_s + m.samples.read_blocked_s)
        seconds, size = whole_s / max(m.machine.cores, 1.0), format_bytes(data.dataset_bytes)
        said.append(f"packing takes about {format_seconds(seconds)}, and {size} of disk")
    if m.samples.read_blocked_s >= _WAITED_FOR * sample.total.wall_s:
        said.append("storage is still waited for, until 'feedrate stage' brings the pack to a local disk")
    return "; ".join(said)
