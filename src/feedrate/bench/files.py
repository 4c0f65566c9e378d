# SPDX-License-Identifier: Apache-2.0
"""The loader that everybody starts with: image files, Pillow, and torch's DataLoader with worker processes.

Written as torchvision's ImageFolder and RandomResizedCrop do it, without torchvision and its detours:
crop and resize in Pillow, one array per image, uint8 to the end.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from feedrate.format.folder import find_images

if TYPE_CHECKING:
    import torch

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
