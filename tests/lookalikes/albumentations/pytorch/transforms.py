# SPDX-License-Identifier: Apache-2.0
import torch

from albumentations.core.transforms_interface import BasicTransform


class ToTensorV2(BasicTransform):
    def __init__(self, p=1.0):
        super().__init__(p)
        self.transpose_mask = False

    def apply(self, image):
        return torch.from_numpy(image).permute(2, 0, 1)
