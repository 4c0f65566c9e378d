# SPDX-License-Identifier: Apache-2.0
"""A classifier of feature vectors on the GPU; the running accuracy is counted answer by answer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mixer(width=256, depth=12):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--count-on-gpu", action="store_true")
    args = ap.parse_args()
    device = torch.device("cuda")
    data = TensorDataset(torch.randn(65_536, 64), torch.randint(0, 10, (65_536,)))
    loader = DataLoader(
        data, batch_size=512, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
    )
    model = mixer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    correct, total, step = 0, 0, 0
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            guesses = scores.argmax(1)
            if args.count_on_gpu:
                correct += (guesses == y).sum()
            else:
                for i in range(len(y)):
                    if guesses[i].item() == y[i].item():
                        correct += 1
            total += len(y)
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f} accuracy {float(correct) / total:.3f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
