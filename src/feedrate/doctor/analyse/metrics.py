# SPDX-License-Identifier: Apache-2.0
"""All that was measured of one run, as numbers: what findings are judged by and the report shows.

`Measured` has a part for each thing that is looked at: the steps (`loop`), the loader, its samples, the
training process, the experiments, the machine, and what was tried when the run was over. What takes several
of them is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from feedrate.doctor.analyse.data_folders import LoaderFacts, Place
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.records import Fact
from feedrate.doctor.analyse.sample import (
    PACK_LOADER,
    ChunkedArray,
    Cost,
    IdleWorkers,
    PackStages,
    SampleCost,
    Start,
    Views,
    add_up,
)
from feedrate.doctor.analyse.stacks import Looks
from feedrate.doctor.analyse.timeline import Loop, measure_overhead
from feedrate.loader.results import LoaderTrial
from feedrate.model.pipeline import Pipeline
from feedrate.stats import spread

# What our decoder does on the way; a pack's Loader needs none of these in Python.
DONE_BY_DECODER = (
    "PIL.resize", "PIL.crop+resize", "PIL.crop", "PIL.convert", "PIL.transpose", "PIL.thumbnail",
    "PIL.tobytes", "cv2.resize", "cv2.cvtColor", "cv2.flip", "RandomResizedCrop", "Resize", "CenterCrop",
    "RandomCrop", "RandomHorizontalFlip", "ToTensor", "PILToTensor", "ToImage", "ToDtype",
    # timm's and albumentations'
    "RandomResizedCropAndInterpolation", "MaybeToTensor", "MaybePILToTensor", "ToNumpy", "SmallestMaxSize",
    "HorizontalFlip", "ToTensorV2",
)  # fmt: skip
_MOST_SLOWDOWN = 1.3  # what is more is not the machine's


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per batch: the mean, and the quartiles."""

    seconds: float
    low: float
    high: float
    batches: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Timing | None:
        if len(values) < 2:
            return None
        low, high = spread(values)
        return cls(mean(values), low, high, len(values))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Our decoder on the user's own files.

    Attributes:
        cpu_s_per_image: on those that it takes.
        taken_share: of the time that the user's decoder spends, what those cost; the rest stays as it is.
        others: what the rest are, in words.
        stored_cpu_s, stored_by: what one of the rest would take once `pack` stored it with these options.
        is_lossless: that changes no pixel.
        deep: so many are gray of more than 8 bits.
    """

    cpu_s_per_image: float
    taken: int
    tried: int
    taken_share: float = 1.0
    others: str = ""
    stored_cpu_s: float = 0.0
    stored_by: str = ""
    is_lossless: bool = False
    deep: int = 0

    @property
    def left(self) -> int:
        """Return how many files it would hand to Pillow."""
        return self.tried - self.taken

    @property
    def left_words(self) -> str:
        """Say what it does not take; empty: nothing."""
        of = "all" if not self.taken else f"{self.left} of {self.tried}"
        return f"{of} files are {self.others or 'of another kind'}" if self.left else ""


@dataclass(frozen=True)
class LoaderCall:
    """A call of feedrate.Loader.

    Attributes:
        options: its keyword arguments, as objects.
        code: the same as text to paste: imports, the call, the head of the loop; lines of at most 78 columns.
        left_out: a sentence for each thing that the script does and this call does not, or does otherwise.
        validation: the arguments of a second Loader, for validation; `validates`: the name of the script's
            loader that it takes the place of.
        packs: the places to pack and the packs' names; empty: the training's place, as PACK.
        dropped: names of libraries' operations that it has not.
        why_not: why this is no code for the script's samples; empty: it is.
        reads_others: because a pack of the place has other samples than the script's dataset.
    """

    options: Mapping[str, Any]
    code: str
    left_out: tuple[str, ...]
    validation: Mapping[str, Any] | None = None
    validates: str = ""
    packs: tuple[tuple[Place, str], ...] = ()
    dropped: tuple[str, ...] = ()
    why_not: str = ""
    reads_others: bool = False


@dataclass(frozen=True, slots=True)
class PackImages:
    """Some images of a pack, timed on this machine; seconds of CPU per image.

    Attributes:
        tried, left: how many were timed, and how many of them the kernel leaves to Pillow; `others` are these
            in words.
        decode_s: by the kernel, of those that it takes.
        pillow_s: of the rest; `stored_s`: of these once `pack --normalise` has stored them.
        is_lossless: that changes no pixel.
        decoded_bytes: of all samples of the pack, decoded whole.
        cached_share: of what a sample costs a Loader, what it costs one that has it in its cache; None: this
            could not be tried.
    """

    tried: int
    left: int
    decode_s: float
    pillow_s: float
    stored_s: float
    others: str
    is_lossless: bool
    decoded_bytes: float
    cached_share: float | None = None

    @property
    def now_s(self) -> float:
        return (self.decode_s * (self.tried - self.left) + self.pillow_s * self.left) / self.tried

    @property
    def normalised_s(self) -> float:
        return (self.decode_s * (self.tried - self.left) + self.stored_s * self.left) / self.tried


@dataclass(frozen=True, slots=True)
class Tried:
    """What was tried with the script's own files when the run was over; None: it was not."""

    kernel: KernelTime | None = None
    images: PackImages | None = None  # of the pack that a feedrate.Loader reads
    trial: LoaderTrial | None = None  # of image files, by what a feedrate.Loader does
    kept_s: float | None = None  # CPU time of taking a sample like these from feedrate.cached
    keeping_s: float | None = None  # and of storing it there, as the first epoch does
    call: LoaderCall | None = None  # what the DataLoader becomes, where its samples are image files


