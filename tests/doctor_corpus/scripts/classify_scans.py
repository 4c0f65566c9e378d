# SPDX-License-Identifier: Apache-2.0
# Sort a folder of scanned pages with a trained network. No training here, only predictions.
import argparse
import glob
import os

import cv2
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

cv2.setNumThreads(0)


class Scans(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(glob.glob(os.path.join(folder, "**", "*.png"), recursive=True))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        page = cv2.imread(self.paths[i], cv2.IMREAD_COLOR)
        page = cv2.cvtColor(page, cv2.COLOR_BGR2RGB)
        page = cv2.resize(page, (96, 96), interpolation=cv2.INTER_AREA)
        return {"page": torch.from_numpy(page).permute(2, 0, 1).contiguous(), "name": self.paths[i]}


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 7, stride=4), torch.nn.ReLU(),
        torch.nn.Conv2d(24, 48, 3, stride=2), torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten(), torch.nn.Linear(48, 4),
    ).eval()  # fmt: skip


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("-j", type=int, default=2, help="worker processes")
    p.add_argument("-b", type=int, default=4, help="batch size")
    p.add_argument("--passes", type=int, default=40)
    p.add_argument("--cache", help="a folder in which pages are kept as the network takes them")
    p.add_argument("--prepare", action="store_true", help="fill the cache, and end")
    a = p.parse_args()
    torch.set_num_threads(1)
    net = build()
    counts = torch.zeros(4)
    scans = Scans(a.folder)
    if a.cache:
        import feedrate

        scans = feedrate.cached(scans, disk=f"{a.cache}:1GB", key="96 pixels")
    if a.prepare:
        for _ in DataLoader(scans, num_workers=a.j):
            pass
        raise SystemExit
    loader = DataLoader(torch.utils.data.ConcatDataset([scans] * a.passes), batch_size=a.b, num_workers=a.j)
    with torch.inference_mode():
        for n, batch in enumerate(loader):
            scores = F.softmax(net(batch["page"].float() / 255), dim=1)
            counts += scores.argmax(1).bincount(minlength=4)
            if n % 5 == 0:
                print("batch", n, "of", len(loader), counts.int().tolist())
