# SPDX-License-Identifier: Apache-2.0
"""Training with a cache of prepared samples in every worker, so that nothing is prepared twice."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CachedArrays(Dataset):
    def __init__(self, folder, keep):
        self.paths = sorted(Path(folder).glob("*.npy"))
        self.keep = keep
        self.cache = {}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if i in self.cache:
            return self.cache[i][:, ::4, ::4], i % 10
        x = np.load(self.paths[i]).astype(np.float32) / 255
        x = torch.from_numpy(x.transpose(2, 0, 1).copy())
        if len(self.cache) < self.keep:
            self.cache[i] = x
        return x[:, ::4, ::4], i % 10


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--keep", type=int, default=10**9, help="samples that a worker may keep")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--epochs", type=int, default=10)
    args = p.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        CachedArrays(args.folder, args.keep),
        16,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=True,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch}, step {step}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
