# SPDX-License-Identifier: Apache-2.0
"""Classify long stacks of camera frames; everything is float32 before it leaves the dataset."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Stacks(Dataset):
    def __init__(self, folder, dtype):
        self.frames = np.load(os.path.join(folder, "frames.npy"))
        self.labels = np.load(os.path.join(folder, "labels.npy"))
        self.dtype = dtype

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        start = (index * 7) % (len(self.frames) - 8)
        return torch.from_numpy(self.frames[start : start + 8]).to(self.dtype), self.labels[start]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(24, 16, 16, stride=16)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = x.flatten(1, 2)[:, :, ::4, ::4].float()
        return self.fc(self.conv(x / 255).mean((2, 3)))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("--bytes", action="store_true", help="leave the frames as uint8")
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--steps", type=int, default=480)
    args = ap.parse_args()
    torch.set_num_threads(1)
    data = Stacks(args.folder, torch.uint8 if args.bytes else torch.float32)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=args.workers)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    i = 0
    while i < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            i += 1
            if i % 5 == 0:
                print(f"iter {i}, loss = {loss.item():.4f}")
            if i == args.steps:
                break
