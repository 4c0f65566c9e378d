# SPDX-License-Identifier: Apache-2.0
"""Two loaders that take turns in feeding one model: what each run of them takes, and who waits for whom.

Loaders stay alive between their turns; the batches that they made ahead meanwhile are not timed. Nobody waits
for a GPU before its turn is over: events in its stream say afterwards when it copied, computed, and waited.
"""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from feedrate.bench.loader import (
    FILES,
    NAMES,
    PACK,
    FeedOptions,
    FileFeed,
    ImageFiles,
    PackFeed,
    list_images,
    make_feed,
)
from feedrate.bench.results import SpeedRun
from feedrate.bench.rounds import Clock, measure_tree_cpu
from feedrate.lab.child import RunFailed
from feedrate.lab.device import Step, make_batch
from feedrate.machine.gpu import GpuReader
from feedrate.progress import Tick

if TYPE_CHECKING:
    import torch

    Batch = tuple[torch.Tensor, torch.Tensor]

ROUNDS = 2
ALONE = 0.1  # of the time that is left, for the device alone and for each loader alone
LEAST_TURN = 0.05  # of all the time
_UNTIMED = 0.25  # of a turn, at most
_LOOK_AT_GPU_EVERY_S = 0.2

Watch = Callable[[Tick], None]


class Budget:
    """The time that is left, and how the user is told about it."""

    def __init__(self, started: float, seconds: float, watch: Watch, clock: Clock) -> None:
        self.clock = clock
        self.seconds, self._started, self._watch = seconds, started, watch
        self._stage = ""

    @property
    def left(self) -> float:
        return max(self._started + self.seconds - self.clock(), 0.0)

    def begin(self, stage: str) -> None:
        self._stage = stage
        self.tell()

    def tell(self) -> None:
        done = min(self.clock() - self._started, self.seconds)
        self._watch(Tick(self._stage, int(done), int(self.seconds), unit="second"))


class Timed(NamedTuple):
    """Some timed steps; `began` and `ended` by the clock."""

    steps: int
    images: int
    cpu_s: float
    began: float
    ended: float


class Contest:
    """Both loaders, one model, and what was measured of them."""

    def __init__(self, files: str, pack: str, options: FeedOptions, step: Step) -> None:
        self.runs: list[SpeedRun] = []
        self._files, self._options, self._step = files, options, step
        self._paths = {FILES: files, PACK: pack}
        self.alone: dict[str, Timed] = {}
        self._feeds: dict[str, FileFeed | PackFeed] = {}
        self.stages: dict[str, Mapping[str, float]] = {FILES: {}, PACK: {}}
        self.by_gpu_share = 0.0
        self._marks: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        gc.collect()  # workers of a DataLoader end when nobody holds its iterator

    def run(self, budget: Budget, gpu: GpuWatch) -> None:
        budget.begin("timing the plain loader's stages")
        self.stages[FILES] = time_stages(self._files, self._options.side, budget.clock)
        alone_s = ALONE * budget.left
        try:
            for kind in self._paths:
                budget.begin(f"{NAMES[kind]} alone")
                self.alone[kind] = self._run_for(alone_s, self._open(kind), lambda _: None, budget)
                self._close()
            # Opened anew: feedrate's learns from the loop that it feeds how much to decode on the GPU.
            batches = {kind: self._open(kind) for kind in self._paths}
            for number in range(ROUNDS):
                for at, (kind, given) in enumerate(batches.items()):
                    budget.begin(f"training with {NAMES[kind]}, round {number + 1} of {ROUNDS}")
                    turns = 2 * (ROUNDS - number) - at
                    # A start that took long costs each turn some of its time, never all of it.
                    seconds = max(budget.left / turns, LEAST_TURN * budget.seconds)
                    self._train(kind, number, given, seconds, budget, gpu)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            hint = "is /dev/shm too small? df -h /dev/shm; fewer workers need less of it: --workers 2"
            raise RunFailed(f"a worker of the DataLoader was ended: {error}", hint=hint) from error
        self._note_stages()

    def _open(self, kind: str) -> Iterator[Batch]:
        self._feeds[kind] = feed = make_feed(kind, self._paths[kind], self._options)
        return self._give(feed)

    def _give(self, feed: FileFeed | PackFeed) -> Iterator[Batch]:
        """Give batches without end, all of one size: cuDNN would look for algorithms anew for another one."""
        epoch = 0
        while True:
            for batch in feed.epoch(epoch):
                if len(batch[0]) == self._options.batch_size:
                    yield batch
            epoch += 1

    def _run_for(
        self, seconds: float, batches: Iterator[Batch], consume: Callable[[Batch], None], budget: Budget
    ) -> Timed:
        clock, began, steps = budget.clock, budget.clock(), 0
        # Not timed: what was made ahead while nobody took it, and steps that find their algorithms.
        for _ in range(2 * self._options.threads):
            consume(next(batches))
            budget.tell()
            if clock() - began > _UNTIMED * seconds:
                break
        self._step.synchronize()
        cpu_before, timed_from = measure_tree_cpu(), clock()
        self._marks = []
        while steps < 2 or clock() - began < seconds:
            consume(next(batches))
            steps += 1
            budget.tell()
        self._step.synchronize()
        ended = clock()
        images = steps * self._options.batch_size
        return Timed(steps, images, measure_tree_cpu() - cpu_before, timed_from, ended)

    def _train(
        self,
        kind: str,
        number: int,
        batches: Iterator[Batch],
        seconds: float,
        budget: Budget,
        gpu: GpuWatch,
    ) -> None:
        timed = self._run_for(seconds, batches, self._train_on, budget)
        copy_s = sum(self._between(began, copied) for began, copied, _ in self._marks)
        compute_s = sum(self._between(copied, done) for _, copied, done in self._marks)
        utilisation, power_w = gpu.read_mean(timed.began, timed.ended)
        whole_s = timed.ended - timed.began
        self.runs.append(
            SpeedRun(
                contestant=NAMES[kind],
                round=number,
                steps=timed.steps,
                images=timed.images,
                seconds=whole_s,
                wait_s=max(whole_s - copy_s - compute_s, 0.0),
                copy_s=copy_s,
                compute_s=compute_s,
                cpu_s=timed.cpu_s,
                utilisation=utilisation,
                power_w=power_w,
            )
        )

    def _train_on(self, batch: Batch) -> None:
        # Nobody waits for the device here, as no training should: marks are read when all is done.
        began = self._mark()
        images, labels = (tensor.to(self._step.device, non_blocking=True) for tensor in batch)
        copied = self._mark()
        self._step(images, labels)
        self._marks.append((began, copied, self._mark()))

    def _mark(self) -> Any:
        if self._step.device.type != "cuda":
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first: Any, second: Any) -> float:
        return float(second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3)

    def measure_copy(self, copies: int = 10) -> float:
        """Return how long one batch takes to the device when nothing else is done; 0 where it stays."""
        if self._step.device.type != "cuda":
            return 0.0
        import torch

        images, _ = make_batch(torch.device("cpu"), self._options.batch_size, self._options.side)
        images = images.pin_memory()
        images.to(self._step.device)
        began = self._mark()
        for _ in range(copies):
            images.to(self._step.device, non_blocking=True)
        ended = self._mark()
        self._step.synchronize()
        return self._between(began, ended) / copies

    def _note_stages(self) -> None:
        feed = self._feeds[PACK]
        assert isinstance(feed, PackFeed)
        stats = feed.loader.stats()
        total_s = sum(stage.busy_s for stage in stats.stages) or 1.0
        shares = {stage.name: stage.busy_s / total_s for stage in stats.stages if stage.busy_s}
        self.stages[PACK] = {name: share for name, share in shares.items() if share >= 0.01}
        self.by_gpu_share = stats.by_gpu / max(stats.samples, 1)


