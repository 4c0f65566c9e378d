# SPDX-License-Identifier: Apache-2.0
"""Training on prepared samples, which lie in one memory-mapped array that all workers share."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def prepare(folder, cache, count):
    """Read the samples once, and write them as float32 and, a quarter of that, as they are."""
    paths = sorted(Path(folder).glob("*.npy"))[:count]
    Path(cache).mkdir(parents=True, exist_ok=True)
    for dtype in ("float32", "uint8"):
        shape = (len(paths), *np.load(paths[0]).shape)
        target = np.lib.format.open_memmap(f"{cache}/{dtype}.npy", "w+", np.dtype(dtype), shape)
        for i, path in enumerate(paths):
            target[i] = np.load(path)
        target.flush()


class Prepared(Dataset):
    def __init__(self, cache, dtype):
        self.samples = np.load(f"{cache}/{dtype}.npy", mmap_mode="r")

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        x = np.array(self.samples[i])[::4, ::4]
        return torch.from_numpy(x.astype(np.float32) / 255).permute(2, 0, 1), i % 10


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cache", required=True)
    p.add_argument("--prepare", metavar="FOLDER")
    p.add_argument("--count", type=int, default=600)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--epochs", type=int, default=40)
    args = p.parse_args()
    if args.prepare:
        prepare(args.prepare, args.cache, args.count)
        return
    torch.set_num_threads(1)
    data = Prepared(args.cache, args.dtype)
    loader = DataLoader(data, 16, shuffle=True, num_workers=args.workers, persistent_workers=True)
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
