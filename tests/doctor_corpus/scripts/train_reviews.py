# SPDX-License-Identifier: Apache-2.0
"""Sentiment from character n-grams; texts are encoded in the training loop, just before they are used."""

import argparse
import json
import os
import zlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

BUCKETS = 20_000


def encode(texts, length=1024):
    rows = []
    for text in texts:
        ids = []
        for word in text.split():
            padded = f"<{word}>"
            for n in (3, 4):
                for i in range(len(padded) - n + 1):
                    ids.append(zlib.crc32(padded[i : i + n].encode()) % BUCKETS)
        rows.append((ids + [0] * length)[:length])
    return torch.tensor(rows)


def collate_raw(rows):
    return [r["text"] for r in rows], torch.tensor([r["stars"] for r in rows])


def collate_encoded(rows):
    texts, stars = collate_raw(rows)
    return encode(texts), stars


if __name__ == "__main__":
    arg = argparse.ArgumentParser()
    arg.add_argument("folder")
    arg.add_argument("--encode-in-workers", action="store_true")
    arg.add_argument("--workers", type=int, default=1)
    arg.add_argument("--accumulate", type=int, default=2)
    arg.add_argument("--steps", type=int, default=600)
    arg = arg.parse_args()

    with open(os.path.join(arg.folder, "reviews.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    loader = DataLoader(
        rows, batch_size=16, shuffle=True, num_workers=arg.workers,
        collate_fn=collate_encoded if arg.encode_in_workers else collate_raw,
    )  # fmt: skip
    torch.set_num_threads(1)
    bag = nn.EmbeddingBag(BUCKETS, 48, mode="mean")
    model = nn.Sequential(bag, nn.Linear(48, 512), nn.ReLU(), nn.Linear(512, 5))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    step = 0
    for epoch in range(100):
        for texts, stars in loader:
            ids = texts if arg.encode_in_workers else encode(texts)
            loss = nn.functional.cross_entropy(model(ids), stars) / arg.accumulate
            loss.backward()
            step += 1
            if step % arg.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            if step % 10 == 0:
                print(f"epoch {epoch} batch {step} loss {loss.item():.3f}")
            if step >= arg.steps:
                raise SystemExit
