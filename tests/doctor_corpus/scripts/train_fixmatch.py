# SPDX-License-Identifier: Apache-2.0
"""Semi-supervised training: a labelled and an unlabelled loader side by side."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

WEAK = [lambda im: ImageOps.mirror(im) if random.random() < 0.5 else im]
STRONG = [
    lambda im: im.rotate(random.uniform(-30, 30), resample=Image.BILINEAR),
    lambda im: im.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2))),
    lambda im: ImageOps.posterize(im, random.randint(4, 8)),
]


def apply(im, operations):
    for operation in operations:
        im = operation(im)
    return torch.from_numpy(np.array(im)).permute(2, 0, 1).float() / 127.5 - 1


class Views(Dataset):
    def __init__(self, paths, labelled):
        self.paths, self.labelled = paths, labelled

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        im = Image.open(self.paths[i]).convert("RGB").resize((160, 160), Image.BILINEAR)
        if self.labelled:
            return apply(im, WEAK), i % 4
        return apply(im, WEAK), apply(im, STRONG)


def forever(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=Path, required=True)
    ap.add_argument("--iterations", type=int, default=500)
    ap.add_argument("--workers", type=int, default=0, help="for each of the two loaders")
    args = ap.parse_args()
    torch.set_num_threads(1)
    paths = sorted(args.data.rglob("*.jpg"))
    some, rest = paths[: len(paths) // 4], paths[len(paths) // 4 :]

    def make(subset, labelled, size):
        dataset = Views(subset, labelled)
        return DataLoader(
            dataset,
            size,
            sampler=RandomSampler(dataset, replacement=True, num_samples=100_000),
            num_workers=args.workers,
        )

    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, nesterov=True, momentum=0.9)
    pairs = zip(forever(make(some, True, 2)), forever(make(rest, False, 6)), strict=False)
    for iteration, ((images, labels), (weak, strong)) in enumerate(pairs, 1):
        loss = nn.functional.cross_entropy(model(images), labels)
        with torch.no_grad():
            confidence, guess = model(weak).softmax(1).max(1)
        unlabelled = nn.functional.cross_entropy(model(strong), guess, reduction="none")
        loss = loss + (unlabelled * (confidence > 0.6)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 5 == 0:
            print(
                f"iter {iteration}: loss {loss.item():.3f}, kept {(confidence > 0.6).float().mean().item():.2f}"
            )
        if iteration == args.iterations:
            break


if __name__ == "__main__":
    main()
