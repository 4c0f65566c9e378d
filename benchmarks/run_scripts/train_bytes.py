# SPDX-License-Identifier: Apache-2.0
"""Images out of one archive, decoded from bytes in memory as datasets in columns hold them."""

import os
import tarfile
from io import BytesIO

import loops
import torchvision.transforms as T
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

ORIENTATION = 0x0112


def decode_image(data):
    image = Image.open(BytesIO(data))
    image.load()
    if image.getexif().get(ORIENTATION) is not None:
        image = ImageOps.exif_transpose(image)
    return image if image.mode == "RGB" else image.convert("RGB")


class Archive(Dataset):
    def __init__(self, path, transform):
        self.path, self.transform, self.file = path, transform, None
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile()]
        self.rows = [(m.offset_data, m.size, os.path.dirname(m.name)) for m in members]
        self.classes = sorted({name for _, _, name in self.rows})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.file is None:
            self.file = open(self.path, "rb")
        offset, size, name = self.rows[index]
        self.file.seek(offset)
        image = decode_image(self.file.read(size))
        return {"pixel_values": self.transform(image), "label": self.classes.index(name)}


def main():
    args = loops.parse()
    transform = T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
        ]
    )
    dataset = Archive(os.path.join(args.data, "train.tar"), transform)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, **loops.workers(args))
    loops.run(loader, args)


if __name__ == "__main__":
    main()
