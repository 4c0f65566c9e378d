# SPDX-License-Identifier: Apache-2.0
"""A small trainer class with modules, callbacks and a validation that is run rather often."""

import argparse
import os

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class PhotoData(Dataset):
    def __init__(self, files, train):
        self.files, self.train = files, train

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i])
        image.draft("RGB", (160, 160))
        image = image.convert("RGB").resize((96, 96))
        if self.train and np.random.rand() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, i % 4


class LitClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2), nn.ReLU(), nn.Conv2d(24, 48, 3, 2), nn.ReLU(), nn.Conv2d(48, 48, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        return (self(x).argmax(1) == y).float().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Printer:
    def on_train_batch_end(self, trainer, loss):
        if trainer.global_step % 5 == 0:
            print(f"step {trainer.global_step} train_loss {loss:.3f}")

    def on_validation_end(self, trainer, score):
        print(f"   validated after {trainer.global_step}: accuracy {score:.3f}")


class Trainer:
    def __init__(self, max_steps, val_check_interval, callbacks):
        self.max_steps, self.val_check_interval, self.callbacks = max_steps, val_check_interval, callbacks
        self.global_step = 0

    def call(self, name, *values):
        for callback in self.callbacks:
            getattr(callback, name)(self, *values)

    def validate(self, module, loader):
        module.eval()
        with torch.no_grad():
            scores = [module.validation_step(batch) for batch in loader]
        module.train()
        self.call("on_validation_end", torch.stack(scores).mean().item())

    def fit(self, module, train, val):
        optimizer = module.configure_optimizers()
        while True:
            for batch in train:
                optimizer.zero_grad()
                loss = module.training_step(batch)
                loss.backward()
                optimizer.step()
                self.global_step += 1
                self.call("on_train_batch_end", loss.item())
                if self.global_step % self.val_check_interval == 0:
                    self.validate(module, val)
                if self.global_step >= self.max_steps:
                    return


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--data-dir")
    ap.add_argument("--val-check-interval", type=int, default=20)
    ap.add_argument("--max-steps", type=int, default=600)
    ap.add_argument("--num-workers", type=int, default=1)
    args = ap.parse_args()
    torch.set_num_threads(1)
    files = sorted(os.path.join(d, f) for d, _, fs in os.walk(args.data_dir) for f in fs)
    options = {"num_workers": args.num_workers, "persistent_workers": args.num_workers > 0}
    train = DataLoader(PhotoData(files[::2], True), batch_size=8, shuffle=True, **options)
    val = DataLoader(PhotoData(files[1::2], False), batch_size=8, **options)
    Trainer(args.max_steps, args.val_check_interval, [Printer()]).fit(LitClassifier(), train, val)
