# SPDX-License-Identifier: Apache-2.0
from torchvision.datasets.folder import ImageFolder
