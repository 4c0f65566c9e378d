# SPDX-License-Identifier: Apache-2.0
"""Thumbnails in class folders, one small file each."""

import argparse
import os
import random

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

EXTENSIONS = (".jpg", ".jpeg", ".png")


def pil_loader(path):
    with open(path, "rb") as f:
        return Image.open(f).convert("RGB")


class ImageFolder(Dataset):
    def __init__(self, root, transform, loader=pil_loader):
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
            if file.lower().endswith(EXTENSIONS)
        ]
        self.transform, self.loader = transform, loader

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        return self.transform(self.loader(path)), target


def random_crop(image):
    x, y = random.randint(0, 8), random.randint(0, 8)
    pixels = np.asarray(image.crop((x, y, x + 56, y + 56)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        ImageFolder(args.root, random_crop),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(net(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
