# SPDX-License-Identifier: Apache-2.0
"""A validation set in order: resized, the centre cropped."""

import os

import loops
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    args = loops.parse()
    dataset = ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        ),
    )
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=False, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
