# SPDX-License-Identifier: Apache-2.0
"""What `bench loader`, `bench kernel`, `bench machine`, `speedtest` and `demo` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.figures import Figure
from feedrate.lab.device import ModelRate
from feedrate.loader.results import PixelCheck
from feedrate.machine.results import Machine, MachineNumbers
from feedrate.progress import Rejection


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
class KernelStage:
    """A step of decoding: CPU time per image, and what exactly was timed."""

    name: str
    cpu_s_per_image: float
    what: str


@dataclass(frozen=True, slots=True)
class KernelStanding:
    """One decoder on one thread.

    Attributes:
        images_per_cpu_s: median over the rounds; `slow` and `fast` are quartiles.
        ratio: feedrate's images per CPU second over this one's, median over paired rounds.
        mean_psnr_db: against Pillow, over images that differ; None: every pixel is equal.
        cpu_s: of each round, all images once.
    """

    contestant: str
    images_per_cpu_s: float
    slow_images_per_cpu_s: float
    fast_images_per_cpu_s: float
    ratio: float
    mean_psnr_db: float | None
    lowest_psnr_db: float | None
    cpu_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One set of images. `left_out`: decoders that did not run, and why."""

    name: str
    images: int
    mean_megapixels: float
    mean_bytes: float
    by_pillow: Mapping[str, int]
    standings: tuple[KernelStanding, ...]
    stages: tuple[KernelStage, ...]
    left_out: Mapping[str, str]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class KernelResult:
    """`feedrate bench kernel`."""

    image_side: int
    rounds: int
    sets: tuple[KernelSet, ...]
    machine: Machine
    interpolation: str = "bilinear"


@dataclass(frozen=True, slots=True)
class Subset:
    """Some images of a dataset that were copied, and how fast they could be read where they are.

    Attributes:
        labels: how many different ones; 0: there are none.
        listed: images of the dataset that were listed, of which these were drawn.
        is_whole_listing: those are all; else the time for listing was over.
        readers: threads that read at once.
        read_images_per_s: of all readers together, without writing; None: the images were made here.
        cached_share: of the files that hold them, in the page cache before; None: unknown.
    """

    images: int
    labels: int
    size_bytes: int
    listed: int
    is_whole_listing: bool = True
    readers: int = 1
    read_images_per_s: float | None = None
    cached_share: float | None = None


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """One loader training for a while.

    Attributes:
        seconds: of the timed steps; what the device did and what it waited adds up to them.
        wait_s: the device had nothing to do: the batch was not there.
        copy_s: of batches to the device, as far as the training waits for it.
        cpu_s: of the process and the loader's workers.
        utilisation, power_w: of the GPU, means; None: there is none, or it does not tell.
    """

    contestant: str
    round: int
    steps: int
    images: int
    seconds: float
    wait_s: float
    copy_s: float
    compute_s: float
    cpu_s: float
    utilisation: float | None
    power_w: float | None

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds


@dataclass(frozen=True, slots=True)
class SpeedStanding:
    """The runs of one loader together.

    Attributes:
        low_images_per_s, high_images_per_s: of its runs.
        alone_images_per_s: what it gives when nobody trains.
        alone_cpu_s_per_image: CPU time for that.
        wait_share, copy_share, compute_share: of the time of a step.
        loading: stages of loading, and their shares of its time.
        by_gpu_share: of the images, decoded on the GPU.
        limit: what a step waits for most, by the cost model: disk, cpu, copy or device.
        limits_images_per_s: how many images per second each part would allow if it were alone.
    """

    contestant: str
    images: int
    images_per_s: float
    low_images_per_s: float
    high_images_per_s: float
    alone_images_per_s: float
    alone_cpu_s_per_image: float
    wait_share: float
    copy_share: float
    compute_share: float
    cpu_s: float
    device_s: float
    utilisation: float | None
    power_w: float | None
    loading: Mapping[str, float]
    by_gpu_share: float
    limit: str
    limits_images_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SpeedtestResult:
    """`feedrate speedtest`: `after` is feedrate, `before` the loader that everybody starts with.

    Attributes:
        source: as the user named it; None: images that were made.
        device: its name; `device_kind` is cpu or cuda.
        device_alone: what the device takes of batches that are on it already.
        copy_s: one batch to the device, alone.
        ratio: images/s trained, median over paired runs.
        verdict: the limit in one sentence; `advice`: what to do, `next_command`: what to type for it.
        notes: what else the user should know.
        seconds: that all of it took.
    """

    source: str | None
    subset: Subset
    model: str
    device: str
    device_kind: str
    dtype: str
    batch_size: int
    image_side: int
    workers: int
    device_alone: ModelRate
    copy_s: float
    before: SpeedStanding
    after: SpeedStanding
    ratio: float
    runs: tuple[SpeedRun, ...]
    verdict: str
    advice: str
    next_command: str
    notes: tuple[str, ...]
    seconds: float
    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineResult:
    """`feedrate bench machine`, to be shared: it names no node, user or folder, but what stores are called.

    Attributes:
        numbers: as they are kept of the node, without its name, and with stores by name.
        decode_all_images_per_s: what all usable cores decode together.
        pageable_bytes_per_s: to the GPU from memory that is not pinned.
        left_out: what was not measured, and why.
        busy: what other processes took of the cores meanwhile, where it was much: the numbers are not kept.
    """

    numbers: MachineNumbers
    decode_all_images_per_s: Figure
    pageable_bytes_per_s: Figure | None
    is_quick: bool
    left_out: Mapping[str, str]
    took_s: float
    busy: str = ""
