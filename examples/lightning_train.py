# SPDX-License-Identifier: Apache-2.0
"""Lightning on a pack: python examples/lightning_train.py PACK --devices 2; --resume goes on.

Lightning saves the state of the loader in its checkpoints, and loads it from there: nothing is to be written.
"""

import argparse
from collections.abc import Sequence

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import feedrate


class Net(lightning.LightningModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, stride=4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, len(feedrate.Dataset(options.pack, split="all").classes)),
        )

    def train_dataloader(self) -> feedrate.Loader:
        # Lightning calls this when the process group is there, so that the loader finds its rank.
        return feedrate.Loader(
            self.options.pack,
            self.options.batch_size,
            split="all",
            image=feedrate.RandomResizedCrop(64),
            flip=True,
            normalize="imagenet",
            device=self.device,
        )

    def training_step(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return loss_of(self.layers, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def loss_of(network: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, labels = batch
    return torch.nn.functional.cross_entropy(network(images), labels)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--out", default="lightning-out", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--devices", default="auto", help="processes; Lightning starts them itself")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per batch and rank")
    parser.add_argument("--save-steps", type=int, default=10, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    saving = ModelCheckpoint(options.out, save_last=True, every_n_train_steps=options.save_steps)
    trainer = lightning.Trainer(
        devices=options.devices, max_epochs=options.epochs, callbacks=[saving], logger=False
    )
    trainer.fit(Net(options), ckpt_path="last" if options.resume else None)


if __name__ == "__main__":
    main()
