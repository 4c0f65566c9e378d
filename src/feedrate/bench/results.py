# SPDX-License-Identifier: Apache-2.0
"""What `bench` returns, and the runs of `demo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.loader.results import PixelCheck
from feedrate.machine.results import Machine, MachineNumbers


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One fresh process that loaded or trained: a discarded epoch, then timed ones.

    Attributes:
        images: of each timed epoch; `seconds` likewise, from one epoch's end to the next.
        wait_s: how long the consumer waited for batches in the timed epochs.
        cpu_s: of the process and its workers in the timed epochs.
        first_batch_s: from the making of the loader, imports done, to the first batch.
        peak_memory_bytes: of the process and its workers, shared pages counted once (PSS).
    """

    contestant: str
    round: int
    images: tuple[int, ...]
    seconds: tuple[float, ...]
    wait_s: float
    cpu_s: float
    first_batch_s: float
    peak_memory_bytes: int
    accuracy: float | None = None

    @property
    def images_per_s(self) -> float:
        return sum(self.images) / sum(self.seconds)

    @property
    def wait_share(self) -> float:
        return self.wait_s / sum(self.seconds)

    @property
    def cpu_s_per_image(self) -> float:
        return self.cpu_s / sum(self.images)


@dataclass(frozen=True, slots=True)
class Standing:
    """The runs of one contestant: medians over the runs; `slow` and `fast` are quartiles over all epochs."""

    contestant: str
    images_per_s: float
    slow_images_per_s: float
    fast_images_per_s: float
    wait_s: float
    wait_share: float
    cpu_s_per_image: float
    first_batch_s: float
    peak_memory_bytes: int
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`feedrate bench loader`: `after` is feedrate, `before` the loader that everybody starts with."""

    source: str
    dataset_images: int
    batch_size: int
    threads: int
    image_side: int
    before: Standing
    after: Standing
    ratio: float  # images/s, median over paired runs
    pixels: PixelCheck
    runs: tuple[BenchRun, ...]
    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineResult:
    """`feedrate bench machine`, to be shared: it names no node, user or folder, but what stores are called.

    Attributes:
        numbers: as they are kept of the node, without its name, and with stores by name.
        left_out: what was not measured, and why.
        busy: what other processes took of the cores meanwhile, where it was much: the numbers are not kept.
    """

    numbers: MachineNumbers
    is_quick: bool
    left_out: Mapping[str, str]
    took_s: float
    busy: str = ""
