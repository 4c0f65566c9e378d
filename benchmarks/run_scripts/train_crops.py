# SPDX-License-Identifier: Apache-2.0
"""Crops and flips by hand, with Pillow and NumPy alone."""

import glob
import os
import random

import loops
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class Photos(Dataset):
    def __init__(self, root, size=224):
        self.files = sorted(glob.glob(os.path.join(root, "*", "*.jpg")))
        self.labels = sorted(os.listdir(root))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        img = Image.open(self.files[i]).convert("RGB")
        w, h = img.size
        side = int(min(w, h) * random.uniform(0.4, 1.0))
        x, y = random.randint(0, w - side), random.randint(0, h - side)
        img = img.crop((x, y, x + side, y + side)).resize((self.size, self.size), Image.BILINEAR)
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        img = (np.asarray(img, dtype=np.float32) / 255.0 - MEAN) / STD
        label = self.labels.index(os.path.basename(os.path.dirname(self.files[i])))
        return torch.from_numpy(img.transpose(2, 0, 1).copy()), label


def main():
    args = loops.parse()
    dataset = Photos(os.path.join(args.data, "train"))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
