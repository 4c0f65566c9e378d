# SPDX-License-Identifier: Apache-2.0
"""The kernels of feedrate.kernel.cuda on the CPU: the same source with a shim, behind the same contract."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.kernel.cuda import batch

HERE = Path(__file__).parent
FILLED = 0xA5


def build(folder: Path, *options: str) -> Path:
    """Compile the source as a library; return its path."""
    text, library = folder / "decoder.cu", folder / "emulator.so"
    text.write_text(batch.source())
    subprocess.run(
        [
            "g++", "-std=c++17", "-O1", "-Wall", "-Wno-unknown-pragmas", "-ffp-contract=off",
            "-shared", "-fPIC", "-pthread", *options, f'-DDECODER="{text}"',
            str(HERE / "emulator.cpp"), "-o", str(library),
        ],
        check=True,
    )  # fmt: skip
    return library


class Emulator:
    """Launches kernels on the CPU; blocks have as many threads as `threads` says, whatever was asked for."""

    def __init__(self, library: Path, threads: int = 1) -> None:
        self._launch = ctypes.CDLL(str(library)).launch
        self.threads = threads

    def __call__(self, name: str, grid: tuple[int, int], block: int, args: Sequence[Any]) -> None:
        assert block > 0
        values = [np.uint64(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in args]
        cells = [np.array([value]) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        assert self._launch(name.encode(), *grid, self.threads, pointers) == 0, name


class Case(NamedTuple):
    """One image and what is wanted of it."""

    data: bytes
    entries: bytes
    box: tuple[int, int, int, int]
    flip: bool
    filter: int


def aligned(size: int) -> Any:
    """Return so many bytes, aligned as a device's memory is; none of them is zero."""
    whole = np.full(size + 256, FILLED, np.uint8)
    start = -whole.ctypes.data % 256
    return whole[start : start + size]


def give(cases: Sequence[Case]) -> kernel.Inputs:
    return kernel.Inputs([case.data for case in cases], [case.entries for case in cases])


def look(plan: batch.BatchPlan, cases: Sequence[Case], size: tuple[int, int], **options: Any) -> Any:
    """Plan a batch; return which samples were taken."""
    boxes, flips = np.array([case.box for case in cases], np.int32), np.array([case.flip for case in cases])
    filters = np.array([case.filter for case in cases], np.uint8)
    return plan.look(give(cases), boxes=boxes, flips=flips, filters=filters, size=size, **options)


def decode(
    launch: batch.Launch, cases: Sequence[Case], size: tuple[int, int], channels: int = 3, **options: Any
) -> tuple[Any, Any, Any]:
    """Decode a batch as a GPU would; return the pixels, the statuses, and which samples were taken."""
    plan = batch.BatchPlan(aligned)
    taken = look(plan, cases, size, **options)
    return run(launch, plan, len(cases), size, taken, channels)


def run(
    launch: batch.Launch,
    plan: batch.BatchPlan,
    count: int,
    size: tuple[int, int],
    taken: Any,
    channels: int = 3,
) -> tuple[Any, Any, Any]:
    """Do what was planned; return the pixels, the statuses, and which samples were taken."""
    buffers = {name: aligned(size) for name, size in plan.buffer_bytes().items()}
    staged = len(buffers["staged"])
    guarded = aligned(staged + (1 << 17))
    buffers["staged"] = guarded[:staged]
    plan.fill(buffers["staged"])
    buffers["words"] = plan.words
    assert (guarded[staged:] == FILLED).all(), "the planner wrote behind the end of what is staged"
    out = np.full((count, *size, channels), 77, np.uint8)
    statuses = np.full(count, -1, np.int32)
    batch.run(plan, launch, buffers, out, statuses, channels)
    return out, statuses, taken
