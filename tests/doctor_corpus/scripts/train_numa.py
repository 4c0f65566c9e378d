# SPDX-License-Identifier: Apache-2.0
"""Training with workers that are kept near their memory (eight workers per NUMA node)."""

import argparse
import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

CORES = sorted(os.sched_getaffinity(0))


def stay_near_memory(worker_id):
    node = worker_id // 8
    os.sched_setaffinity(0, {CORES[node % len(CORES)]})


class PhotoDataset(Dataset):
    def __init__(self, root):
        self.blobs = [path.read_bytes() for path in sorted(Path(root).rglob("*.jpg"))]

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, k):
        photo = Image.open(io.BytesIO(self.blobs[k])).convert("RGB")
        photo = photo.filter(ImageFilter.MedianFilter(3)) if torch.rand(()) < 0.2 else photo
        photo = photo.resize((112, 112))
        return torch.as_tensor(np.array(photo)), k % 4


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(64, 4)

    def forward(self, pixels):
        return self.head(self.body(pixels.permute(0, 3, 1, 2) / 255.0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-pinning", action="store_true")
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        PhotoDataset(args.root),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=True,
        worker_init_fn=None if args.no_pinning else stay_near_memory,
    )
    model, total = Classifier(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        for pixels, labels in loader:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += 1
            if total % 5 == 0:
                print(f"epoch {epoch} step {total} loss {loss:.3f}")


if __name__ == "__main__":
    main()
