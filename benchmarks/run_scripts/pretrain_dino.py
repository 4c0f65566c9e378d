# SPDX-License-Identifier: Apache-2.0
"""Self-distillation: two large and eight small crops of every image, changed in colour and blurred."""

import os
import random

import loops
from PIL import ImageFilter, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


class GaussianBlur:
    def __init__(self, p=0.5, radius_min=0.1, radius_max=2.0):
        self.prob, self.radius_min, self.radius_max = p, radius_min, radius_max

    def __call__(self, img):
        if random.random() > self.prob:
            return img
        radius = random.uniform(self.radius_min, self.radius_max)
        return img.filter(ImageFilter.GaussianBlur(radius=radius))


class Solarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


class DataAugmentation:
    def __init__(self, local_crops_number=8):
        jitter = transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
        flip_and_color_jitter = [
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.RandomApply([jitter], p=0.8),
            transforms.RandomGrayscale(p=0.2),
        ]
        normalize = [
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]

        def crop(size, scale, *more):
            bicubic = transforms.InterpolationMode.BICUBIC
            first = transforms.RandomResizedCrop(size, scale=scale, interpolation=bicubic)
            return transforms.Compose([first, *flip_and_color_jitter, *more, *normalize])

        self.global_transfo1 = crop(224, (0.4, 1.0), GaussianBlur(1.0))
        self.global_transfo2 = crop(224, (0.4, 1.0), GaussianBlur(0.1), Solarization(0.2))
        self.local_crops_number = local_crops_number
        self.local_transfo = crop(96, (0.05, 0.4), GaussianBlur(p=0.5))

    def __call__(self, image):
        crops = [self.global_transfo1(image), self.global_transfo2(image)]
        return crops + [self.local_transfo(image) for _ in range(self.local_crops_number)]


def main():
    args = loops.parse(batch_size=16)
    dataset = ImageFolder(os.path.join(args.data, "train"), transform=DataAugmentation())
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, **loops.workers(args)
    )
    loops.run(loader, args)


if __name__ == "__main__":
    main()
