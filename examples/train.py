# SPDX-License-Identifier: Apache-2.0
"""A whole training script on a pack: python examples/train.py PACK

The pack needs class labels; `feedrate demo --keep` leaves one behind to try this on.
"""

import sys

import torch

import feedrate


def main(pack: str, epochs: int = 2, side: int = 64) -> float:
    """Train a small network; return its accuracy on the tenth of the pack that it was not trained on."""
    training = feedrate.Loader(
        pack,
        batch_size=64,
        split=(0, 0.9),
        image=feedrate.RandomResizedCrop(side, scale=(0.35, 1)),
        flip=True,
    )
    held_out = feedrate.Loader(
        pack, batch_size=64, split=(0.9, 1), shuffle=False, image=feedrate.CenterCrop(side, resize=side)
    )
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(len(training.classes)),
    )
    network(torch.zeros(1, 3, side, side))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

    for _ in range(epochs):
        for images, labels in training:  # uint8, N x C x H x W
            loss = torch.nn.functional.cross_entropy(network(to_float(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sys.stdout.write(f"loss {loss.item():.3f}; slowest: {training.stats().slowest}\n")

    with torch.no_grad():
        right = [network(to_float(images)).argmax(1).eq(labels) for images, labels in held_out]
    return torch.cat(right).float().mean().item()


def to_float(images: torch.Tensor) -> torch.Tensor:
    return images.float().div_(127.5).sub_(1)


if __name__ == "__main__":
    sys.stdout.write(f"accuracy {main(sys.argv[1]):.1%}\n")
