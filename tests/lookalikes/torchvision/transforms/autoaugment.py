# SPDX-License-Identifier: Apache-2.0
import torch


class RandAugment(torch.nn.Module):
    def __init__(self, num_ops=2, magnitude=9):
        super().__init__()
        self.num_ops, self.magnitude = num_ops, magnitude

    def forward(self, image):
        return image
