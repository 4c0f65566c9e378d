# SPDX-License-Identifier: Apache-2.0
"""Super-resolution: a network learns to enlarge photographs, from random 96-pixel parts of large pictures.

    python examples/super_resolution.py PHOTOS --feed plain | dictionary | cached | loader

A part is tiny, and to get it, Pillow decodes a whole picture. Decoded pictures do not fit into memory, and a
dictionary of them ends with the job being killed. `cached` keeps as many as there is room for, and `loader`
decodes only what it needs. benchmarks/super_resolution.py runs all four under a memory limit and plots it.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import feedrate

SIDE, TIMES, BATCH = 96, 4, 16


class Photos(Dataset):
    """Whole pictures: H x W x 3 bytes. What is random comes later, so this part is worth keeping."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return np.asarray(Image.open(self.files[index]).convert("RGB"))


class Pairs(Dataset):
    """A part of each picture, in high and in low resolution."""

    def __init__(self, photos):
        self.photos = photos

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        return cut_pair(self.photos[index])


class InDictionary(Dataset):
    """The cache that everybody writes first: it grows until the job is killed, in each worker on its own."""

    def __init__(self, photos):
        self.photos, self.kept = photos, {}

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = self.photos[index]
        return self.kept[index]


def cut_pair(photo):
    height, width, _ = photo.shape
    top, left = random.randint(0, height - SIDE), random.randint(0, width - SIDE)
    part = Image.fromarray(photo[top : top + SIDE, left : left + SIDE])
    small = part.resize((SIDE // TIMES, SIDE // TIMES), Image.BILINEAR)
    return tuple(torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in (part, small))


def make_feed(kind, photos, pack, scratch, workers):
    """Return an iterable of batches: (high, low), uint8, N x 3 x H x W."""
    disk = f"{scratch}:100GB" if scratch else None
    if kind == "loader":
        return feedrate.Loader(
            pack,
            split="all",
            batch_size=BATCH,
            fields=("image", feedrate.View("image", size=SIDE // TIMES)),
            image=feedrate.RandomCrop(SIDE),
            cache=feedrate.Cache(ram="auto", disk=disk),
        )
    dataset = {
        "plain": lambda: Pairs(Photos(photos)),
        "dictionary": lambda: Pairs(InDictionary(Photos(photos))),
        "cached": lambda: feedrate.cached(Photos(photos), ram="auto", disk=disk).map(cut_pair),
    }[kind]()
    return DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=False
    )


def make_network():
    """A small one that enlarges by 4: three convolutions and a shuffle of pixels (ESPCN)."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv2d(24, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 3 * TIMES**2, 3, padding=1), nn.PixelShuffle(TIMES),
    )  # fmt: skip


def train(feed, epochs):
    """Yield (images per second, loss) of each epoch."""
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(epochs):
        began, images = time.perf_counter(), 0
        for high, low in feed:
            loss = nn.functional.l1_loss(network(low.float() / 255), high.float() / 255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            images += len(high)
        yield images / (time.perf_counter() - began), loss.item()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of JPEGs; for the loader also a pack of it")
    parser.add_argument("--feed", choices=("plain", "dictionary", "cached", "loader"), default="cached")
    parser.add_argument("--pack", help="made by 'feedrate pack PHOTOS PACK'; for --feed loader")
    parser.add_argument("--scratch", help="a folder on a local disk, for what memory has no room for")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args(argv)
    feed = make_feed(
        arguments.feed,
        arguments.photos,
        arguments.pack or arguments.photos,
        arguments.scratch,
        arguments.workers,
    )
    for epoch, (rate, loss) in enumerate(train(feed, arguments.epochs), start=1):
        print(f"epoch {epoch}: {rate:.1f} images/s, loss {loss:.4f}", flush=True)
    if arguments.feed == "cached":
        print(feed.dataset.report())
    elif arguments.feed == "loader":
        cache = feed.stats().cache
        print(f"{cache.cached_share:.0%} of the photographs kept, {cache.hit_rate:.0%} hits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
