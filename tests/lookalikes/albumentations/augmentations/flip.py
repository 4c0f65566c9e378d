# SPDX-License-Identifier: Apache-2.0
from albumentations.core.transforms_interface import BasicTransform


class HorizontalFlip(BasicTransform):
    pass
