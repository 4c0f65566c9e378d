# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DATA = sys.argv[1]
WORKERS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
EPOCHS = 8


class NpyFolder(Dataset):
    def __init__(self, root):
        self.names = sorted(os.listdir(root))
        self.root = root

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        a = np.load(os.path.join(self.root, self.names[i]))
        if random.random() < 0.5:
            a = a[:, ::-1]
        y, x = random.randint(0, 20), random.randint(0, 20)
        crop = np.ascontiguousarray(a[y : y + 160, x : x + 160])
        return crop, i % 10


def main():
    torch.set_num_threads(1)
    loader = DataLoader(NpyFolder(DATA), batch_size=16, shuffle=True, num_workers=WORKERS, drop_last=True)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 5, 4), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    it = 0
    for epoch in range(EPOCHS):
        for x, y in loader:
            out = net(x.permute(0, 3, 1, 2).float() / 255)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            it += 1
            if it % 5 == 0:
                print("epoch %d it %d loss %.3f" % (epoch, it, loss.item()))


if __name__ == "__main__":
    main()
