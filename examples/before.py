# SPDX-License-Identifier: Apache-2.0
"""Training as many people have it: ImageFolder-like dataset, Pillow, DataLoader. Ask the doctor about it:

feedrate doctor -- python examples/before.py FOLDER
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """One folder per class."""

    def __init__(self, folder):
        self.files = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        self.classes = sorted({p.parent.name for p in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        # A random square, then the size that the network wants; half of them mirrored.
        side = int(min(image.size) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        image = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels, self.classes.index(path.parent.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="one subfolder of JPEGs per class")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = Photos(arguments.folder)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=arguments.workers, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(dataset.classes)),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(arguments.epochs):
        for images, labels in loader:
            images, labels = images.to(device).float() / 255, labels.to(device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
