# SPDX-License-Identifier: Apache-2.0
"""Point clouds of different sizes: the collate function keeps them as lists of arrays."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clouds(Dataset):
    """Laser scans, held in memory."""

    def __init__(self, scans=24, seed=0):
        rng = np.random.default_rng(seed)
        self.scans = [rng.normal(size=(rng.integers(250_000, 350_000), 4)) for _ in range(scans)]

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        scan = self.scans[i % len(self.scans)]
        return {"points": scan, "label": i % 4}


def keep_lists(samples):
    return {"points": [s["points"] for s in samples], "label": torch.tensor([s["label"] for s in samples])}


def share_tensors(samples):
    points = [torch.from_numpy(s["points"][::64].astype(np.float32)) for s in samples]
    return {"points": points, "label": torch.tensor([s["label"] for s in samples])}


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, clouds):
        return self.head(torch.stack([self.local(cloud).amax(0) for cloud in clouds]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--thin-in-workers", action="store_true")
    ap.add_argument("--steps", type=int, default=800)
    args = ap.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Clouds(), batch_size=4, shuffle=True, num_workers=args.workers,
        collate_fn=share_tensors if args.thin_in_workers else keep_lists,
    )  # fmt: skip
    net = PointNet()
    opt = torch.optim.Adam(net.parameters())
    for step, batch in enumerate(loader, 1):
        clouds = batch["points"]
        if not args.thin_in_workers:
            clouds = [torch.from_numpy(points[::64].astype(np.float32)) for points in clouds]
        loss = nn.functional.cross_entropy(net(clouds), batch["label"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} | loss {loss.item():.3f}")
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
