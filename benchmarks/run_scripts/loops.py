# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: their options, the loop over epochs, a note on every batch."""

import argparse
import itertools
import os
import random
import time
import zlib

import numpy as np
import torch


def parse(**defaults):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="as benchmarks/run.py makes it")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of an epoch, at most")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--context", choices=("fork", "spawn", "forkserver"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--digest", metavar="FILE", help="a checksum of every batch")
    parser.add_argument("--train", action="store_true", help="a small network, and print its losses")
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    return args


def workers(args):
    """Return what the DataLoaders of these scripts are given beside dataset, batch size and order."""
    if not args.workers:
        return {"num_workers": 0}
    options = {"num_workers": args.workers, "persistent_workers": args.persistent}
    return options | ({"multiprocessing_context": args.context} if args.context else {})


def run(loader, args, sampler=None):
    notes = open(args.digest, "w") if args.digest else None
    network = Network() if args.train else None
    print("start", flush=True)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        images, began = 0, time.perf_counter()
        for step, batch in enumerate(itertools.islice(loader, args.steps)):
            images += len(first_tensor(batch))
            if notes:
                print(epoch, step, f"{checksum(batch):08x}", file=notes, flush=True)
            if network:
                print(f"loss {network.train(*batch).hex()}", flush=True)
        print(f"epoch {epoch}: {images} images, {images / (time.perf_counter() - began):.1f}/s", flush=True)
        if notes:
            print(epoch, "random states", f"{checksum(random_states()):08x}", file=notes, flush=True)


class Network:
    def __init__(self):
        nn = torch.nn
        layers = nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        self.layers = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.layers.parameters(), 0.05, momentum=0.9)

    def train(self, images, labels):
        loss = torch.nn.functional.cross_entropy(self.layers(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        if torch.distributed.is_initialized():
            for weights in self.layers.parameters():
                torch.distributed.all_reduce(weights.grad)
        self.optimizer.step()
        return loss.item()


def first_tensor(value):
    while isinstance(value, (list, tuple, dict)):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def checksum(value, crc=0):
    """Return a checksum of everything in a batch: types, shapes, layouts and bytes."""
    if isinstance(value, torch.Tensor):
        facts = (type(value).__name__, value.dtype, tuple(value.shape), value.stride())
        return zlib.crc32(value.contiguous().numpy().tobytes(), zlib.crc32(repr(facts).encode(), crc))
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        crc = zlib.crc32(type(value).__name__.encode(), crc)
        for part in value:
            crc = checksum(part, crc)
        return crc
    if isinstance(value, np.ndarray):
        return zlib.crc32(value.tobytes(), crc)
    return zlib.crc32(repr(value).encode(), crc)


def random_states():
    return [random.getstate(), list(np.random.get_state()), torch.get_rng_state()]


def join_ranks():
    """Join the other ranks that torchrun has started; return whether there are any."""
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        return False
    torch.distributed.init_process_group("gloo")
    return True
