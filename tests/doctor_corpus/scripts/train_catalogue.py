# SPDX-License-Identifier: Apache-2.0
"""Recommendations: the catalogue is a Python object that goes to every spawned worker, in short epochs."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Catalogue(Dataset):
    def __init__(self, articles, samples):
        draw = random.Random(0)
        self.articles = [
            {"number": n, "name": f"article {n}", "words": [draw.randrange(5000) for _ in range(6)]}
            for n in range(articles)
        ]
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        article = self.articles[random.randrange(len(self.articles))]
        return torch.tensor(article["words"]), article["number"] % 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--articles", type=int, default=60_000)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Catalogue(args.articles, args.samples),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=args.persistent,
    )
    model = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        for words, labels in loader:
            loss = nn.functional.cross_entropy(model(words), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch}: step {step}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
