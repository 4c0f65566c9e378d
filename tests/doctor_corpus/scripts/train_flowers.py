# SPDX-License-Identifier: Apache-2.0
"""Train a small classifier on photographs as they came from the camera."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class RandomCrop:
    def __init__(self, size, scale=(0.4, 1.0)):
        self.size, self.scale = size, scale

    def __call__(self, image):
        width, height = image.size
        side = int(min(width, height) * random.uniform(*self.scale) ** 0.5)
        left, top = random.randint(0, width - side), random.randint(0, height - side)
        return image.resize((self.size, self.size), Image.BILINEAR, box=(left, top, left + side, top + side))


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


class Flowers(Dataset):
    def __init__(self, root, transform):
        self.files = sorted(Path(root).glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.files})
        self.transform = transform

    def __len__(self):
        return len(self.files) * 100

    def __getitem__(self, index):
        path = self.files[index % len(self.files)]
        label = self.classes.index(path.parent.name)
        image = Image.open(path).convert("RGB")
        return self.transform(image), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--write-pack")
    parser.add_argument("--pack")
    args = parser.parse_args()
    torch.set_num_threads(1)  # leave the cores to the workers

    dataset = Flowers(args.data, Compose(RandomCrop(96), ToTensor()))
    classes = len(dataset.classes)
    if args.write_pack:
        from feedrate import pack

        pack(args.data, args.write_pack)
        return
    if args.pack:
        import feedrate

        crop = feedrate.RandomResizedCrop(96, scale=(0.3, 0.75), ratio=(1, 1))
        packed = feedrate.Dataset(args.pack, transform=ToTensor(), image=crop)
        dataset = torch.utils.data.ConcatDataset([packed] * 100)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step}/{args.steps} loss {loss.item():.3f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
