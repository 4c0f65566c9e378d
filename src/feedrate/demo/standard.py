# SPDX-License-Identifier: Apache-2.0
"""The standard training that `feedrate speedtest` runs under the doctor: a script as people write it.

Files go through torch's DataLoader and Pillow, a pack through feedrate.Loader. It is started by its path and
trains without end: the doctor ends it.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # modules come from where feedrate is, not from the folder of this file
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from feedrate.format.manifest import is_pack, read_manifest
from feedrate.lab.device import Step, choose_device, make_model
from feedrate.lab.loader import FILES, PACK, FeedOptions, list_images, make_feed

GPU_SIZES, CPU_SIZES = (128, 224), (8, 64)  # of a batch, and the side of its images
_LONGEST = 70  # characters: workers make sockets below it, whose names have 108 at most
_LONG_EPOCH_IMAGES = 50_000  # as of a large dataset: workers that start anew would be what is measured


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("data", "--model", "--device", "--temporary"):
        parser.add_argument(name)
    for name in ("--batch-size", "--side", "--workers"):
        parser.add_argument(name, type=int)
    arguments = parser.parse_args()
    if len(arguments.temporary) <= _LONGEST:
        # What torch's compiler and workers that are killed leave behind goes away with this folder.
        tempfile.tempdir = arguments.temporary
    kind = PACK if is_pack(arguments.data) else FILES
    images = read_manifest(arguments.data).samples if kind == PACK else len(list_images(arguments.data))
    choice = choose_device(arguments.device)
    device = choice.device
    if choice.unused:
        logging.getLogger("feedrate").warning("%s", choice.unused)
    batch_size, side = GPU_SIZES if device.type == "cuda" else CPU_SIZES
    batch_size, side = arguments.batch_size or batch_size, arguments.side or side
    torch.backends.cudnn.benchmark = True
    feed = make_feed(kind, arguments.data, FeedOptions(
        batch_size, arguments.workers, side,
        repeat=math.ceil(_LONG_EPOCH_IMAGES / images), device=str(device),
    ))  # fmt: skip
    step = Step(make_model(arguments.model, side=side), device, training=True)
    for epoch in range(sys.maxsize):
        for pixels, labels in feed.epoch(epoch):
            step(pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True))


if __name__ == "__main__":
    main()
