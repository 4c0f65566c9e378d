# SPDX-License-Identifier: Apache-2.0
"""Training on a database export: compressed chunks of 64 samples, each worker keeps the chunk that it reads."""

import argparse
import glob

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PER_CHUNK = 64


class Export(Dataset):
    def __init__(self, folder):
        self.chunks = sorted(glob.glob(folder + "/chunk-*.npz"))
        self.number, self.content = None, None

    def __len__(self):
        return len(self.chunks) * PER_CHUNK

    def __getitem__(self, i):
        number, row = divmod(i, PER_CHUNK)
        if number != self.number:
            with np.load(self.chunks[number]) as chunk:
                self.content = chunk["x"], chunk["y"]
            self.number = number
        x, y = self.content
        return x[row].transpose(2, 0, 1).astype("float32") / 40, int(y[row])


def run(folder, workers, epochs):
    torch.set_num_threads(1)
    loader = DataLoader(
        Export(folder), batch_size=8, num_workers=workers, persistent_workers=True, prefetch_factor=4
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 64), nn.ReLU(), nn.Linear(64, 4))
    optim = torch.optim.SGD(net.parameters(), lr=0.01)
    n = 0
    for _ in range(epochs):
        for x, y in loader:
            optim.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optim.step()
            n += 1
            if n % 16 == 0:
                print("step", n, "loss", round(loss.item(), 4))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("folder")
    cli.add_argument("--workers", type=int, default=16)
    cli.add_argument("--epochs", type=int, default=40)
    a = cli.parse_args()
    run(a.folder, a.workers, a.epochs)
