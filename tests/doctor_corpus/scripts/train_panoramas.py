# SPDX-License-Identifier: Apache-2.0
"""Photographs from a wide lens: unwarped and smoothed when they are read, or once, kept by feedrate."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 128


def make_map(width, height):
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    bent = 1 + 0.2 * (x * x + y * y)
    columns = ((x / bent + 1) / 2 * (width - 1)).astype(np.intp)
    return ((y / bent + 1) / 2 * (height - 1)).astype(np.intp), columns


class Panoramas(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*/*.jpg"))
        self.places = make_map(500, 400)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB").filter(ImageFilter.GaussianBlur(2))
        pixels = np.asarray(image)[self.places]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), i % 4


def crop(sample):
    pixels, label = sample
    left, top = random.randrange(32), random.randrange(32)
    part = pixels[:, top : top + 96, left : left + 96].float()
    return (part * random.uniform(0.8, 1.2)).clamp(0, 255).byte(), label


class Cropped(Dataset):
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        return crop(self.source[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--cached", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Panoramas(args.root)
    if args.cached:
        import feedrate

        dataset = feedrate.cached(dataset)
        dataset = dataset.map(crop) if args.random else dataset
    elif args.random:
        dataset = Cropped(dataset)
    loader = DataLoader(
        dataset, 8, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)
    )
    opt = torch.optim.SGD(net.parameters(), 0.01)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(net(images / 255), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
