# SPDX-License-Identifier: Apache-2.0
"""All crops are decoded when the dataset is made, and kept in memory."""

import argparse
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Preloaded(Dataset):
    def __init__(self, folder, crops, threads):
        paths = [path for path in sorted(Path(folder).rglob("*.jpg")) for _ in range(crops)]
        classes = sorted({path.parent.name for path in paths})
        self.labels = [classes.index(path.parent.name) for path in paths]
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                self.crops = list(pool.map(self.decode, paths))
        else:
            self.crops = [self.decode(path) for path in paths]

    def decode(self, path):
        image = Image.open(path).convert("RGB")
        left, top = random.randrange(image.width // 2), random.randrange(image.height // 2)
        box = (left, top, left + image.width // 2, top + image.height // 2)
        return np.array(image.resize((48, 48), box=box))

    def __len__(self):
        return len(self.crops)

    def __getitem__(self, i):
        return torch.from_numpy(self.crops[i]).permute(2, 0, 1).float() / 255, self.labels[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--crops", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Preloaded(args.folder, args.crops, args.threads), batch_size=2, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(384, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
