# SPDX-License-Identifier: Apache-2.0
"""Train on small crops of video clips; a batch is a list, since crops may differ in size."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, folder, frames=16, clone=False):
        self.video = np.load(f"{folder}/frames.npy", mmap_mode="r")
        self.frames, self.clone = frames, clone

    def __len__(self):
        return 6000

    def __getitem__(self, i):
        start = (13 * i) % (len(self.video) - self.frames)
        clip = torch.from_numpy(np.array(self.video[start : start + self.frames]))
        top, left = (29 * i) % 320, (41 * i) % 320
        crop = clip[:, :, top : top + 64, left : left + 64]
        return (crop.clone() if self.clone else crop), i % 6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clone", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Crops(args.folder, clone=args.clone),
        batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=list,
    )  # fmt: skip
    net = nn.Sequential(nn.Flatten(1, 2), nn.Conv2d(48, 8, 7, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
    net(torch.zeros(1, 16, 3, 64, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step, batch in enumerate(loader, 1):
        crops = torch.stack([crop for crop, _ in batch]).float() / 255
        labels = torch.tensor([label for _, label in batch])
        loss = nn.functional.cross_entropy(net(crops), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}/{len(loader)} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
