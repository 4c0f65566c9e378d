# SPDX-License-Identifier: Apache-2.0
"""Measure one loader from inside its own process: rate, waiting, CPU time of the whole tree, first batch.

The loader that everybody starts with: image files, Pillow, and torch's DataLoader with worker processes.

Written as torchvision's ImageFolder and RandomResizedCrop do it, without torchvision and its detours:
crop and resize in Pillow, one array per image, uint8 to the end.

The two contestants, one fresh process each: files through torch's DataLoader, a pack through feedrate.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

import numpy as np
from PIL import Image

from feedrate.errors import MissingExtra, need
from feedrate.kernel import I64
from feedrate.source.folders import find_images

if TYPE_CHECKING:
    import torch

Batch = TypeVar("Batch", covariant=True)
Clock = Callable[[], float]


class Feed(Protocol[Batch]):
    """What gives batches: one iterator per epoch."""

    def epoch(self, number: int) -> Iterator[Batch]: ...


class Readings(TypedDict):
    """What a worker process sends back; see `results.BenchRun` for the meaning."""

    images: list[int]
    seconds: list[float]
    wait_s: float
    cpu_s: float
    first_batch_s: float
    accuracy: float | None


def measure(
    make_feed: Callable[[], Feed[Batch]],
    consume: Callable[[Batch], int],
    *,
    epochs: int,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> Readings:
    """Run one discarded and `epochs` timed epochs; `consume` takes a batch and returns its number of images.

    Epochs run back to back and an epoch's time is the distance between two epoch ends: a loader that fetches
    ahead over the boundary gains nothing, one that starts anew every epoch pays for it.
    """
    cpu_clock = cpu_clock or measure_tree_cpu
    made_at = clock()
    feed = make_feed()
    first_batch_s = wait_s = cpu_before = ended = 0.0
    images: list[int] = []
    seconds: list[float] = []
    for number in range(1 + epochs):
        count, waited = 0, 0.0
        batches = feed.epoch(number)
        while True:
            asked = clock()
            try:
                batch = next(batches)
            except StopIteration:
                break
            got = clock()
            waited += got - asked
            if number == 0 and count == 0:
                first_batch_s = got - made_at
            count += consume(batch)
        now = clock()
        if number == 0:
            # The discarded epoch ends here; asking for CPU time takes a moment, which belongs to nobody.
            cpu_before = cpu_clock()
            ended = clock()
            continue
        images.append(count)
        seconds.append(now - ended)
        wait_s += waited
        ended = now
    return Readings(
        images=images, seconds=seconds, wait_s=wait_s, cpu_s=cpu_clock() - cpu_before,
        first_batch_s=first_batch_s, accuracy=None,
    )  # fmt: skip


def measure_tree_cpu() -> float:
    """Return the CPU seconds of this process, of its live descendants, and of those that have ended."""
    psutil = need("psutil")

    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended just now: its parent counts it
        total += times.user + times.system + times.children_user + times.children_system
    return float(total)


SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


def list_images(root: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Return (path, label) of every image under `root`; the label is the number of its top folder."""
    top = Path(root)
    paths = find_images([top])
    classes = [Path(path).relative_to(top).parts[0] if Path(path).parent != top else "" for path in paths]
    numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
    return [(path, numbers[name]) for path, name in zip(paths, classes, strict=True)]


def draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a random crop: torchvision's rule, drawn from Python's `random`."""
    for _ in range(10):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


class ImageFiles:
    """A map-style dataset of (uint8 height x width x 3, label): cropped, resized and flipped at random."""

    def __init__(self, images: Sequence[tuple[str, int]], side: int) -> None:
        self.images = images
        self.side = side

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        import torch

        path, label = self.images[number]
        with open(path, "rb") as file:
            image: Image.Image = Image.open(file).convert("RGB")
        image = image.crop(draw_crop(*image.size)).resize((self.side, self.side), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)), label


class FileFeed:
    """Shuffled batches of (uint8 N x C x H x W, labels) from image files, `repeat` times each per epoch."""

    def __init__(
        self, root: str, *, batch_size: int, threads: int, side: int, seed: int, repeat: int = 1
    ) -> None:
        import torch

        self._loader: Any = torch.utils.data.DataLoader(
            ImageFiles(list_images(root) * repeat, side),  # type: ignore[arg-type, unused-ignore]
            batch_size=batch_size,
            shuffle=True,
            num_workers=threads,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(seed),
        )

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - the generator goes on
        for images, labels in self._loader:
            yield images.permute(0, 3, 1, 2), labels


FILES, PACK = "files", "pack"
NAMES = {FILES: "DataLoader + Pillow", PACK: "feedrate"}


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What both contestants are given alike."""

    batch_size: int
    threads: int
    side: int = 224
    seed: int = 0
    repeat: int = 1  # how often each image comes per epoch: small datasets make epochs too short to time


class PackFeed:
    """Shuffled batches of (uint8 N x C x H x W, labels) from a pack."""

    def __init__(self, pack: str, options: FeedOptions) -> None:
        import feedrate
        from feedrate.format.manifest import read_manifest

        manifest = read_manifest(pack)
        repeated = np.arange(manifest.samples * options.repeat) // options.repeat
        self._loader = feedrate.Loader(
            pack,
            batch_size=options.batch_size,
            shuffle=True,
            seed=options.seed,
            # A flat folder has no labels to load.
            fields=("image", "label") if manifest.field("label") else ("image",),
            image=feedrate.RandomResizedCrop(options.side),
            flip=True,
            threads=options.threads,
            # Alone, whatever the launcher: each process measures its own machine.
            rank=0,
            world_size=1,
            # A dataset that is large enough goes the way that a training takes.
            order=None if options.repeat == 1 else lambda epoch: _shuffled(repeated, options.seed, epoch),
        )

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - the loader counts itself
        return iter(self._loader)


def _shuffled(positions: I64, seed: int, epoch: int) -> I64:
    return np.random.default_rng((seed, epoch)).permutation(positions)


def make_feed(kind: str, path: str, options: FeedOptions) -> Feed[tuple[torch.Tensor, torch.Tensor]]:
    if kind == PACK:
        return PackFeed(path, options)
    return FileFeed(path, **asdict(options))


def drain(kind: str, path: str, epochs: int, options: dict[str, int]) -> Readings:
    """Take batches and do nothing with them: what the loader could give."""
    import torch  # noqa: F401 - importing it belongs to nobody's first batch

    feed = FeedOptions(**options)
    return measure(lambda: make_feed(kind, path, feed), lambda batch: len(batch[0]), epochs=epochs)


def require_torch(what: str) -> None:
    """Raises MissingExtra with the line to type when torch is not installed; does not import it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra(
            f"{what} needs torch, which is not installed", hint="pip install 'feedrate[torch]'"
        )
