# SPDX-License-Identifier: Apache-2.0
from albumentations.augmentations.resize import Resize
from albumentations.core.transforms_interface import BasicTransform


class RandomResizedCrop(BasicTransform):
    def __init__(self, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation=1, p=1.0):
        super().__init__(p)
        self.size, self.scale, self.ratio, self.interpolation = size, scale, ratio, interpolation

    def apply(self, image):
        return Resize(*self.size).apply(image)


class CenterCrop(BasicTransform):
    def __init__(self, height, width, p=1.0):
        super().__init__(p)
        self.height, self.width, self.pad_if_needed = height, width, False
