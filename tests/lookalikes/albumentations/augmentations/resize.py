# SPDX-License-Identifier: Apache-2.0
import numpy as np
from PIL import Image

from albumentations.core.transforms_interface import BasicTransform


class Resize(BasicTransform):
    def __init__(self, height, width, interpolation=1, p=1.0):
        super().__init__(p)
        self.height, self.width, self.interpolation = height, width, interpolation

    def apply(self, image):
        return np.asarray(Image.fromarray(image).resize((self.width, self.height)))
