# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 on a folder per class, as torchvision's users write it; bfloat16, channels-last."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import datasets, models, transforms


def make_loader(args):
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])  # fmt: skip
    folder = datasets.ImageFolder(args.data, transform)
    samples = len(folder) * args.repeat  # an epoch goes through them several times
    if args.pack is None:
        return DataLoader(
            ConcatDataset([folder] * args.repeat), args.batch_size, shuffle=True, num_workers=args.workers,
            pin_memory=True, drop_last=True, persistent_workers=True,
        )  # fmt: skip
    import feedrate

    return feedrate.Loader(
        args.pack, args.batch_size, image=feedrate.RandomResizedCrop(224), flip=True, normalize="imagenet",
        order=lambda epoch: np.random.default_rng(epoch).permutation(samples) % len(folder), drop_last=True,
        device="cuda",
    )  # fmt: skip


def train(args):
    loader = make_loader(args)
    model = models.resnet18(num_classes=1000).to("cuda", memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            images = images.to("cuda", non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--write-pack")
    parser.add_argument("--pack")
    arguments = parser.parse_args()
    if arguments.write_pack:
        from feedrate import pack

        pack(arguments.data, arguments.write_pack)
    else:
        train(arguments)
