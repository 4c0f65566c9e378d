# SPDX-License-Identifier: Apache-2.0
"""Denoising of radar images: the network sees a speckled picture and should give back the clean one."""

import argparse
import math
import os
import random

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Speckle:
    """Multiplicative noise, drawn pixel by pixel."""

    def __init__(self, looks=4, vectorised=False):
        self.looks = looks
        self.vectorised = vectorised

    def __call__(self, image):
        if self.vectorised:
            return image * np.sqrt(np.random.gamma(self.looks, 1 / self.looks, image.shape)).astype(
                np.float32
            )
        noisy = image.copy()
        height, width = image.shape
        for y in range(height):
            for x in range(width):
                noisy[y, x] = image[y, x] * math.sqrt(random.gammavariate(self.looks, 1 / self.looks))
        return noisy


class RadarDataset(Dataset):
    def __init__(self, root, noise):
        self.paths = [os.path.join(d, f) for d, _, files in sorted(os.walk(root)) for f in sorted(files)]
        self.noise = noise

    def __len__(self):
        return 40 * len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i % len(self.paths)]) as picture:
            clean = np.asarray(picture.convert("L"), dtype=np.float32) / 255
        noisy = self.noise(clean)
        return torch.from_numpy(noisy)[None], torch.from_numpy(clean)[None]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("root")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--vectorised", action="store_true")


def main(opt):
    torch.set_num_threads(1)
    data = RadarDataset(opt.root, Speckle(vectorised=opt.vectorised))
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=opt.workers, drop_last=True)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    adam = torch.optim.Adam(net.parameters())
    it = 0
    for epoch in range(1000):
        for noisy, clean in loader:
            adam.zero_grad()
            loss = nn.functional.mse_loss(net(noisy), clean)
            loss.backward()
            adam.step()
            it += 1
            if it % 5 == 0:
                print(f"epoch {epoch} iter {it} loss {float(loss):.4f}")
            if it >= opt.steps:
                return


if __name__ == "__main__":
    main(parser.parse_args())
