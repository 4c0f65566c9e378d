# SPDX-License-Identifier: Apache-2.0
"""Accelerate on a pack: torchrun --nproc-per-node 2 examples/accelerate_train.py PACK; --resume goes on.

The loader is registered for checkpointing, not prepared: `save_state` and `load_state` keep its place.
"""

import argparse
from collections.abc import Sequence

import accelerate
import torch

import feedrate


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--out", default="accelerate-out", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per batch and rank")
    parser.add_argument("--save-steps", type=int, default=10, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    # Without a GPU, Accelerate takes several processes for one training only when it is told cpu=True.
    accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
    # Made after the Accelerator, which sets up the process group that says which rank this is.
    loader = feedrate.Loader(
        options.pack,
        options.batch_size,
        split="all",
        image=feedrate.RandomResizedCrop(64),
        flip=True,
        normalize="imagenet",
        device=accelerator.device,
    )
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, len(loader.classes)),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    network, optimizer = accelerator.prepare(network, optimizer)
    accelerator.register_for_checkpointing(loader)
    if options.resume:
        accelerator.load_state(options.out)

    steps = 0
    while loader.epoch < options.epochs:
        for batch in loader:
            loss = loss_of(network, batch)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps += 1
            if steps % options.save_steps == 0:
                accelerator.save_state(options.out)
                accelerator.print(f"epoch {loader.epoch}, step {steps}: loss {loss.item():.3f}")
    accelerator.end_training()


def loss_of(network: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, labels = batch
    return torch.nn.functional.cross_entropy(network(images), labels)


if __name__ == "__main__":
    main()
