# SPDX-License-Identifier: Apache-2.0
"""Two ways of feeding a training, to be compared: torch's DataLoader with Pillow, and feedrate.Loader.

The one of files is the loader that everybody starts with: Pillow and torch's DataLoader with worker
processes. It is written as torchvision's ImageFolder and RandomResizedCrop do it, without torchvision and its
detours: crop and resize in Pillow, one array per image, uint8 to the end.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from feedrate.draws import draw_crop
from feedrate.errors import MissingExtra, SourceError
from feedrate.format.fields import IMAGE_SUFFIXES, has_image_suffix
from feedrate.kernel import U8
from feedrate.lab.child import Readings, measure
from feedrate.source.folders import walk

if TYPE_CHECKING:
    import torch

FILES, PACK = "files", "pack"
NAMES = {FILES: "DataLoader + Pillow", PACK: "feedrate"}


def list_images(root: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Return (path, label) of every image under `root`, sorted; the label is the number of its top folder.

    Raises:
        NotFound: there is no such folder.
        SourceError: it holds no images.
    """
    readable = (file.path for file in walk(os.fspath(root)) if file.odd is None)
    paths = sorted(map(os.fsdecode, filter(has_image_suffix, readable)))
    if not paths:
        hint = f"feedrate looks for files ending in {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise SourceError(f"no images in {root}", hint=hint)
    classes = [path.partition("/")[0] if "/" in path else "" for path in paths]
    numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
    return [(os.path.join(root, path), numbers[name]) for path, name in zip(paths, classes, strict=True)]


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
            return torch.from_numpy(load_augmented(file, self.side)), label


def load_augmented(file: IO[bytes], side: int) -> U8:
    """Return what a worker of the plain loader makes of an image file: a random crop, resized, maybe flipped.

    Raises:
        Exception: whatever Pillow raises for a file that it does not decode.
    """
    image: Image.Image = Image.open(file).convert("RGB")
    image = image.crop(draw_crop(*image.size)).resize((side, side), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image)


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What both contestants are given alike.

    Attributes:
        repeat: how often each image comes per epoch: small datasets make epochs too short to time.
        device: where the training is; batches for a GPU come from memory that it can copy by itself, or are
            there already. None: nothing is trained.
    """

    batch_size: int
    threads: int
    side: int = 224
    seed: int = 0
    repeat: int = 1
    device: str | None = None

    @property
    def is_for_gpu(self) -> bool:
        return self.device is not None and self.device.startswith("cuda")


class FileFeed:
    """Shuffled batches of (uint8 N x C x H x W, labels) from image files."""

    def __init__(self, root: str, options: FeedOptions) -> None:
        import torch

        self._loader: Any = torch.utils.data.DataLoader(
            ImageFiles(list_images(root) * options.repeat, options.side),  # type: ignore[arg-type, unused-ignore]
            batch_size=options.batch_size,
            shuffle=True,
            num_workers=options.threads,
            persistent_workers=True,
            pin_memory=options.is_for_gpu,
            generator=torch.Generator().manual_seed(options.seed),
        )

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - the generator goes on
        for images, labels in self._loader:
            yield images.permute(0, 3, 1, 2), labels

    def close(self) -> None:
        self._loader = None  # workers end with the last reference


class PackFeed:
    """Shuffled batches of (uint8 N x C x H x W, labels) from a pack; `loader` tells what it did."""

    def __init__(self, pack: str, options: FeedOptions) -> None:
        import feedrate
        from feedrate.format.manifest import read_manifest

        manifest = read_manifest(pack)
        repeated = np.arange(manifest.samples * options.repeat) // options.repeat
        self.loader = feedrate.Loader(
            pack,
            split="all",
            batch_size=options.batch_size,
            shuffle=True,
            seed=options.seed,
            # A flat folder has no labels to load.
            fields=("image", "label") if manifest.field("label") else ("image",),
            image=feedrate.RandomResizedCrop(options.side),
            flip=True,
            depth="clip",  # as Pillow beside it
            threads=options.threads,
            device=options.device if options.is_for_gpu else None,
            # Alone, whatever the launcher: each process measures its own machine.
            rank=0,
            world_size=1,
            # A dataset that is large enough goes the way that a training takes.
            order=None
            if options.repeat == 1
            else lambda epoch: np.random.default_rng((options.seed, epoch)).permutation(repeated),
        )

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - the loader counts itself
        return iter(self.loader)

    def close(self) -> None:
        self.loader.close()


def make_feed(kind: str, path: str, options: FeedOptions) -> FileFeed | PackFeed:
    return PackFeed(path, options) if kind == PACK else FileFeed(path, options)


def drain(kind: str, path: str, epochs: int, options: dict[str, Any]) -> Readings:
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
