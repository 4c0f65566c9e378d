# SPDX-License-Identifier: Apache-2.0
import torch


def fast_collate(batch):
    return torch.stack([image for image, _ in batch]), torch.tensor([label for _, label in batch])


class PrefetchLoader:
    def __init__(
        self,
        loader,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        channels=3,
        device=torch.device("cpu"),
        img_dtype=None,
        fp16=False,
        re_prob=0.0,
        re_mode="const",
        re_count=1,
        re_num_splits=0,
    ):
        self.loader = loader
        self.mean, self.std = (
            torch.tensor([255 * x for x in row]).view(1, channels, 1, 1) for row in (mean, std)
        )

    def __iter__(self):
        for images, labels in self.loader:
            yield (images.float() - self.mean) / self.std, labels
