# SPDX-License-Identifier: Apache-2.0
"""albumentations in small: see ../README.md."""

from albumentations.augmentations.crops import CenterCrop, RandomResizedCrop
from albumentations.augmentations.flip import HorizontalFlip
from albumentations.augmentations.pixel import GaussNoise, Normalize
from albumentations.augmentations.resize import Resize
from albumentations.core.composition import Compose
