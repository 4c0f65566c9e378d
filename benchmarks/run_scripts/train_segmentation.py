# SPDX-License-Identifier: Apache-2.0
"""Photographs with masks: both are cropped, resized and flipped alike."""

import os
import random

import loops
import numpy as np
import torch
import torchvision.transforms.functional as TF
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import InterpolationMode, RandomResizedCrop


class Masks(Dataset):
    def __init__(self, root, size=224):
        self.images_dir, self.masks_dir = os.path.join(root, "images"), os.path.join(root, "masks")
        self.names = sorted(os.path.splitext(name)[0] for name in os.listdir(self.images_dir))
        self.size = [size, size]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, idx):
        image = Image.open(os.path.join(self.images_dir, self.names[idx] + ".jpg")).convert("RGB")
        mask = Image.open(os.path.join(self.masks_dir, self.names[idx] + ".png"))
        i, j, h, w = RandomResizedCrop.get_params(image, scale=(0.3, 1.0), ratio=(0.75, 1.333))
        image = TF.resized_crop(image, i, j, h, w, self.size)
        mask = TF.resized_crop(mask, i, j, h, w, self.size, InterpolationMode.NEAREST)
        if random.random() > 0.5:
            image, mask = TF.hflip(image), TF.hflip(mask)
        image = TF.normalize(TF.to_tensor(image), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        return image, torch.as_tensor(np.array(mask), dtype=torch.int64)


def main():
    args = loops.parse()
    dataset = Masks(os.path.join(args.data, "pairs"))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
