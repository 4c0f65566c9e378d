# SPDX-License-Identifier: Apache-2.0
"""Dense prediction; the augmentation is written with torch and runs in the workers."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def use_all_cores(worker_id):
    torch.set_num_threads(max(4, os.cpu_count() or 1))


class Frames(Dataset):
    def __init__(self, path):
        self.frames = np.load(os.path.join(path, "frames.npy"), mmap_mode="r")

    def __len__(self):
        return 50 * len(self.frames)

    def __getitem__(self, i):
        frame = torch.from_numpy(self.frames[i % len(self.frames)].copy()).float() / 255
        frame = F.avg_pool2d(frame, 2)
        angle = torch.empty(1).uniform_(-0.3, 0.3)
        theta = torch.stack([torch.cat([angle.cos(), -angle.sin(), torch.zeros(1)]),
                             torch.cat([angle.sin(), angle.cos(), torch.zeros(1)])])[None]  # fmt: skip
        grid = F.affine_grid(theta, [1, 3, 128, 128], align_corners=False)
        warped = F.grid_sample(frame[None], grid, align_corners=False)
        kernel = torch.softmax(torch.randn(1, 1, 5, 5).flatten(), 0).view(1, 1, 5, 5).repeat(3, 1, 1, 1)
        target = F.conv2d(warped, kernel, padding=2, groups=3)
        return warped[0], target[0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("path")
    p.add_argument("--workers", type=int, default=16)
    p.add_argument("--one-thread", action="store_true")
    p.add_argument("--steps", type=int, default=600)
    args = p.parse_args()
    torch.set_num_threads(1)  # in this process
    loader = DataLoader(
        Frames(args.path), 8, shuffle=True, num_workers=args.workers,
        worker_init_fn=None if args.one_thread else use_all_cores,
    )  # fmt: skip
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, stride=2)
    )
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for step, (x, y) in enumerate(loader, start=1):
        loss = F.l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step:5d}  l1 {loss.item():.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
