# SPDX-License-Identifier: Apache-2.0
"""The two contestants, one fresh process each: files through torch's DataLoader, a pack through feedrate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedrate.bench.files import FileFeed
from feedrate.bench.meter import Feed, Readings, measure
from feedrate.errors import MissingExtra
from feedrate.kernel import I64

if TYPE_CHECKING:
    import torch

FILES, PACK = "files", "pack"
NAMES = {FILES: "DataLoader + Pillow", PACK: "feedrate"}


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What both contestants are given alike."""

    batch_size: int
    threads: int
    side: int = 224
    seed: int = 0
    repeat: int = 1  # how often each image comes per epoch: small datasets make epochs too short to time


class PackFeed:
    """Shuffled batches of (uint8 N x C x H x W, labels) from a pack."""

    def __init__(self, pack: str, options: FeedOptions) -> None:
        import feedrate
        from feedrate.format.manifest import read_manifest

        manifest = read_manifest(pack)
        repeated = np.arange(manifest.samples * options.repeat) // options.repeat
        self._loader = feedrate.Loader(
            pack,
            batch_size=options.batch_size,
            shuffle=True,
            seed=options.seed,
            # A flat folder has no labels to load.
            fields=("image", "label") if manifest.field("label") else ("image",),
            image=feedrate.RandomResizedCrop(options.side),
            flip=True,
            threads=options.threads,
            # Alone, whatever the launcher: each process measures its own machine.
            rank=0,
            world_size=1,
            # A dataset that is large enough goes the way that a training takes.
            order=None if options.repeat == 1 else lambda epoch: _shuffled(repeated, options.seed, epoch),
        )

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - the loader counts itself
        return iter(self._loader)


def _shuffled(positions: I64, seed: int, epoch: int) -> I64:
    return np.random.default_rng((seed, epoch)).permutation(positions)


def make_feed(kind: str, path: str, options: FeedOptions) -> Feed[tuple[torch.Tensor, torch.Tensor]]:
    if kind == PACK:
        return PackFeed(path, options)
    return FileFeed(path, **asdict(options))


def drain(kind: str, path: str, epochs: int, options: dict[str, int]) -> Readings:
    """Take batches and do nothing with them: what the loader could give."""
    import torch  # noqa: F401 - importing it belongs to nobody's first batch

    feed = FeedOptions(**options)
    return measure(lambda: make_feed(kind, path, feed), lambda batch: len(batch[0]), epochs=epochs)


def require_torch(what: str) -> None:
    """Raises MissingExtra with the line to type when torch is not installed; does not import it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra(
            f"{what} needs torch, which is not installed", hint="pip install 'feedrate[torch]'"
        )
