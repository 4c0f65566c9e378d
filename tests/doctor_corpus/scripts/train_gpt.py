# SPDX-License-Identifier: Apache-2.0
# A small language model on a file of tokens. Gradient accumulation, cosine schedule, no frills.
import math
import os
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    block: int = 64
    vocab: int = 512
    layers: int = 3
    heads: int = 4
    width: int = 128
    batch: int = 8
    accumulate: int = 2
    steps: int = 400
    lr: float = 3e-4


class Tokens(Dataset):
    def __init__(self, path, block):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.block = block

    def __len__(self):
        return (len(self.data) - 1) // self.block

    def __getitem__(self, i):
        piece = torch.from_numpy(self.data[i * self.block : (i + 1) * self.block + 1].astype(np.int64))
        return piece[:-1], piece[1:]


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.width)
        self.pos = nn.Embedding(c.block, c.width)
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, 4 * c.width, 0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, c.layers, enable_nested_tensor=False)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(c.block))

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        return self.head(self.blocks(h, mask=self.mask, is_causal=True))


def main(folder):
    c = Config()
    model = GPT(c)
    loader = DataLoader(
        Tokens(os.path.join(folder, "train.bin"), c.block), c.batch, shuffle=True, num_workers=0
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=c.lr)
    micro = 0
    for step in range(c.steps):
        if step == 0:
            batches = iter(loader)
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * c.lr * (1 + math.cos(math.pi * step / c.steps))
        for _ in range(c.accumulate):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / c.accumulate
            loss.backward()
            micro += 1
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} ({micro} micro-batches) loss {loss.item() * c.accumulate:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
