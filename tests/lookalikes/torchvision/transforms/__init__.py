# SPDX-License-Identifier: Apache-2.0
from torchvision.transforms import functional
from torchvision.transforms.autoaugment import RandAugment
from torchvision.transforms.functional import InterpolationMode
from torchvision.transforms.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    GaussianBlur,
    Lambda,
    Normalize,
    PILToTensor,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)
