# SPDX-License-Identifier: Apache-2.0
"""Few-shot training: short epochs, and workers that are started by spawn since the reader does not survive a fork."""

import argparse
from pathlib import Path

import cv2
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shots(Dataset):
    def __init__(self, root, limit):
        self.paths = [str(p) for p in sorted(Path(root).rglob("*.jpg"))][:limit]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = cv2.cvtColor(cv2.imread(self.paths[i]), cv2.COLOR_BGR2RGB)
        image = cv2.resize(image, (96, 96))
        if torch.rand(1).item() > 0.5:
            image = image[:, ::-1].copy()
        return image, i % 4


def to_batch(rows):
    images, labels = zip(*rows, strict=True)
    return torch.stack([torch.from_numpy(i) for i in images]).permute(0, 3, 1, 2) / 255, torch.tensor(labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", required=True)
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--shots", type=int, default=120)
    ap.add_argument("--keep-workers", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Shots(args.root, args.shots),
        batch_size=8,
        shuffle=True,
        collate_fn=to_batch,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=args.keep_workers,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
        print(f"epoch {epoch}: step {step}, mean loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
