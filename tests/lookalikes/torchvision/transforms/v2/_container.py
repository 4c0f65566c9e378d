# SPDX-License-Identifier: Apache-2.0
import random

import torch


class Compose(torch.nn.Module):
    def __init__(self, transforms):
        super().__init__()
        self.transforms = transforms

    def forward(self, *values):
        for transform in self.transforms:
            values = (transform(*values),)
        return values[0]


class RandomChoice(torch.nn.Module):
    def __init__(self, transforms, p=None):
        super().__init__()
        self.transforms, self.p = transforms, p or [1 / len(transforms)] * len(transforms)

    def forward(self, *values):
        return random.choice(self.transforms)(*values)
