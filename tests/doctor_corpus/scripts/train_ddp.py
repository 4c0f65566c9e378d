# SPDX-License-Identifier: Apache-2.0
"""Distributed training; run with torchrun. Each rank takes its part of the sorted list of files."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Part(Dataset):
    def __init__(self, root, rank, world, strided):
        files = sorted(Path(root).glob("*.jpg"))
        share = len(files) // world
        self.files = files[rank::world] if strided else files[rank * share : (rank + 1) * share]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB").resize((96, 96))
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 255, i % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", choices=["blocks", "strided"], default="blocks")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    part = Part(args.data, rank, world, args.split == "strided")
    loader = DataLoader(part, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 2)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
