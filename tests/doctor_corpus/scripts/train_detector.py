# SPDX-License-Identifier: Apache-2.0
"""A toy detector whose training loop keeps its precision up to date at every step, in plain Python."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BOXES = 40


def iou(a, b):
    left, top = max(a[0], b[0]), max(a[1], b[1])
    right, bottom = min(a[2], b[2]), min(a[3], b[3])
    overlap = max(0.0, right - left) * max(0.0, bottom - top)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap
    return overlap / area if area > 0 else 0.0


def update_precision(state, predicted, wanted):
    for boxes, truths in zip(predicted.tolist(), wanted.tolist(), strict=True):
        taken = set()
        for box in boxes:
            best, which = 0.0, None
            for number, truth in enumerate(truths):
                value = iou(box, truth)
                if value > best and number not in taken:
                    best, which = value, number
            if best > 0.5:
                taken.add(which)
                state["hits"] += 1
            state["boxes"] += 1
    return state["hits"] / max(1, state["boxes"])


def corners(raw):
    centre, size = raw[..., :2].sigmoid(), raw[..., 2:].sigmoid() * 0.2
    return torch.cat([centre - size, centre + size], -1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--metric-every", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(3)
    data = TensorDataset(torch.rand(512, 3, 64, 64), corners(torch.randn(512, BOXES, 4)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, BOXES * 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state, precision, step = {"hits": 0, "boxes": 0}, 0.0, 0
    while step < args.steps:
        for images, boxes in loader:
            predicted = corners(model(images).view(-1, BOXES, 4))
            loss = nn.functional.smooth_l1_loss(predicted, boxes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.metric_every == 0:
                precision = update_precision(state, predicted.detach(), boxes)
            if step % 5 == 0:
                print(f"step {step}: loss {loss.item():.4f} precision {precision:.3f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
