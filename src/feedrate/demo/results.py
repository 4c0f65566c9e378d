# SPDX-License-Identifier: Apache-2.0
"""What `demo` and `speedtest` return."""

from __future__ import annotations

from dataclasses import dataclass

from feedrate.bench.results import BenchRun, Standing
from feedrate.doctor.results import Diagnosis
from feedrate.machine.results import Machine


@dataclass(frozen=True, slots=True)
class DemoResult:
    """`feedrate demo`: the same network trained on the same images, before and after packing."""

    images: int
    held_out_images: int
    image_bytes: int
    epochs: int
    threads: int
    pack_s: float
    before: Standing
    after: Standing
    ratio: float  # images/s, median over paired runs
    runs: tuple[BenchRun, ...]
    kept: str | None  # the folder, when it was kept
    machine: Machine


@dataclass(frozen=True, slots=True)
class SpeedtestResult:
    """`feedrate speedtest`: what the doctor says of a standard training.

    Attributes:
        source: as the user named it; None: images that were made.
        steps_s: of all timed steps; `cpu_s` and `device_s`: CPU time of all processes in it, and how long the
            device had something to do. None: unknown.
    """

    source: str | None
    model: str
    steps_s: float
    cpu_s: float | None
    device_s: float
    diagnosis: Diagnosis
