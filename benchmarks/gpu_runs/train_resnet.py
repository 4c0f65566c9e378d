# SPDX-License-Identifier: Apache-2.0
"""Train a ResNet-50 on JPEGs with DataLoader + Pillow, or on made-up batches; as people write it."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, folder, repeat):
        self.files = (
            sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) * repeat
        )

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        side = int(min(image.size) * random.uniform(0.5, 1.0))
        left = random.randint(0, image.width - side)
        top = random.randint(0, image.height - side)
        image = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return pixels, index % 1000


class Synthetic(Dataset):
    """Batches that are already there: the GPU is all that works."""

    def __init__(self, batches):
        self.batches = batches
        self.batch = torch.rand(256, 3, 224, 224).pin_memory(), torch.randint(0, 1000, (256,)).pin_memory()

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        return self.batch


class Block(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride != 1 or inside != out:
            self.skip = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet50(classes=1000):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Block(inside, width, stride if i == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a folder of JPEGs; without it: synthetic batches")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()

    device = "cuda"
    if args.data:
        dataset = Photos(args.data, repeat=200)
        loader = DataLoader(
            dataset, batch_size=256, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True
        )
    else:
        loader = DataLoader(Synthetic(args.steps), batch_size=None, pin_memory=False)
    model = resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    started, step = time.time(), 0
    while step < args.steps:
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            if args.amp:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = loss_of(model(images), labels)
            else:
                loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                rate = 256 * step / (time.time() - started)
                print(f"step {step}: loss {loss.item():.3f}, {rate:.0f} images/s", flush=True)
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
