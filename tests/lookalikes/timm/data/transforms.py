# SPDX-License-Identifier: Apache-2.0
import numpy as np
import torch
from torchvision.transforms.functional import InterpolationMode, resize_to


class RandomResizedCropAndInterpolation:
    def __init__(self, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bilinear"):
        self.size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        both = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
        self.interpolation = both if interpolation == "random" else InterpolationMode(interpolation)
        self.scale, self.ratio = scale, ratio

    def __call__(self, image):
        return resize_to(image, self.size, "bilinear")


class MaybePILToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class MaybeToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
