# SPDX-License-Identifier: Apache-2.0
"""A loop of your own: torchrun --nproc-per-node 2 examples/stateful_train.py PACK; --resume goes on.

The loader stands where torchdata's StatefulDataLoader would: torch's distributed checkpoints call its
`state_dict` and `load_state_dict`. With --fsdp every rank holds a part of the weights, else all (DDP).
"""

import argparse
import os
from collections.abc import Sequence

import torch
import torch.distributed.checkpoint as checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import feedrate


class Progress:
    """Weights and optimizer, as a distributed checkpoint wants them."""

    def __init__(self, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.network, self.optimizer = network, optimizer

    def state_dict(self) -> dict:
        network, optimizer = get_state_dict(self.network, self.optimizer)
        return {"network": network, "optimizer": optimizer}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(
            self.network,
            self.optimizer,
            model_state_dict=state["network"],
            optim_state_dict=state["optimizer"],
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--out", default="stateful-out", help="folder of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--fsdp", action="store_true", help="fully_shard the network instead of DDP")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per batch and rank")
    parser.add_argument("--save-steps", type=int, default=10, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    loader = feedrate.Loader(
        options.pack,
        options.batch_size,
        split="all",
        image=feedrate.RandomResizedCrop(64),
        flip=True,
        normalize="imagenet",
        device=device,
    )
    network: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, len(loader.classes)),
    ).to(device)
    network = fully_shard(network) if options.fsdp else torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    training = {"progress": Progress(network, optimizer), "loader": loader}
    if options.resume:
        checkpoints.load(training, checkpoint_id=options.out)

    steps = 0
    while loader.epoch < options.epochs:
        for batch in loader:
            loss = loss_of(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % options.save_steps == 0:
                checkpoints.save(training, checkpoint_id=options.out)
    torch.distributed.destroy_process_group()


def loss_of(network: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, labels = batch
    return torch.nn.functional.cross_entropy(network(images), labels)


if __name__ == "__main__":
    main()
