# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer: torchrun --nproc-per-node 2 examples/trainer_train.py PACK; --resume goes on.

`get_train_dataloader` returns the loader, a callback keeps its place in `trainer_state.json` of every
checkpoint, and `ignore_data_skip` tells the Trainer not to skip what the loader does not give again.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

import feedrate


class KeepPlace(transformers.TrainerCallback, ExportableState):
    """Saves the loader's state with the Trainer's, and loads it. The Trainer sets `place` when it resumes."""

    place: dict[str, Any] | None = None
    loader: feedrate.Loader | None = None

    def on_train_begin(self, *_: Any, train_dataloader: feedrate.Loader, **__: Any) -> None:
        self.loader = train_dataloader
        if self.place is not None:
            self.loader.load_state_dict(self.place)

    def state(self) -> dict[str, Any]:
        place = None if self.loader is None else self.loader.state_dict()
        return {"args": {}, "attributes": {"place": place}}


class PackTrainer(transformers.Trainer):
    def __init__(self, pack: str, **options: Any) -> None:
        super().__init__(**options, callbacks=[KeepPlace()])
        self.pack = pack

    def get_train_dataloader(self) -> feedrate.Loader:
        return feedrate.Loader(
            self.pack,
            self.args.per_device_train_batch_size,
            split="all",
            image=feedrate.RandomResizedCrop(64),
            flip=True,
            normalize="imagenet",
            seed=self.args.seed,
            device=self.args.device,
        )

    def compute_loss(self, model: torch.nn.Module, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        return loss_of(model, inputs)


def loss_of(network: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, labels = batch
    return torch.nn.functional.cross_entropy(network(images), labels)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--out", default="trainer-out", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per batch and rank")
    parser.add_argument("--save-steps", type=int, default=10, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, len(feedrate.Dataset(options.pack, split="all").classes)),
    )
    settings = transformers.TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        learning_rate=3e-3,
        save_steps=options.save_steps,
        ignore_data_skip=True,
        restore_callback_states_from_checkpoint=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    PackTrainer(options.pack, model=network, args=settings).train(resume_from_checkpoint=options.resume)
    if torch.distributed.is_initialized():
        # The Trainer leaves it: its threads may then meet the end of Python, and abort.
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
