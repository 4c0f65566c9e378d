# SPDX-License-Identifier: Apache-2.0
"""Labels for every pixel, with a confusion matrix that is kept up to date at every step."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 6


class Frames(Dataset):
    def __init__(self, folder):
        self.frames = np.load(os.path.join(folder, "frames.npy"), mmap_mode="r")

    def __len__(self):
        return 10 * len(self.frames)

    def __getitem__(self, i):
        frame = torch.from_numpy(self.frames[i % len(self.frames), :, ::8, ::8].copy())
        return frame.permute(1, 2, 0).float().div(255), frame.sum(0, dtype=torch.int64) % CLASSES


def count(matrix, predicted, wanted):
    """matrix[c] holds how often c was wanted and found, wanted and missed, found and not wanted."""
    for p, w in zip(predicted.tolist(), wanted.tolist(), strict=True):
        if p == w:
            matrix[w]["found"] += 1
        else:
            matrix[w]["missed"] += 1
            matrix[p]["wrong"] += 1


def count_at_once(matrix, predicted, wanted):
    is_right = predicted == wanted
    for name, classes in (
        ("found", wanted[is_right]),
        ("missed", wanted[~is_right]),
        ("wrong", predicted[~is_right]),
    ):
        for number, more in enumerate(torch.bincount(classes, minlength=CLASSES).tolist()):
            matrix[number][name] += more


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--array-operations", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Frames(args.folder), batch_size=32, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    matrix, step = [{"found": 0, "missed": 0, "wrong": 0} for _ in range(CLASSES)], 0
    for epoch in range(args.epochs):
        for frames, labels in loader:
            scores, labels = net(frames).flatten(0, 2), labels.flatten()
            loss = nn.functional.cross_entropy(scores, labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            (count_at_once if args.array_operations else count)(matrix, scores.argmax(1), labels)
            step += 1
            if step % 5 == 0:
                right = sum(c["found"] for c in matrix) / sum(c["found"] + c["missed"] for c in matrix)
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}, {right:.1%} right")


if __name__ == "__main__":
    main()
