# SPDX-License-Identifier: Apache-2.0
import math

import torch

from torchvision.transforms import functional as F
from torchvision.transforms.functional import InterpolationMode, crop_center, resize_short, resize_to


def _two(size):
    return (size, size) if isinstance(size, int) else tuple(size)


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        return F.to_tensor(image)


class PILToTensor:
    def __call__(self, image):
        return F.pil_to_tensor(image)


class Normalize(torch.nn.Module):
    def __init__(self, mean, std, inplace=False):
        super().__init__()
        self.mean, self.std, self.inplace = mean, std, inplace

    def forward(self, image):
        return F.normalize(image, self.mean, self.std, self.inplace)


class Resize(torch.nn.Module):
    def __init__(self, size, interpolation=InterpolationMode.BILINEAR, max_size=None, antialias=True):
        super().__init__()
        self.size, self.max_size, self.interpolation, self.antialias = (
            size,
            max_size,
            interpolation,
            antialias,
        )

    def forward(self, image):
        resize = resize_short if isinstance(self.size, int) else resize_to
        return resize(image, self.size, self.interpolation)


class CenterCrop(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = _two(size)

    def forward(self, image):
        return crop_center(image, self.size)


class RandomCrop(torch.nn.Module):
    def __init__(self, size, padding=None, pad_if_needed=False, fill=0, padding_mode="constant"):
        super().__init__()
        self.size, self.padding, self.pad_if_needed = _two(size), padding, pad_if_needed
        self.fill, self.padding_mode = fill, padding_mode

    def forward(self, image):
        return crop_center(image, self.size)


class RandomResizedCrop(torch.nn.Module):
    def __init__(
        self, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation=InterpolationMode.BILINEAR
    ):
        super().__init__()
        self.size, self.interpolation, self.antialias = _two(size), interpolation, True
        self.scale, self.ratio = scale, ratio

    @staticmethod
    def get_params(image, scale, ratio):
        """Draw a box as the real one does: the same numbers of torch's, in the same order."""
        width, height = image.size
        low, high = torch.log(torch.tensor(ratio))
        for _ in range(10):
            area = height * width * torch.empty(1).uniform_(scale[0], scale[1]).item()
            aspect = torch.exp(torch.empty(1).uniform_(low, high)).item()
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                top = torch.randint(0, height - h + 1, size=(1,)).item()
                return top, torch.randint(0, width - w + 1, size=(1,)).item(), h, w
        w, h = width, height
        if width / height < min(ratio):
            h = round(width / min(ratio))
        elif width / height > max(ratio):
            w = round(height * max(ratio))
        return (height - h) // 2, (width - w) // 2, h, w

    def forward(self, image):
        box = self.get_params(image, self.scale, self.ratio)
        return F.resized_crop(image, *box, self.size, self.interpolation)


class RandomHorizontalFlip(torch.nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, image):
        return F.hflip(image) if torch.rand(1) < self.p else image


class _Unchanged(torch.nn.Module):
    """Of a transform only the attributes are looked at."""

    def forward(self, image):
        return image


class ColorJitter(torch.nn.Module):
    def __init__(self, brightness=0, contrast=0, saturation=0, hue=0):
        super().__init__()
        for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
            setattr(self, name, (max(0, 1 - value), 1 + value) if value else None)
        self.hue = (-hue, hue) if hue else None

    def forward(self, image):
        order = torch.randperm(4)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [None if r is None else float(torch.empty(1).uniform_(*r)) for r in ranges]
        for number in order:
            if factors[number] is not None and number == 3:
                image = F.adjust_hue(image, factors[3])
            elif factors[number] is not None:
                image = F.adjust(image, ("Brightness", "Contrast", "Color")[number], factors[number])
        return image


class RandomGrayscale(torch.nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.p = p

    def forward(self, image):
        return F.to_grayscale(image, len(image.getbands())) if torch.rand(1) < self.p else image


class GaussianBlur(_Unchanged):
    def __init__(self, kernel_size, sigma=(0.1, 2.0)):
        super().__init__()
        self.kernel_size, self.sigma = _two(kernel_size), sigma


class RandomErasing(_Unchanged):
    def __init__(self, p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=0, inplace=False):
        super().__init__()
        self.p, self.scale, self.ratio, self.value, self.inplace = p, scale, ratio, value, inplace


class RandomApply(torch.nn.Module):
    def __init__(self, transforms, p=0.5):
        super().__init__()
        self.transforms, self.p = transforms, p

    def forward(self, image):
        if self.p >= torch.rand(1):
            for transform in self.transforms:
                image = transform(image)
        return image


class Lambda:
    def __init__(self, lambd):
        self.lambd = lambd

    def __call__(self, image):
        return self.lambd(image)
