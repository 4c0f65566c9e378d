# SPDX-License-Identifier: Apache-2.0
"""A training run that must not lose anything when the machine goes down: it saves itself all the time."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def save(path, model, optimizer, step):
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    features, targets = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
    loader = DataLoader(TensorDataset(features, targets), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    step = 0
    while step < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0:
                save(args.out / "latest.pt", model, optimizer, step)
            if step % 5 == 0:
                print(f"step {step}: {loss.item():.4f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
