# SPDX-License-Identifier: Apache-2.0
"""Train on whole photographs made small, as many first scripts do; or on a pack of them."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 64


def to_tensor(image):
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels.flip(2) if random.random() < 0.5 else pixels).float().div(255)


class Photos(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB").resize((SIDE, SIDE), Image.BILINEAR)
        return to_tensor(image), self.classes.index(self.paths[i].parent.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--pack")
    parser.add_argument("--write-pack", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Photos(args.root)
    if args.pack:
        import feedrate
        from feedrate import pack

        if args.write_pack:
            pack(args.root, args.pack)
            return
        dataset = feedrate.Dataset(args.pack, transform=to_tensor, image=feedrate.Resize(SIDE))
    loader = DataLoader(
        dataset, 16, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
