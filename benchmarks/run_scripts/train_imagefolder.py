# SPDX-License-Identifier: Apache-2.0
"""A network trained on ImageNet's layout, as torchvision's users write it."""

import os

import loops
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    args = loops.parse()
    dataset = ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        ),
    )
    sampler = None
    if loops.join_ranks():
        sampler = DistributedSampler(dataset, seed=args.seed)
        if args.digest:
            args.digest += f".{torch.distributed.get_rank()}"
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        **loops.workers(args),
    )
    loops.run(loader, args, sampler)
    if sampler is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
