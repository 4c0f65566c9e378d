# SPDX-License-Identifier: Apache-2.0
import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="image classification baseline")
parser.add_argument("data", type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--log-interval", type=int, default=5)


class Folder(Dataset):
    def __init__(self, root, transform=None):
        self.classes = sorted(d.name for d in root.iterdir() if d.is_dir())
        self.samples = [(f, c) for c, n in enumerate(self.classes) for f in sorted((root / n).iterdir())]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        img = Image.open(path).convert("RGB")
        if self.transform is not None:
            img = self.transform(img)
        return img, target


def augment(img):
    img = img.resize((128, 128), Image.BICUBIC)
    if np.random.rand() < 0.5:
        img = img.transpose(Image.FLIP_LEFT_RIGHT)
    img = ImageEnhance.Color(img).enhance(np.random.uniform(0.7, 1.3))
    img = ImageEnhance.Contrast(img).enhance(np.random.uniform(0.7, 1.3))
    x = torch.from_numpy(np.asarray(img, dtype=np.float32) / 255.0)
    return (x.permute(2, 0, 1) - 0.45) / 0.22


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=4)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def main():
    args = parser.parse_args()
    torch.set_num_threads(1)
    train_set = Folder(args.data, augment)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    model = Net(len(train_set.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    n_iter = 0
    for epoch in range(args.epochs):
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            n_iter += 1
            if n_iter % args.log_interval == 0:
                print(f"Train epoch: {epoch}  iter: {n_iter}  loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
