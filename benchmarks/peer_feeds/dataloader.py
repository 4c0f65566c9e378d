# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader over files, decoded by simplejpeg and resized by OpenCV, in worker processes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from feedrate.lab.child import Readings
from peer_feeds.task import Epochs, Task, drain
from peer_feeds.turbo import decode_crop


class Files(Dataset[Any]):
    def __init__(self, task: Task) -> None:
        self.samples = task.list_samples()
        self.side = task.side

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[number]
        with open(path, "rb") as file:
            data = file.read()
        return torch.from_numpy(decode_crop(data, self.side)), label


def run(task: dict[str, Any], epochs: int) -> Readings:
    asked = Task(**task)

    def make() -> Epochs:
        return Epochs(
            DataLoader(
                Files(asked),
                batch_size=asked.batch_size,
                shuffle=True,
                num_workers=asked.threads,
                persistent_workers=True,
            )
        )

    return drain(make, epochs)
