# SPDX-License-Identifier: Apache-2.0
"""A dataset of PNGs alone: cropped at random from a resized image."""

import os

import loops
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    args = loops.parse()
    dataset = ImageFolder(
        os.path.join(args.data, "png"),
        transforms.Compose(
            [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        ),
    )
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
