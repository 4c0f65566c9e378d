# SPDX-License-Identifier: Apache-2.0
"""Short video clips, sixteen frames each, as float tensors."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, folder, frames=16):
        self.video = np.load(f"{folder}/frames.npy", mmap_mode="r")
        self.frames = frames

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        start = (13 * i) % (len(self.video) - self.frames)
        clip = self.video[start : start + self.frames, :, ::2, ::2]
        return torch.from_numpy(clip.astype(np.float32) / 255), i % 6


def main():
    args = argparse.ArgumentParser()
    args.add_argument("folder")
    args.add_argument("--workers", type=int, default=2)
    args.add_argument("--batch-size", type=int, default=8)
    args = args.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Clips(args.folder), args.batch_size, shuffle=True, num_workers=args.workers)
    net = nn.Sequential(nn.Flatten(1, 2), nn.Conv2d(48, 16, 7, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
    net(torch.zeros(1, 16, 3, 192, 192))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step, (clips, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(net(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}/{len(loader)} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
