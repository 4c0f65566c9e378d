# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a network on a held-out set, with test-time augmentation: the network is most of the work."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader


class HeldOut(torch.utils.data.Dataset):
    def __init__(self, root, repeats=1):
        self.files = sorted(Path(root).glob("*/*.jpg")) * repeats

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            image.draft("RGB", (128, 128))
            pixels = np.array(image.convert("RGB").resize((96, 96)))
        return torch.from_numpy(pixels).permute(2, 0, 1), torch.tensor(index % 4)


def conv(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.SiLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    network = nn.Sequential(
        conv(3, 32, 2), conv(32, 64), conv(64, 64), conv(64, 128, 2), conv(128, 128), conv(128, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    network.eval()
    right = seen = 0
    loader = DataLoader(HeldOut(args.root, args.repeats), batch_size=8, num_workers=args.workers)
    with torch.no_grad():
        for number, (images, labels) in enumerate(loader, 1):
            images = images.float() / 255
            votes = network(images) + network(images.flip(3))
            right += (votes.argmax(1) == labels).sum().item()
            seen += len(labels)
            if number % 10 == 0:
                print(f"batch {number}/{len(loader)}: accuracy {right / seen:.2%}")


if __name__ == "__main__":
    main()
