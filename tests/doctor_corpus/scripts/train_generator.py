# SPDX-License-Identifier: Apache-2.0
"""An autoencoder; every step leaves pictures of what it makes and a line in a log that survives a crash."""

import argparse
import csv
import os

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self, folder):
        self.frames = np.load(os.path.join(folder, "frames.npy"), mmap_mode="r")

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return torch.from_numpy(self.frames[i][:, ::4, ::4].astype(np.float32) / 255)


def write_previews(folder, step, pictures):
    for number, picture in enumerate(pictures):
        pixels = (picture.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
        path = os.path.join(folder, f"preview_{step % 50:03d}_{number}.png")
        with open(path, "wb") as f:
            Image.fromarray(pixels).resize((384, 384)).save(f, "png")
            f.flush()
            os.fsync(f.fileno())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--preview-every", type=int, default=1)
    ap.add_argument("--epochs", type=int, default=60)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    loader = DataLoader(Frames(args.data), batch_size=8, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    opt = torch.optim.Adam(net.parameters(), 2e-4)
    log = open(os.path.join(args.out, "log.csv"), "w", newline="")
    writer = csv.writer(log)
    step = 0
    for _ in range(args.epochs):
        for x in loader:
            made = net(x)
            loss = nn.functional.mse_loss(made, x)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % args.preview_every == 0:
                write_previews(args.out, step, made.detach()[:4])
                writer.writerow([step, loss.item()])
                log.flush()
                os.fsync(log.fileno())
            if step % 5 == 0:
                print(f"step {step} mse {loss.item():.4f}")
    log.close()


if __name__ == "__main__":
    main()
