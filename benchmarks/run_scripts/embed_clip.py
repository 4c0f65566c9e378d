# SPDX-License-Identifier: Apache-2.0
"""Images as CLIP takes them: made small as a whole, bicubic, and the centre cropped."""

import os

import loops
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor


def convert_image_to_rgb(image):
    return image.convert("RGB")


def preprocess(size):
    return Compose(
        [
            Resize(size, interpolation=InterpolationMode.BICUBIC),
            CenterCrop(size),
            convert_image_to_rgb,
            ToTensor(),
            Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ]
    )


class Captions(Dataset):
    def __init__(self, root):
        names = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
        self.paths = sorted(names)
        self.preprocess = preprocess(224)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        return self.preprocess(Image.open(self.paths[idx])), f"a photo, number {idx}"


def main():
    args = loops.parse()
    dataset = Captions(os.path.join(args.data, "train"))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=False, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
