# SPDX-License-Identifier: Apache-2.0
"""Super-resolution on slices of measurements, one array per file."""

import argparse
import glob

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Slices(torch.utils.data.Dataset):
    def __init__(self, pattern):
        self.files = sorted(glob.glob(pattern))
        if not self.files:
            raise SystemExit(f"nothing matches {pattern}")

    def __len__(self):
        return len(self.files)

    def __getitem__(self, n):
        whole = torch.from_numpy(np.load(self.files[n]))
        top, left = torch.randint(0, 128, (1,)).item(), torch.randint(0, 192, (1,)).item()
        patch = whole[:, top : top + 128, left : left + 128]
        return F.avg_pool2d(patch, 2), patch


class Upscaler(nn.Sequential):
    def __init__(self, width=12):
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("pattern", help="e.g. 'scans/slice-*.npy'")
    ap.add_argument("-w", "--workers", type=int, default=2)
    ap.add_argument("-n", "--steps", type=int, default=600)
    args = ap.parse_args()
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Slices(args.pattern), batch_size=4, shuffle=True, num_workers=args.workers, prefetch_factor=3
    )
    model = Upscaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done = 0
    while True:
        for small, large in loader:
            loss = F.mse_loss(model(small), large)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 5 == 0:
                print(f"step {done}: mse {loss.item():.4f}")
            if done >= args.steps:
                return


if __name__ == "__main__":
    main()
