# SPDX-License-Identifier: Apache-2.0
class StandardTransform:
    def __init__(self, transform=None, target_transform=None):
        self.transform, self.target_transform = transform, target_transform
