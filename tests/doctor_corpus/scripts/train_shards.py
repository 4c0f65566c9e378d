# SPDX-License-Identifier: Apache-2.0
"""Train on a stream of photographs that lie in shards; each worker takes every n-th shard."""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, folder, shards, rounds):
        super().__init__()
        paths = sorted(Path(folder).rglob("*.jpg")) * rounds
        self.shards = [paths[number::shards] for number in range(shards)]
        self.classes = sorted({path.parent.name for path in paths})

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for path in itertools.chain.from_iterable(self.shards[first::step]):
            image = Image.open(path).convert("RGB").resize((80, 80))
            yield (
                torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255,
                self.classes.index(path.parent.name),
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Shards(args.folder, args.shards, args.rounds), batch_size=8, num_workers=args.workers)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
