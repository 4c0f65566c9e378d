# SPDX-License-Identifier: Apache-2.0
"""This node, as a plan needs it: what the job may use, and how fast it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from feedrate.errors import StorageError
from feedrate.figures import GIVEN, Figure
from feedrate.files.own_folder import own_folder
from feedrate.lab.trial_files import BRIEF, measure_files
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.disk import find_scratch, measure_room
from feedrate.machine.gpu import describe_gpus
from feedrate.machine.memory import MemoryGauge, count_machine_memory_bytes, read_memory_limit
from feedrate.machine.results import Gpu, MachineNumbers, StoreSpeed
from feedrate.model.gpus import find_model_rate
from feedrate.model.numbers import OLD_DAYS, age_days, find_store
from feedrate.plan.results import Node
from feedrate.units import format_bytes, format_count

_MACHINE = "the machine's memory"


def describe_node(
    dataset: str,
    *,
    scratch: str | None = None,
    model: str = "",
    model_rate: float | None = None,
    numbers: MachineNumbers | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Node:
    """Look at this node.

    Args:
        dataset: beside which a pack would be made.
        scratch: a folder; None: one is looked for; empty: none.
        model, model_rate: what is trained: one of KNOWN_MODELS, or images per second of one GPU.
        numbers: what `feedrate bench machine` found on this node.

    Raises:
        StorageError: the scratch folder that was named cannot be used.
    """
    gpus = _list_gpus()
    memory, whose = measure_memory()
    folder = os.fspath(find_scratch() or "") if scratch is None else scratch
    speed, notes = None, [] if numbers is None else [*note_age(numbers)]
    try:
        speed = find_scratch_speed(folder, numbers, say) if folder else None
    except StorageError as error:
        if scratch is not None:
            raise
        notes.append(f"{folder} is not used as scratch: {error.message}; name another: --scratch DIR")
        folder = ""
    home, home_free = _find_pack_folder(dataset)
    stored = numbers if gpus else None
    return Node(
        name="this node",
        cores=Figure.exactly(measure_usable_cores()),
        memory_bytes=memory,
        memory_origin=whose,
        gpus=len(gpus),
        gpu_name=gpus[0].name if gpus else "",
        gpu_memory_bytes=_exactly(gpus[0].memory_bytes) if gpus else None,
        model=model,
        model_rate=_find_rate(model, model_rate, gpus, numbers),
        to_device_bytes_per_s=stored.to_device_bytes_per_s if stored else None,
        gpu_decode_images_per_s=stored.gpu_decode_images_per_s if stored else None,
        scratch=speed,
        scratch_path=folder,
        scratch_free_bytes=_exactly(measure_room(folder).free_bytes) if folder else None,
        machine_memory_bytes=None if whose == _MACHINE else _exactly(count_machine_memory_bytes()),
        pack_folder=home,
        pack_free_bytes=home_free,
        notes=tuple(notes),
    )


def _exactly(value: float | None) -> Figure | None:
    return None if value is None else Figure.exactly(float(value))


def measure_memory() -> tuple[Figure, str]:
    """Return what this job may still take, and whose limit that is."""
    room = MemoryGauge().measure()
    whose = _MACHINE
    if room.limit_bytes == read_memory_limit():
        is_slurm = "SLURM_JOB_ID" in os.environ
        whose = "this Slurm job's --mem" if is_slurm else "the limit of this control group"
    return Figure.exactly(float(room.free_bytes), note=f"of {format_bytes(room.limit_bytes)}"), whose


def _list_gpus() -> list[Gpu]:
    """Return the GPUs that this job may use: where some are hidden from it, those that are left."""
    found, visible = list(describe_gpus()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    return [gpu for gpu in found if str(gpu.index) in wanted or any(gpu.uuid.startswith(w) for w in wanted)]


def _find_rate(
    model: str, given: float | None, gpus: list[Gpu], numbers: MachineNumbers | None
) -> Figure | None:
    """Return images per second of one GPU, or of the CPU where there is none; None: nobody knows."""
    if given is not None:
        return Figure.exactly(given, GIVEN, "--model-rate")
    # What a GPU was seen to train says nothing of a job that sees none, nor the other way round.
    if numbers is not None and bool(gpus) != (numbers.device == numbers.machine.cpu_model):
        rates = numbers.models.get(model)
        if rates is not None and rates.training is not None:
            return rates.training
    return find_model_rate(gpus[0].name, model) if gpus and model else None


def _find_pack_folder(dataset: str) -> tuple[str, Figure | None]:
    """Return where a pack of a dataset goes, as it is typed, and what is free there."""
    beside = os.path.dirname(os.path.abspath(dataset))
    is_here = "://" in dataset or not os.access(beside, os.W_OK)
    folder = os.getcwd() if is_here else beside
    try:
        free = _exactly(measure_room(folder).free_bytes)
    except OSError:
        free = None
    if folder == os.getcwd():
        return "", free
    return (folder if os.path.isabs(dataset) else os.path.relpath(folder)), free


def find_scratch_speed(folder: str, numbers: MachineNumbers | None, say: Callable[[str], None]) -> StoreSpeed:
    stored = None if numbers is None else find_store(numbers, folder)
    if stored is not None and stored.write_bytes_per_s is not None:
        return replace(stored, path=folder)
    say(f"measuring {folder}")
    try:
        with own_folder(folder, "feedrate-plan-", say) as inside:
            return replace(measure_files(inside, BRIEF), path=folder)
    except OSError as error:
        raise StorageError(
            f"cannot measure {folder}: {error.strerror or error}",
            hint="name a folder on a local disk that you may write to: --scratch DIR",
        ) from error


def note_age(numbers: MachineNumbers) -> tuple[str, ...]:
    days = age_days(numbers)
    text = (
        f"this node's numbers are {format_count(days, 'day')} old: measure them again: feedrate bench machine"
    )
    return (text,) if days > OLD_DAYS else ()
