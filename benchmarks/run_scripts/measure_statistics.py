# SPDX-License-Identifier: Apache-2.0
"""Mean and deviation of a dataset's colours, over whole images of all sizes."""

import os

import loops
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Sums:
    """The loader's batches, whose sums are taken as they pass."""

    def __init__(self, loader):
        self.loader = loader
        self.pixels, self.sums, self.squares = 0, torch.zeros(3), torch.zeros(3)

    def __iter__(self):
        for images, labels in self.loader:
            self.pixels += images.shape[0] * images.shape[2] * images.shape[3]
            self.sums += images.sum(dim=(0, 2, 3))
            self.squares += (images**2).sum(dim=(0, 2, 3))
            yield images, labels


def main():
    args = loops.parse(batch_size=1)
    dataset = ImageFolder(os.path.join(args.data, "train"), transform=transforms.ToTensor())
    sums = Sums(DataLoader(dataset, batch_size=args.batch_size, **loops.workers(args)))
    loops.run(sums, args)
    mean = sums.sums / sums.pixels
    print("mean", mean.tolist(), "std", (sums.squares / sums.pixels - mean**2).sqrt().tolist())


if __name__ == "__main__":
    main()
