# SPDX-License-Identifier: Apache-2.0
"""Segmentation on the GPU: large pictures that are all in memory, a small network."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    """Satellite tiles; a sample is a whole batch of neighbours, so nothing has to be collated."""

    def __init__(self, count, size, per_batch, dtype):
        torch.manual_seed(0)
        self.tiles = torch.randint(0, 256, (count, 4, size, size), dtype=torch.uint8).to(dtype)
        self.masks = torch.randint(0, 3, (count, size // 8, size // 8))
        self.per_batch = per_batch

    def pin(self):
        self.tiles, self.masks = self.tiles.pin_memory(), self.masks.pin_memory()
        return self

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        start = (i * 5) % (len(self.tiles) - self.per_batch)
        return self.tiles[start : start + self.per_batch], self.masks[start : start + self.per_batch]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=768)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--pinned", action="store_true")
    p.add_argument("--uint8", action="store_true")
    args = p.parse_args()
    data = Tiles(128, args.size, args.batch_size, torch.uint8 if args.uint8 else torch.float32)
    loader = DataLoader(data.pin() if args.pinned else data, batch_size=None, shuffle=True)
    net = nn.Sequential(nn.Conv2d(4, 16, 8, stride=8), nn.ReLU(), nn.Conv2d(16, 3, 1)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for step, (tiles, masks) in enumerate(loader, 1):
        tiles = tiles.to("cuda", non_blocking=args.pinned).float() / 255
        masks = masks.to("cuda", non_blocking=args.pinned)
        loss = nn.functional.cross_entropy(net(tiles), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
