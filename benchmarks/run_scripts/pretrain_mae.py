# SPDX-License-Identifier: Apache-2.0
"""Pre-training of a masked autoencoder: large crops, bicubic by its number of old."""

import os

import loops
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    args = loops.parse()
    transform_train = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=3),  # 3 is bicubic
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset = ImageFolder(os.path.join(args.data, "train"), transform=transform_train)
    loader = DataLoader(
        dataset,
        sampler=RandomSampler(dataset),
        batch_size=args.batch_size,
        drop_last=True,
        **loops.workers(args),
    )
    loops.run(loader, args)


if __name__ == "__main__":
    main()
