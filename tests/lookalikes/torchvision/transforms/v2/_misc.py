# SPDX-License-Identifier: Apache-2.0
import torch

from torchvision.transforms import transforms as v1


class Normalize(v1.Normalize):
    def __init__(self, mean, std, inplace=False):
        super().__init__(list(mean), list(std), inplace)


class ToDtype(torch.nn.Module):
    def __init__(self, dtype, scale=False):
        super().__init__()
        self.dtype, self.scale = dtype, scale

    def forward(self, image):
        image = image.to(self.dtype)
        return image / 255 if self.scale else image
