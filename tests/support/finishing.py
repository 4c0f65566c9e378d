# SPDX-License-Identifier: Apache-2.0
"""Packs whose pixels are known to the last bit, and what a loader with operations makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feedrate import Loader
from feedrate.format.fields import Field, Kind
from support.packs import LABEL, encode_image, make_image, write_pack


def write_exact(folder: Path, pixels: list[np.ndarray]) -> Path:
    """Write images that come back as they are, with labels 0, 1, 2, 0 ..."""
    field = Field("image", Kind.IMAGE, shape=pixels[0].shape[:2])
    samples = [{"image": encode_image(one, "PNG"), "label": i % 3} for i, one in enumerate(pixels)]
    return write_pack(folder, (field, LABEL), samples)


def write_pictures(folder: Path, count: int = 12, width: int = 20, height: int = 16) -> Path:
    return write_exact(folder, [make_image(i, width, height) for i in range(count)])


def write_plain(folder: Path, values: list[int], side: int = 16) -> Path:
    """Write images of one gray value each."""
    return write_exact(folder, [np.full((side, side, 3), value, np.uint8) for value in values])


def load(pack: Path, *, batch_size: int = 5, epochs: int = 1, **options: Any) -> dict[int, tuple[Any, ...]]:
    """Return what came for each sample of the last epoch, as numpy arrays; images as H,W,C."""
    import torch

    options.setdefault("fields", ("image", "label"))
    fields = (*options.pop("fields"), "number")
    with Loader(pack, batch_size, fields=fields, **options) as loader:
        came: dict[int, tuple[Any, ...]] = {}
        for _ in range(epochs):
            came = {}
            for *values, numbers in loader:
                arrays = [
                    (v.permute(0, 2, 3, 1) if v.ndim == 4 else v).to(
                        torch.float32 if v.is_floating_point() else v.dtype
                    )
                    for v in values
                ]
                for i, number in enumerate(numbers.tolist()):
                    came[number] = tuple(array[i].numpy() for array in arrays)
        return came


def load_images(pack: Path, **options: Any) -> np.ndarray:
    """Return the images in the order of the pack, N,H,W,C."""
    came = load(pack, **options)
    return np.stack([came[number][0] for number in sorted(came)])
