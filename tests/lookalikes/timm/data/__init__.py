# SPDX-License-Identifier: Apache-2.0
from timm.data.loader import PrefetchLoader, fast_collate
from timm.data.transforms import MaybePILToTensor, MaybeToTensor, RandomResizedCropAndInterpolation