@dataclass(frozen=True, kw_only=True)
class UsedLoader(LoaderFacts):
    """The loader that feeds the training; `is_made_anew`: for every epoch; `views`: that matter."""

    is_made_anew: bool
    worker_facts: Sequence[Fact]
    idle: IdleWorkers
    views: Views | None

    @property
    def workers(self) -> int:
        return int(self.get("num_workers") or 0)

    @property
    def is_of_pack(self) -> bool:
        """Return whether it is a feedrate.Loader, which makes batches in threads beside the loop."""
        return bool(self.get("class") == PACK_LOADER)

    @property
    def framework(self) -> str:
        """Return the other framework that a feedrate.Loader feeds, TensorFlow or JAX; empty: it is torch."""
        return str(self.get("framework") or "")

    @property
    def reads_pack(self) -> bool:
        """Return whether samples come from a pack, by a feedrate.Loader or a feedrate.Dataset."""
        return bool(self.get("pack"))

    @property
    def threads(self) -> int:
        """Return the threads of a feedrate.Loader; 0: it is none."""
        return int(self.get("threads") or 1) if self.is_of_pack else 0

    @property
    def makers(self) -> int:
        """Return how many workers or threads make batches beside the training; 0: it makes them itself."""
        return max(self.workers - self.idle.count, 0) or self.threads

    @property
    def allowed_cores(self) -> set[int]:
        """Return the cores that workers may run on, all together; empty: unknown."""
        return set().union(*(fact.get("affinity") or () for fact in self.worker_facts))

    @property
    def handed_bytes(self) -> float:
        """Return what comes to the training process with a batch: of views, all that is under them."""
        return max(self.batch_bytes, self.views.copied_bytes if self.views is not None else 0.0)

    @property
    def is_batch_of_floats(self) -> bool:
        """Return whether most of a batch are numbers of four bytes or more that may be bytes."""
        tensors = self.batch.get("tensors") or ()
        floats = sum(int(t.get("bytes") or 0) for t in tensors if "float" in str(t.get("dtype")))
        return floats > 0.5 * self.batch_bytes


