# SPDX-License-Identifier: Apache-2.0
"""Detection with COCO-like annotations, which every worker reads for itself when it starts."""

import argparse
import json
import os
from collections import defaultdict

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

ANNOTATIONS = None


def load_annotations(root):
    global ANNOTATIONS
    with open(os.path.join(root, "annotations.json")) as f:
        notes = json.load(f)["annotations"]
    ANNOTATIONS = defaultdict(list)
    for note in notes:
        ANNOTATIONS[note["image"]].append(note["bbox"] + [note["category"]])


def worker_init(_):
    load_annotations(get_worker_info().dataset.root)


class Detection(Dataset):
    def __init__(self, root):
        self.root = root
        self.names = sorted(
            os.path.join(c, f) for c in os.listdir(root) if os.path.isdir(os.path.join(root, c))
            for f in os.listdir(os.path.join(root, c))
        )  # fmt: skip

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        name = self.names[i]
        image = Image.open(os.path.join(self.root, name)).convert("RGB").resize((128, 128))
        if np.random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        boxes = torch.tensor(ANNOTATIONS[name][:20], dtype=torch.float32)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), boxes


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Detection(args.root),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        worker_init_fn=worker_init,
        persistent_workers=args.persistent,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 100)
    )
    opt = torch.optim.SGD(net.parameters(), 1e-6)
    step = 0
    for epoch in range(args.epochs):
        for images, boxes in loader:
            loss = nn.functional.l1_loss(net(images / 255.0).view(-1, 20, 5), boxes)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        print(f"[{epoch}] step={step} loss={loss.item():.2f}")


if __name__ == "__main__":
    main()
