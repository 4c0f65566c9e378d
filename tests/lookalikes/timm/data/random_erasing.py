# SPDX-License-Identifier: Apache-2.0
import math


class RandomErasing:
    def __init__(
        self, probability=0.5, min_area=0.02, max_area=1 / 3, min_aspect=0.3, mode="const", max_count=1
    ):
        self.probability, self.min_area, self.max_area = probability, min_area, max_area
        self.log_aspect_ratio = (math.log(min_aspect), math.log(1 / min_aspect))
        self.min_count, self.max_count, self.num_splits, self.mode = 1, max_count, 0, mode

    def __call__(self, image):
        return image
