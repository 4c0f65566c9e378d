# SPDX-License-Identifier: Apache-2.0
import random


class BasicTransform:
    def __init__(self, p=0.5):
        self.p, self.params, self.processors, self.seed, self.py_random = p, {}, {}, None, random.Random()

    def __call__(self, image):
        return {"image": self.apply(image)}

    def apply(self, image):
        return image
