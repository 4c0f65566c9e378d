# SPDX-License-Identifier: Apache-2.0
import os

from PIL import Image
from torch.utils.data import Dataset

from torchvision.datasets.vision import StandardTransform


def default_loader(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class ImageFolder(Dataset):
    def __init__(self, root, transform=None, target_transform=None, loader=default_loader):
        self.root, self.transform, self.target_transform = root, transform, target_transform
        self.transforms = StandardTransform(transform, target_transform)
        self.loader = loader
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.class_to_idx = {name: at for at, name in enumerate(self.classes)}
        self.samples = [
            (os.path.join(root, name, file), at)
            for name, at in self.class_to_idx.items()
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.imgs, self.targets = self.samples, [at for _, at in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        image = self.loader(path)
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)
