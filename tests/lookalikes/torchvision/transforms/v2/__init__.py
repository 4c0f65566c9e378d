# SPDX-License-Identifier: Apache-2.0
from torchvision.transforms.v2._augment import CutMix, MixUp
from torchvision.transforms.v2._container import Compose, RandomChoice
from torchvision.transforms.v2._geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from torchvision.transforms.v2._misc import Normalize, ToDtype
from torchvision.transforms.v2._type_conversion import ToImage
