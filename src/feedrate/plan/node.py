# SPDX-License-Identifier: Apache-2.0
"""This node, as a plan needs it: what the job may use, and how fast it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date

from feedrate.errors import StorageError, UsageError
from feedrate.figures import GIVEN, MEASURED, Figure
from feedrate.machine.cpu import measure_usable_cores
from feedrate.machine.disk import find_scratch, measure_room
from feedrate.machine.gpu import describe_gpus
from feedrate.machine.memory import MemoryGauge, read_memory_limit
from feedrate.machine.results import Gpu, MachineNumbers, StoreSpeed
from feedrate.plan.results import Node

OLD_DAYS = 30


def describe_node(
    *,
    scratch: str | None,
    model: str = "",
    model_rate: float | None = None,
    numbers: MachineNumbers | None = None,
    say: Callable[[str], None],
) -> Node:
    """Look at this node.

    Args:
        scratch: a folder; None: one is looked for.
        numbers: of `feedrate bench machine` on this node.

    Raises:
        StorageError: the scratch folder cannot be written to.
    """
    gpus = _find_gpus()
    notes = [] if numbers is None else _note_age(numbers)
    room = MemoryGauge().measure()
    folder = scratch or os.fspath(find_scratch() or "")
    store, free = _look_at_scratch(folder, numbers, say) if folder else (None, None)
    rate = _find_rate(model, model_rate, gpus, numbers)
    return Node(
        name="this node",
        cores=Figure.exactly(measure_usable_cores()),
        memory_bytes=Figure.exactly(float(room.free_bytes)),
        memory_origin=_name_limit(room.limit_bytes),
        gpus=len(gpus),
        gpu_name=gpus[0].name if gpus else "",
        gpu_memory_bytes=_measured(gpus[0].memory_bytes) if gpus else None,
        model=model,
        model_rate=rate,
        to_device_bytes_per_s=None if numbers is None or not gpus else numbers.to_device_bytes_per_s,
        gpu_decode_images_per_s=None if numbers is None or not gpus else numbers.gpu_decode_images_per_s,
        scratch=store,
        scratch_path=folder,
        scratch_free_bytes=free,
        machine_memory_bytes=Figure.exactly(float(_machine_memory_bytes())),
        notes=tuple(notes),
    )


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _name_limit(limit_bytes: int) -> str:
    if limit_bytes != read_memory_limit():
        return "the machine's memory"
    return "this Slurm job's --mem" if "SLURM_JOB_ID" in os.environ else "the limit of this control group"


def _measured(value: float | None) -> Figure | None:
    return None if value is None else Figure.exactly(float(value), MEASURED)


def _find_gpus() -> list[Gpu]:
    """Return the GPUs that this job may use: where some are hidden from it, those that are left."""
    found = list(describe_gpus())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    return [gpu for gpu in found if str(gpu.index) in wanted or any(gpu.uuid.startswith(w) for w in wanted)]


def _note_age(numbers: MachineNumbers) -> list[str]:
    days = (date.today() - date.fromisoformat(numbers.date)).days
    text = f"this node's numbers are {days} days old: feedrate bench machine measures them again"
    return [text] if days > OLD_DAYS else []