def time_stages(
    files: str, side: int, clock: Clock = time.perf_counter, most_images: int = 64
) -> dict[str, float]:
    """Return the shares of reading, decoding and the rest in what a worker of the plain loader does.

    All files are read once before: into the page cache, from which both loaders read them then.
    """
    from PIL import Image

    images = list_images(files)
    for path, _ in images:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    dataset, sums = ImageFiles(images, side), [0.0, 0.0, 0.0]
    for path, _ in images[:: -(-len(images) // most_images)]:
        marks = [clock()]
        with open(path, "rb") as file:
            data = file.read()
        marks.append(clock())
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        marks.append(clock())
        dataset.augment(picture)
        marks.append(clock())
        sums = [total + b - a for total, a, b in zip(sums, marks, marks[1:], strict=False)]
    whole = sum(sums) or 1.0
    return dict(zip(("read", "decode", "crop, resize, flip"), (one / whole for one in sums), strict=True))


class GpuWatch(threading.Thread):
    """Reads utilisation and power of the GPU beside the training, in a thread; of a CPU there is nothing."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(daemon=True, name="feedrate-gpu-watch")
        self._device, self._halt = device, threading.Event()
        self._seen: list[tuple[float, float | None, float | None]] = []

    def __enter__(self) -> GpuWatch:
        if self._device.type == "cuda":
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._halt.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        import torch

        # Which of the driver's GPUs it is: CUDA_VISIBLE_DEVICES numbers them anew.
        uuid = str(getattr(torch.cuda.get_device_properties(self._device), "uuid", "")) or None
        with GpuReader() as reader:
            index = next(
                (gpu.index for gpu in reader.read() if uuid and gpu.uuid.endswith(uuid)),
                self._device.index or 0,
            )
            while index < len(reader) and not self._halt.wait(_LOOK_AT_GPU_EVERY_S):
                gpu = reader.read()[index]
                self._seen.append((time.perf_counter(), gpu.utilisation, gpu.power_w))

    def read_mean(self, began: float, ended: float) -> tuple[float | None, float | None]:
        seen = [one for one in self._seen if began <= one[0] <= ended]
        return mean([one[1] for one in seen]), mean([one[2] for one in seen])


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
