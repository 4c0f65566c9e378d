# SPDX-License-Identifier: Apache-2.0
"""Compute an embedding of every photograph of a collection, over and over as new ones come in."""

import itertools
import os
import sys

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

cv2.setNumThreads(1)
WORKERS = int(os.environ.get("EMBED_WORKERS", "1"))
ROUNDS = 60


class Stream(IterableDataset):
    def __init__(self, folder):
        super().__init__()
        self.names = sorted(
            os.path.join(where, name)
            for where, _, names in os.walk(folder)
            for name in names
            if name.endswith("jpg")
        )

    def __iter__(self):
        info = get_worker_info()
        start, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for name in itertools.islice(
            itertools.chain.from_iterable([self.names] * ROUNDS), start, None, stride
        ):
            raw = np.fromfile(name, np.uint8)
            image = cv2.imdecode(raw, cv2.IMREAD_COLOR)
            image = cv2.GaussianBlur(image, (0, 0), 1.6)
            image = cv2.resize(image, (112, 112), interpolation=cv2.INTER_LINEAR)
            yield name, (image[:, :, ::-1].transpose(2, 0, 1) / np.float32(255)).astype(np.float32)


@torch.no_grad()
def main(folder):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()
    ).eval()
    embeddings = {}
    for i, (names, images) in enumerate(DataLoader(Stream(folder), batch_size=8, num_workers=WORKERS)):
        vectors = torch.nn.functional.normalize(model(images))
        embeddings.update(zip(names, vectors, strict=True))
        if i % 10 == 0:
            print(f"batch {i}: {len(embeddings)} embeddings")


if __name__ == "__main__":
    main(sys.argv[1])
