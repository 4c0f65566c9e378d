# SPDX-License-Identifier: Apache-2.0
from enum import Enum

from PIL import Image


class InterpolationMode(Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def resize_to(image, size, interpolation):
    word = getattr(interpolation, "value", interpolation)
    return image.resize((size[1], size[0]), Image.Resampling[word.upper()])


def resize_short(image, side, interpolation):
    width, height = image.size
    short, long = min(width, height), max(width, height)
    other = int(side * long / short)
    return resize_to(image, (side, other) if height <= width else (other, side), interpolation)


def crop_center(image, size):
    left, top = round((image.width - size[1]) / 2), round((image.height - size[0]) / 2)
    return image.crop((left, top, left + size[1], top + size[0]))
