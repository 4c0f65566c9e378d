# SPDX-License-Identifier: Apache-2.0
"""FFCV: a .beton file of JPEGs, which it always encodes anew (quality 90), decoded and resized in threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from feedrate.lab.child import Readings
from peer_feeds.task import RATIO, SCALE, Batch, Task, drain


class Files:
    def __init__(self, task: Task) -> None:
        self.samples = task.list_samples()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        path, label = self.samples[number]
        with Image.open(path) as image:
            return image.convert("RGB"), label


def pack(task: dict[str, Any]) -> dict[str, Any]:
    asked = Task(**task)
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(asked.pack, fields, num_workers=asked.threads).from_indexed_dataset(Files(asked))
    return {}


class Beton:
    def __init__(self, task: Task) -> None:
        crop = RandomResizedCropRGBImageDecoder((task.side, task.side), scale=SCALE, ratio=RATIO)
        self._loader = Loader(
            task.pack,
            batch_size=task.batch_size,
            num_workers=task.threads,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={
                "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
                "label": [IntDecoder(), ToTensor(), Squeeze(1)],
            },
        )

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - the loader counts itself
        yield from self._loader


def run(task: dict[str, Any], epochs: int) -> Readings:
    return drain(lambda: Beton(Task(**task)), epochs)
