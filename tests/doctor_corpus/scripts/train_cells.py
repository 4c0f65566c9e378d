# SPDX-License-Identifier: Apache-2.0
"""Classify cells in microscopy tiles; they come as one HDF5 file, compressed by whoever wrote it."""

import argparse
import os

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cells(Dataset):
    def __init__(self, path):
        self.path, self.tiles = path, None
        with h5py.File(path, "r") as file:
            self.labels = file["labels"][:]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if self.tiles is None:
            self.tiles = h5py.File(self.path, "r")["tiles"]
        tile = self.tiles[i]
        if np.random.rand() < 0.5:
            tile = tile[:, ::-1]
        return torch.from_numpy(tile.copy()), int(self.labels[i])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def rechunk(source, target):
    """One tile in a chunk, so that a tile is read and unpacked by itself."""
    with h5py.File(source, "r") as old, h5py.File(target, "w") as new:
        tiles = old["tiles"]
        one = new.create_dataset(
            "tiles", tiles.shape, tiles.dtype, chunks=(1, *tiles.shape[1:]), compression="gzip"
        )
        for start in range(0, len(tiles), tiles.chunks[0]):
            one[start : start + tiles.chunks[0]] = tiles[start : start + tiles.chunks[0]]
        new["labels"] = old["labels"][:]


def train(args):
    torch.set_num_threads(1)
    loader = DataLoader(
        Cells(args.file), batch_size=8, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    for epoch in range(args.epochs):
        for tiles, labels in loader:
            loss = nn.functional.cross_entropy(model(tiles.permute(0, 3, 1, 2).float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rechunk", metavar="FILE", help="write the tiles one by one into FILE, and end")
    parser.add_argument("--file", help="read this one instead")
    args = parser.parse_args()
    args.file = args.file or os.path.join(args.folder, "cells.h5")
    if args.rechunk:
        rechunk(args.file, args.rechunk)
    else:
        train(args)