@dataclass(frozen=True, slots=True)
class Samples:
    """What samples cost, and where; *_cpu_s are seconds per batch, all else is of one sample.

    Attributes:
        per_batch: how many samples are in a batch.
        cost, again: of one sample; of the same samples, taken again.
        stages: of a feedrate.Loader.
        looks: at the stacks while samples were made.
        receive_cpu_s: of the training thread inside next().
        feeder_cpu_s: of the thread that pickles batches in a worker.
        helpers_cpu_s: of the workers' further threads (BLAS, OpenMP).
        start: before the first step.
        chunked: the array of HDF5 that most of a sample is read from; None: none was seen.
    """

    per_batch: float
    cost: SampleCost
    again: SampleCost
    stages: PackStages | None
    looks: Looks
    receive_cpu_s: float
    feeder_cpu_s: float
    helpers_cpu_s: float
    start: Start | None
    chunked: ChunkedArray | None = None

    @property
    def helpers_s(self) -> float:
        """Return what the workers' further threads spend on one sample."""
        return self.helpers_cpu_s / max(self.per_batch, 1e-9)

    @property
    def decoding(self) -> Cost:
        """Return what decoding takes, with the cropping and resizing that our decoder does too."""
        decode, geometry = self._of("decode"), self._geometry
        return decode.plus(geometry) if self._is_decoded_first else decode

    @property
    def transforming(self) -> Cost:
        """Return what the dataset's own code costs besides reading, decoding and collating."""
        own = self._of("transform", "rest").plus(Cost(self.helpers_s, 0.0, 0.0))
        return own.minus(self._geometry) if self._is_decoded_first else own

    @property
    def read_blocked_s(self) -> float:
        """Return the waiting for storage: of reads, decoders, and the rest where it reads."""
        reads = ("rest", "transform") if self.cost.read_bytes > 0 else ()
        return self._of("read", "decode").blocked_s + self._of(*reads).blocked_s

    @property
    def queue_share(self) -> float:
        """Return how much of a sample's time is spent ready to run, without a core."""
        return self.cost.total.queue_s / max(self.cost.total.wall_s, 1e-9)

    @property
    def are_cropped(self) -> bool:
        """Return whether samples are seen to be cropped."""
        return any("crop" in name.lower() for _, name in self.cost.parts)

    @property
    def _geometry(self) -> Cost:
        parts = self.cost.parts.items()
        return add_up(cost for (kind, name), cost in parts if kind == "transform" and name in DONE_BY_DECODER)

    @property
    def _is_decoded_first(self) -> bool:
        # Where there is little to decode, a resize is a transform like any other.
        return self._of("decode").cpu_s > 0.5 * self._geometry.cpu_s

    def _of(self, *kinds: str) -> Cost:
        return add_up(self.cost.kind(kind) for kind in kinds)


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """The process that trains: what it runs, and what it does besides waiting.

    Attributes:
        looks: at its stack outside of waits; `looks_loop`: those at what was not timed by itself.
        queue_share: of forward, backward and optimizer: the thread was ready, and no core was free.
        before_forward_s: device time from a batch's arrival to the forward pass, per step.
        forward_s, computing_s: device time of the forward pass, and from there to the end of the step.
    """

    module: Fact
    torch: Fact
    autocast: Fact
    copy_rates: Fact
    end: Fact
    looks: Looks
    looks_loop: Looks
    queue_share: float
    before_forward_s: float
    forward_s: float
    computing_s: float

    @property
    def is_on_gpu(self) -> bool:
        return str(self.module.get("device", "cpu")).startswith("cuda")


