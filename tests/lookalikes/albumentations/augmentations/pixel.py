# SPDX-License-Identifier: Apache-2.0
import numpy as np

from albumentations.core.transforms_interface import BasicTransform


class GaussNoise(BasicTransform):
    pass


class Normalize(BasicTransform):
    def __init__(self, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), max_pixel_value=255.0, p=1.0):
        super().__init__(p)
        self.mean, self.std, self.max_pixel_value, self.normalization = mean, std, max_pixel_value, "standard"

    def apply(self, image):
        return (image.astype(np.float32) / 255 - np.float32(self.mean)) / np.float32(self.std)
