# SPDX-License-Identifier: Apache-2.0
"""Training that watches every weight: means and norms of all gradients go to the log at every step."""

import argparse
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mixer(width=256, depth=24):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--log-every", type=int, default=1)
    args = ap.parse_args()
    device = torch.device("cuda")
    data = TensorDataset(torch.randn(65_536, 64), torch.randint(0, 10, (65_536,)))
    loader = DataLoader(
        data, batch_size=256, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
    )
    model = mixer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    history, step = defaultdict(list), 0
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if step % args.log_every == 0:
                for name, p in model.named_parameters():
                    history[name + ".norm"].append(p.grad.norm().item())
                    history[name + ".mean"].append(p.grad.mean().item())
                    history[name + ".largest"].append(p.grad.abs().max().item())
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
