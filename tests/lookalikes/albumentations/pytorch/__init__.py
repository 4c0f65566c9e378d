# SPDX-License-Identifier: Apache-2.0
from albumentations.pytorch.transforms import ToTensorV2
