# SPDX-License-Identifier: Apache-2.0
"""litdata: chunks of the original JPEG bytes, StreamingDataLoader, decoded by simplejpeg and OpenCV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from feedrate.lab.child import Readings
from peer_feeds.task import Epochs, Task, drain
from peer_feeds.turbo import decode_crop


def read_sample(sample: tuple[str, int]) -> dict[str, Any]:
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


def pack(task: dict[str, Any]) -> dict[str, Any]:
    asked = Task(**task)
    optimize(
        fn=read_sample,
        inputs=asked.list_samples(),
        output_dir=asked.pack,
        chunk_bytes="64MB",
        num_workers=asked.threads,
    )
    return {}


class Chunks(StreamingDataset):
    def __init__(self, path: str, side: int) -> None:
        super().__init__(path, shuffle=True, drop_last=False)
        self.side = side

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return torch.from_numpy(decode_crop(sample["image"], self.side)), sample["label"]


def run(task: dict[str, Any], epochs: int) -> Readings:
    asked = Task(**task)

    def make() -> Epochs:
        return Epochs(
            StreamingDataLoader(
                Chunks(asked.pack, asked.side),
                batch_size=asked.batch_size,
                num_workers=asked.threads,
                persistent_workers=True,
            )
        )

    return drain(make, epochs)
