# SPDX-License-Identifier: Apache-2.0
"""Train a small network on one of the two feeds: what a fresh process of the demo runs.

The network is real and small: forward, backward and SGD cost far less than decoding an image does, as on a
GPU. So what is compared is the feeding, and the accuracy proves that the batches are good.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from feedrate.bench.feeds import FeedOptions, make_feed
from feedrate.bench.files import list_images
from feedrate.bench.meter import Readings, measure

if TYPE_CHECKING:
    import torch


def train(kind: str, path: str, images: int, held_out: str, epochs: int, options: dict[str, int]) -> Readings:
    """Train for 1 + `epochs` epochs on `images` images, the first untimed; then judge on held-out ones."""
    import torch

    from feedrate.demo.network import Trainer

    feed = FeedOptions(**options)
    # Both runs begin with the same weights.
    random.seed(feed.seed)
    torch.manual_seed(feed.seed)
    torch.set_num_threads(1)  # the network is too small for more to pay, and the cores are busy decoding
    trainer = Trainer(total_steps=(1 + epochs) * math.ceil(images / feed.batch_size))
    readings = measure(lambda: make_feed(kind, path, feed), trainer.step, epochs=epochs)
    readings["accuracy"] = trainer.judge(*load_whole(held_out, feed.side))
    return readings


def load_whole(root: str, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the middle squares of all images under `root`, and labels; by Pillow, one judge for both."""
    import torch

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
