# SPDX-License-Identifier: Apache-2.0
"""A residual network on photographs, with a loader that has enough workers."""

import argparse
import os

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.a = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn_a = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn_b = nn.BatchNorm2d(width)
        self.skip = nn.Conv2d(width_in, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.bn_a(self.a(x)))
        return torch.relu(self.bn_b(self.b(y)) + self.skip(x))


def resnet(widths, classes=4):
    layers = [
        nn.Conv2d(3, widths[0], 7, 2, 3, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    before = widths[0]
    for number, width in enumerate(widths):
        layers += [Block(before, width, 1 if number == 0 else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Photos(Dataset):
    def __init__(self, root, size, repeat):
        self.items = []
        self.repeat = repeat
        self.size = size
        for label, name in enumerate(sorted(os.listdir(root))):
            folder = os.path.join(root, name)
            self.items += [(os.path.join(folder, file), label) for file in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.items) * self.repeat

    def __getitem__(self, index):
        path, label = self.items[index % len(self.items)]
        image = Image.open(path)
        image.draft("RGB", (self.size, self.size))
        image = image.convert("RGB").resize((self.size, self.size))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1), label


def train(args):
    device = torch.device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    loader = DataLoader(
        Photos(args.data, args.size, args.repeat),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    model = resnet([args.width * factor for factor in (1, 2, 4, 8)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            images = images.to(device, non_blocking=True).float().div_(255)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int)
    train(parser.parse_args())
