# SPDX-License-Identifier: Apache-2.0
"""The demo's network and one training step of it.

Train a small network on one of the two feeds: what a fresh process of the demo runs.

The network is real and small: forward, backward and SGD cost far less than decoding an image does, as on a
GPU. So what is compared is the feeding, and the accuracy proves that the batches are good.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from feedrate.lab.child import Readings, measure
from feedrate.lab.loader import FeedOptions, list_images, make_feed
from feedrate.lab.photographs import CLASSES

PEAK_LEARNING_RATE = 0.2


class Trainer:
    """A small convolutional network, trained by SGD; the learning rate rises once and falls once."""

    def __init__(self, total_steps: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = make_network().to(self.device)
        self._optimizer = torch.optim.SGD(
            self.network.parameters(), lr=PEAK_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=1e-3
        )
        self._total_steps = total_steps
        self._steps = 0

    def step(self, batch: tuple[Tensor, Tensor]) -> int:
        """Take one step and return its images. Waits for the device: else it hides the waiting for data."""
        images, labels = batch[0].to(self.device), batch[1].to(self.device)
        for group in self._optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * shape_of_rate(self._steps / self._total_steps)
        loss: Any = nn.functional.cross_entropy(self.network(shrink(images)), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._steps += 1
        return len(labels)

    def judge(self, images: Tensor, labels: Tensor) -> float:
        """Return the share of images that the network names rightly."""
        self.network.eval()
        with torch.no_grad():
            answers = self.network(shrink(images.to(self.device))).argmax(1).cpu()
        self.network.train()
        return float((answers == labels).float().mean())


def make_network(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=4, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, len(CLASSES)),
    )  # fmt: skip


def shrink(images: Tensor) -> Tensor:
    """Return every fourth pixel as a number around 0: a CPU core has time for no more beside the decoding."""
    return images[:, :, ::4, ::4].float() / 64 - 2


def shape_of_rate(progress: float) -> float:
    if progress < 0.3:
        return 0.04 + 0.96 * progress / 0.3
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - 0.3) / 0.7)))


def train(kind: str, path: str, images: int, held_out: str, epochs: int, options: dict[str, Any]) -> Readings:
    """Train for 1 + `epochs` epochs on `images` images, the first untimed; then judge on held-out ones."""
    feed = FeedOptions(**options)
    # Both runs begin with the same weights.
    random.seed(feed.seed)
    torch.manual_seed(feed.seed)
    torch.set_num_threads(1)  # the network is too small for more to pay, and the cores are busy decoding
    trainer = Trainer(total_steps=(1 + epochs) * math.ceil(images / feed.batch_size))
    readings = measure(lambda: make_feed(kind, path, feed), trainer.step, epochs=epochs)
    readings["accuracy"] = trainer.judge(*load_whole(held_out, feed.side))
    return readings


def load_whole(root: str, side: int) -> tuple[Tensor, Tensor]:
    """Return the middle squares of all images under `root`, and labels; by Pillow, one judge for both."""
    listed = list_images(root)
    pixels = np.empty((len(listed), side, side, 3), np.uint8)
    for number, (path, _) in enumerate(listed):
        with Image.open(path) as file:
            image = file.convert("RGB")
        width, height = image.size
        edge = min(width, height)
        left, top = (width - edge) // 2, (height - edge) // 2
        square = image.crop((left, top, left + edge, top + edge))
        pixels[number] = np.asarray(square.resize((side, side), Image.Resampling.BILINEAR))
    labels = torch.tensor([label for _, label in listed])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels
