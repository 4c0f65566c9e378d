# SPDX-License-Identifier: Apache-2.0
"""Blocks of tokens for a language model: no image anywhere."""

import os

import loops
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Blocks(Dataset):
    def __init__(self, path, length=256):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // 16

    def __getitem__(self, i):
        start = min(16 * i, len(self.tokens) - self.length - 1)
        block = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return block[:-1], block[1:]


def main():
    args = loops.parse(batch_size=64)
    dataset = Blocks(os.path.join(args.data, "tokens.bin"))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
