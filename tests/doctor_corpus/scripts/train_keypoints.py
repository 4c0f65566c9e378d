# SPDX-License-Identifier: Apache-2.0
"""Keypoint regression by heat maps (one map per keypoint, as pose networks have them)."""

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE, MAPS = 64, 6


def draw_heatmaps(points, sigma=3.0):
    maps = np.zeros((len(points), SIZE, SIZE), np.float32)
    for k, (px, py) in enumerate(points):
        for y in range(SIZE):
            for x in range(SIZE):
                maps[k, y, x] = math.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * sigma**2))
    return maps


def draw_heatmaps_at_once(points, sigma=3.0):
    grid = np.arange(SIZE, dtype=np.float32)
    dx = (grid[None, None, :] - points[:, 0, None, None]) ** 2
    dy = (grid[None, :, None] - points[:, 1, None, None]) ** 2
    return np.exp(-(dx + dy) / (2 * sigma**2)).astype(np.float32)


class Keypoints(Dataset):
    def __init__(self, root, draw):
        self.paths = sorted(Path(root).rglob("*.jpg"))
        self.draw = draw
        rng = np.random.default_rng(0)
        self.points = rng.uniform(8, SIZE - 8, (len(self.paths), MAPS, 2))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        with open(self.paths[idx], "rb") as f:
            im = Image.open(f).convert("RGB")
        if im.size != (SIZE, SIZE):
            im = im.resize((SIZE, SIZE))
        shift = torch.randint(-4, 5, (2,)).numpy()
        pixels = np.roll(np.asarray(im), tuple(shift[::-1]), axis=(0, 1))
        points = self.points[idx] + shift
        return dict(
            image=torch.from_numpy(pixels.copy()).permute(2, 0, 1),
            heatmaps=torch.from_numpy(self.draw(points)),
            points=torch.as_tensor(points, dtype=torch.float32),
        )


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", type=Path)
    ap.add_argument("--num-workers", type=int, default=2)
    ap.add_argument("--max-steps", type=int, default=400)
    ap.add_argument("--numpy-heatmaps", action="store_true")
    return ap.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    draw = partial(draw_heatmaps_at_once if args.numpy_heatmaps else draw_heatmaps, sigma=2.5)
    loader = DataLoader(
        Keypoints(args.root, draw), batch_size=6, shuffle=True, num_workers=args.num_workers, drop_last=True
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, MAPS, 1),
    )  # fmt: skip
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    steps = 0
    while steps < args.max_steps:
        for batch in loader:
            out = net(batch["image"].float() / 255)
            loss = ((out - batch["heatmaps"]) ** 2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            steps += 1
            if steps % 5 == 0:
                print(f"[step {steps}] mse {loss.item():.5f}", flush=True)
            if steps >= args.max_steps:
                break


if __name__ == "__main__":
    main()
