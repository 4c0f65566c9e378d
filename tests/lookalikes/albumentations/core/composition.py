# SPDX-License-Identifier: Apache-2.0
class Compose:
    def __init__(self, transforms, p=1.0):
        self.transforms, self.p, self.processors, self.seed = transforms, p, {}, None

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image=image)["image"]
        return {"image": image}
