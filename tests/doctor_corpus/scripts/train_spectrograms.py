# SPDX-License-Identifier: Apache-2.0
"""Sound classification on log-mel spectrograms. They are computed when a sound is read, or read from --cache."""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, WINDOW, HOP, BANDS = 16_000, 1024, 128, 64


def mel_filters():
    def to_mel(f):
        return 2595 * np.log10(1 + f / 700)

    points = 700 * (10 ** (np.linspace(to_mel(40), to_mel(RATE / 2), BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    up = (bins[None] - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    down = (points[2:, None] - bins[None]) / (points[2:] - points[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down))


FILTERS = mel_filters()


def log_mel(sound):
    frames = np.lib.stride_tricks.sliding_window_view(sound / 32768, WINDOW)[::HOP]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2
    return np.log(spectrum @ FILTERS.T + 1e-6).astype(np.float32)


class Sounds(Dataset):
    def __init__(self, folder, cache=None):
        self.folder, self.cache = folder, cache
        self.names = sorted(os.listdir(folder))
        self.labels = sorted({name.split("_")[0] for name in self.names})

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        name = self.names[i]
        if self.cache:
            features = np.load(os.path.join(self.cache, name))
        else:
            features = log_mel(np.load(os.path.join(self.folder, name)))
        return torch.from_numpy(features)[None], self.labels.index(name.split("_")[0])


def prepare(folder, cache):
    os.makedirs(cache, exist_ok=True)
    for name in sorted(os.listdir(folder)):
        np.save(os.path.join(cache, name), log_mel(np.load(os.path.join(folder, name))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--cache")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    if args.prepare:
        prepare(args.folder, args.cache)
        return
    torch.set_num_threads(1)
    dataset = Sounds(args.folder, args.cache)
    loader = DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    )
    opt = torch.optim.Adam(net.parameters())
    seen = 0
    for epoch in range(args.epochs):
        for features, labels in loader:
            loss = nn.functional.cross_entropy(net(features), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += 1
            if seen % 5 == 0:
                print(f"epoch {epoch}, batch {seen}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
