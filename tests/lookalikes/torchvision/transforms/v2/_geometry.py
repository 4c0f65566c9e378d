# SPDX-License-Identifier: Apache-2.0
from torchvision.transforms import transforms as v1
from torchvision.transforms.functional import resize_short, resize_to


class Resize(v1.Resize):
    def __init__(self, size, interpolation="bilinear", max_size=None, antialias=True):
        super().__init__(size, interpolation, max_size, antialias)
        self.size = [size] if isinstance(size, int) else list(size)

    def forward(self, image):
        if len(self.size) == 1:
            return resize_short(image, self.size[0], self.interpolation)
        return resize_to(image, self.size, self.interpolation)


class CenterCrop(v1.CenterCrop):
    pass


class RandomResizedCrop(v1.RandomResizedCrop):
    pass


class RandomHorizontalFlip(v1.RandomHorizontalFlip):
    pass
