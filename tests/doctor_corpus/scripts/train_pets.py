# SPDX-License-Identifier: Apache-2.0
"""A small residual network on a folder per class: random crops, flips, normalised floats."""

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_resized_crop(image, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            break
    else:
        w, h, left, top = width, height, 0, 0
    return image.crop((left, top, left + w, top + h)).resize((size, size), Image.BILINEAR)


class Pets(Dataset):
    def __init__(self, root, size, repeat):
        self.classes = sorted(path.name for path in Path(root).iterdir())
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted(Path(root, name).glob("*.jpg"))
        ] * repeat
        self.size = size
        self.mean, self.std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        image = random_resized_crop(Image.open(path).convert("RGB"), self.size)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        return pixels.sub_(self.mean).div_(self.std), label


class Block(nn.Module):
    def __init__(self, before, width):
        super().__init__()
        self.a = nn.Conv2d(before, width, 3, 2, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(before, width, 1, 2, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        y = torch.relu(self.norm_a(self.a(x)))
        return torch.relu(self.norm_b(self.b(y)) + self.skip(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--write-pack")
    parser.add_argument("--pack")
    args = parser.parse_args()
    if args.write_pack:
        from feedrate import pack

        pack(args.data, args.write_pack)
        return
    torch.set_num_threads(1)  # leave the cores to the workers
    dataset = Pets(args.data, args.size, args.repeat)
    if args.pack:
        import feedrate

        files = len(dataset) // args.repeat  # an epoch goes through them several times
        loader = feedrate.Loader(
            args.pack,
            batch_size=args.batch_size,
            image=feedrate.RandomResizedCrop(args.size),
            flip=True,
            order=lambda epoch: np.random.default_rng(epoch).permutation(len(dataset)) % files,
            normalize="imagenet",
        )
    else:
        loader = DataLoader(
            dataset, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True
        )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 32), Block(32, 64), Block(64, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, len(dataset.classes)),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
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
                print(f"step {step} loss {loss.item():.3f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
