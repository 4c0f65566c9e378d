# SPDX-License-Identifier: Apache-2.0
"""Images read, cropped and resized by OpenCV."""

import glob
import os

import cv2
import loops
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, root, size=224):
        self.files = sorted(glob.glob(os.path.join(root, "*", "*.jpg")))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        img = cv2.cvtColor(cv2.imread(self.files[i]), cv2.COLOR_BGR2RGB)
        h, w = img.shape[:2]
        side = int(min(w, h) * np.random.uniform(0.4, 1.0))
        y, x = np.random.randint(0, h - side + 1), np.random.randint(0, w - side + 1)
        img = cv2.resize(img[y : y + side, x : x + side], (self.size, self.size))
        if np.random.rand() < 0.5:
            img = np.ascontiguousarray(img[:, ::-1])
        return torch.from_numpy(img).permute(2, 0, 1).float() / 255, i % 10


def seed_worker(worker_id):
    cv2.setNumThreads(0)
    np.random.seed(torch.initial_seed() % 2**32)


def main():
    args = loops.parse()
    dataset = Photos(os.path.join(args.data, "train"))
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        worker_init_fn=seed_worker,
        **loops.workers(args),
    )
    loops.run(loader, args)


if __name__ == "__main__":
    main()
