# SPDX-License-Identifier: Apache-2.0
"""A regression on whole pictures, each scaled to the network's input; bytes become floats in the loop."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shelves(Dataset):
    def __init__(self, folder, side, rounds):
        self.paths = [
            os.path.join(folder, name, file)
            for name in sorted(os.listdir(folder))
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]
        self.names = sorted(os.listdir(folder))
        self.side, self.rounds = side, rounds

    def __len__(self):
        return len(self.paths) * self.rounds

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        with Image.open(path) as image:
            image = image.convert("RGB").resize((self.side, self.side), Image.BILINEAR)
        fill = self.names.index(os.path.basename(os.path.dirname(path)))
        return np.asarray(image).transpose(2, 0, 1).copy(), fill


class Estimator(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 5, 3, 2)
        self.second = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.third = nn.Conv2d(2 * width, 4 * width, 3, 2, 1)
        self.last = nn.Linear(4 * width, 1)

    def forward(self, x):
        x = F.gelu(self.first(x))
        x = F.gelu(self.second(x))
        x = F.gelu(self.third(x))
        return self.last(x.mean((2, 3))).squeeze(1)


def make_loader(args):
    dataset = Shelves(args.folder, args.side, args.rounds)
    if args.pack is None:
        return DataLoader(
            dataset, batch_size=args.batch, shuffle=True, num_workers=args.workers, drop_last=True
        )
    import feedrate

    order = np.arange(len(dataset)) % len(dataset.paths)
    return feedrate.Loader(
        args.pack, batch_size=args.batch, image=feedrate.Resize(args.side), order=order, drop_last=True
    )


def train(args):
    torch.set_num_threads(1)
    loader, net = make_loader(args), Estimator()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    step = 0
    for epoch in range(args.epochs):
        for pictures, fill in loader:
            estimate = net(pictures.float().div_(127.5).sub_(1))
            loss = F.mse_loss(estimate, fill.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--make-pack")
    parser.add_argument("--pack")
    arguments = parser.parse_args()
    if arguments.make_pack:
        from feedrate import pack

        pack(arguments.folder, arguments.make_pack)
    else:
        train(arguments)
