# SPDX-License-Identifier: Apache-2.0
"""NVIDIA DALI on the CPU: files, a decoder that decodes only the crop, an antialiased resize, in threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types

from feedrate.lab.child import Readings
from peer_feeds.task import RATIO, SCALE, TRIES, Batch, Stream, Task, drain


@pipeline_def
def crops(files: list[str], labels: list[int], side: int) -> tuple[Any, Any]:
    data, label = fn.readers.file(
        files=files, labels=labels, random_shuffle=True, initial_fill=min(len(files), 4096), name="files"
    )
    image = fn.decoders.image_random_crop(
        data,
        device="cpu",
        output_type=types.RGB,
        random_area=list(SCALE),
        random_aspect_ratio=list(RATIO),
        num_attempts=TRIES,
    )
    image = fn.resize(image, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.flip(image, horizontal=fn.random.coin_flip(probability=0.5)), label


def batches(pipeline: Any) -> Iterator[Batch]:
    while True:
        images, labels = pipeline.run()
        yield images.as_array(), labels.as_array()


def run(task: dict[str, Any], epochs: int) -> Readings:
    asked = Task(**task)
    samples = asked.list_samples()

    def make() -> Stream:
        files, labels = map(list, zip(*samples, strict=True))
        # device_id=None: without a GPU.
        pipeline = crops(
            files, labels, asked.side, batch_size=asked.batch_size, num_threads=asked.threads, device_id=None
        )
        pipeline.build()
        return Stream(batches(pipeline), len(samples))

    return drain(make, epochs)