@dataclass(frozen=True, slots=True)
class Experiments:
    """What was tried in the run itself. Timings are None when the experiment was not made.

    Attributes:
        device: the training on batches in memory; `as_loaded`: laid out as a feedrate.Loader has them.
        drain, again: the loader without training, and the same batches once more.
        trials: the training with other numbers of workers, by these.
        is_repeatable: the same samples gave the same batch twice.
        no_room: the experiments were due, and the epoch was too short for them.
        waits: of each phase, the start, wait and end of each batch, in nanoseconds.
    """

    device: Timing | None
    as_loaded: Timing | None
    drain: Timing | None
    again: Timing | None
    trials: Mapping[int, Timing]
    half_precision: Timing | None
    half_precision_type: str
    channels_last: Timing | None
    is_repeatable: bool | None
    phases: Sequence[Fact]
    skipped: Sequence[Fact]
    blocked: Sequence[Fact]
    no_room: Fact
    waits: Mapping[int, Sequence[tuple[int, int, int]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run; `loops` are those of all ranks, `loop` the first one's."""

    loop: Loop
    loops: Mapping[int, Loop]
    loader: UsedLoader
    samples: Samples
    training: TrainingProcess
    experiments: Experiments
    machine: MachineSummary
    tried: Tried

    @property
    def slowed_share(self) -> float:
        """Return how much of the time computing takes longer because samples are made on the same cores."""
        if self.training.is_on_gpu or self.loader.makers == 0:
            return 0.0
        return max(self.loop.own_s - self.loop.exposed_s - self.device_s, 0.0) / self.loop.step_s

    @property
    def device_s(self) -> float:
        """Return what a step takes when its batch is already there."""
        return self._replayed_s(self.experiments.device)

    @property
    def as_loaded_s(self) -> float:
        """Return the same on a batch that is in memory as a feedrate.Loader's, as far as that was tried.

        Convolutions take their images channels-last, or planar: that changes what they cost.
        """
        return self._replayed_s(self.experiments.as_loaded or self.experiments.device)

    def _replayed_s(self, replay: Timing | None) -> float:
        besides_waiting = max(self.loop.own_s - self.loop.exposed_s, 1e-6)
        if replay is None:
            return besides_waiting
        # A replay that took longer than the real steps was disturbed.
        return min(replay.seconds * self.slowdown, besides_waiting)

    @property
    def slowdown(self) -> float:
        """Return how many times as slow as in the experiments the machine was in the real steps.

        By the run as it is, tried once more. On a GPU, or with much between the steps, or where samples wait
        for storage that may have come into memory since, that tells something else.
        """
        again, cost = self.experiments.trials.get(self.loader.workers), self.samples.cost.total
        if again is None or self.training.is_on_gpu or self.loop.between_s > 0.05 * self.loop.step_s:
            return 1.0
        if cost.blocked_s > 0.1 * cost.wall_s:
            return 1.0
        return min(max(self.loop.own_s / again.seconds, 1 / _MOST_SLOWDOWN), _MOST_SLOWDOWN)

    @property
    def device_cpu_s(self) -> float:
        """Return the training process's CPU time in one step, all its threads."""
        if self.machine.device_cpu_share is not None:
            return self.device_s * self.machine.device_cpu_share
        if self.training.is_on_gpu:
            return self.device_s
        return self.device_s * min(float(self.training.torch.get("threads") or 1), self.machine.cores)

    @property
    def each_worker(self) -> float:
        """Return what one more worker in every loader counts: the one with the most to do sets the pace."""
        return 1.0 / self.loop.heaviest

    @property
    def most_workers(self) -> int:
        """Return how many workers a loader may have, so that there is a core for each."""
        return max(int(self.machine.cores) // len(self.loop.loaders), 1)

    @property
    def watching_s(self) -> float:
        """Return what the doctor's own probes take of a step, where that can be seen."""
        found = measure_overhead(self.loop)
        steps = 0 if found is None else found.probed_steps + found.unprobed_steps
        return 0.0 if found is None else found.seconds_per_step * found.probed_steps / steps

    @property
    def drained_s(self) -> float:
        """Return what the loader took for a batch when nobody trained; 0: unknown, or one of several."""
        if self.experiments.drain is None or self.loader.makers == 0 or len(self.loop.loaders) > 1:
            return 0.0
        # A loader that is slower alone than in the loop was disturbed.
        return min(self.experiments.drain.seconds * self.slowdown, self.loop.own_s)

    @property
    def unseen_s(self) -> float:
        """Return what a drained batch takes beyond its making: pipes, locks, pinning."""
        cost, n = self.samples.cost, self.loop.samples_per_step
        if not (cost.samples and self.loader.workers):
            return 0.0
        beside = self.samples.feeder_cpu_s + self.samples.helpers_cpu_s
        # A worker that waits for a core, because others have them all, is still making its batch.
        made = max(
            (cost.total.wall_s * n + beside) / max(self.loader.makers, 1),
            (cost.total.cpu_s * n + beside) / self._free_cores,
            self.samples.receive_cpu_s,
        )
        # Less is how batches vary.
        return self.drained_s - made if self.drained_s > 1.5 * made else 0.0

    @property
    def _free_cores(self) -> float:
        return max(self.machine.cores - self.machine.cores_others, 0.5)

    @property
    def pipeline(self) -> Pipeline:
        """Return the run in the cost model's terms."""
        sample, per_batch, cpu = self.samples.cost, self.loop.samples_per_step, 0.0
        if sample.samples:
            cpu = sample.total.cpu_s * per_batch + self.samples.feeder_cpu_s + self.samples.helpers_cpu_s
            blocked = sample.total.blocked_s * per_batch
        else:
            blocked = self.loop.wait_s * max(self.loader.makers, 1)
        received = 0.0 if self.loader.makers == 0 else self.samples.receive_cpu_s + self.unseen_s
        # Steps on batches that were there are shorter than real ones, even without their waiting: the rest
        # comes with the making of batches, and goes with it; what watching costs is neither.
        slower = self.loop.own_s - self.loop.exposed_s - self.device_s - received - self.watching_s
        return Pipeline(
            device_s=self.device_s,
            device_cpu_s=self.device_cpu_s,
            fetch_cpu_s=cpu,
            fetch_blocked_s=blocked,
            handover_s=received,
            drag=max(slower, 0.0) / cpu if self.loader.makers and cpu > 0 else 0.0,
            workers=self.loader.makers * self.each_worker,
            cores=self._free_cores,
            between_s=self.loop.between_s,
            loader_s=self.drained_s,
        )
