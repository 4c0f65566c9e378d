# SPDX-License-Identifier: Apache-2.0
from enum import Enum

import numpy as np
import torch
from PIL import Image, ImageEnhance


class InterpolationMode(Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def to_tensor(image):
    return pil_to_tensor(image).contiguous().float().div(255)


def pil_to_tensor(image):
    pixels = torch.from_numpy(np.array(image, copy=True))
    return pixels.view(image.height, image.width, len(image.getbands())).permute(2, 0, 1)


def normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(row, dtype=image.dtype).view(-1, 1, 1) for row in (mean, std))
    return (image if inplace else image.clone()).sub_(mean).div_(std)


def resize(image, size, interpolation=InterpolationMode.BILINEAR, max_size=None, antialias=True):
    if isinstance(size, int) or len(size) == 1:
        return resize_short(image, size if isinstance(size, int) else size[0], interpolation)
    return resize_to(image, size, interpolation)


def resize_to(image, size, interpolation):
    word = getattr(interpolation, "value", interpolation)
    number = word if isinstance(word, int) else Image.Resampling[word.upper()]
    wanted = (size[1], size[0])
    return image if image.size == wanted else image.resize(wanted, number)


def resize_short(image, side, interpolation):
    width, height = image.size
    short, long = min(width, height), max(width, height)
    other = int(side * long / short)
    return resize_to(image, (side, other) if height <= width else (other, side), interpolation)


def crop(image, top, left, height, width):
    return image.crop((left, top, left + width, top + height))


def crop_center(image, size):
    left, top = round((image.width - size[1]) / 2), round((image.height - size[0]) / 2)
    return image.crop((left, top, left + size[1], top + size[0]))


def resized_crop(image, top, left, height, width, size, interpolation=InterpolationMode.BILINEAR):
    return resize_to(crop(image, top, left, height, width), size, interpolation)


def hflip(image):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def adjust(image, enhancer, factor):
    return getattr(ImageEnhance, enhancer)(image).enhance(factor)


def adjust_hue(image, factor):
    hue, saturation, value = image.convert("HSV").split()
    levels = np.array(hue, dtype=np.uint8)
    with np.errstate(over="ignore"):
        levels += np.array(factor * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(levels), saturation, value)).convert(image.mode)


def to_grayscale(image, num_output_channels=3):
    gray = image.convert("L")
    return Image.merge("RGB", (gray, gray, gray)) if num_output_channels == 3 else gray
