# SPDX-License-Identifier: Apache-2.0
"""Training in short steps, or on small pictures: what a watcher adds to each step or sample shows here."""

import argparse
import os

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Thumbnails(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i]) as image:
            pixels = np.asarray(image.convert("RGB").resize((8, 8)))
        return torch.from_numpy(pixels.copy()).flatten() / 255, i % 10


def make_dataset(pictures):
    if pictures:
        return Thumbnails(pictures)
    return TensorDataset(torch.randn(20_000, 192), torch.randint(0, 10, (20_000,)))


def make_model():
    model = nn.Sequential(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", help="a folder of small pictures; without it: numbers in memory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(make_dataset(args.pictures), batch_size=16, shuffle=True)
    model, optimizer = make_model()
    step = 0
    while True:
        for x, y in loader:
            # Written out: tools that ask for edits look for the model and the optimizer in the loop.
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
