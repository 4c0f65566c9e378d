# SPDX-License-Identifier: Apache-2.0
"""Datasets of numbers that take less CPU time while images would be recipes: a proof without an image."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from feedrate.run.inside import counters, switch

WORK = 100_000


def work(units: int) -> int:
    return sum(range(units))


class Gains(Dataset[Any]):
    """Sample n is made of n; with recipes it takes a tenth of the work, and an image counts as taken."""

    def __init__(self, length: int = 64, *, quicker: float = 10) -> None:
        self.length, self.quicker = length, quicker

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.make_image()
        return self.make_sample(index)

    def make_image(self) -> None:
        work(int(WORK / self.quicker) if switch.here.is_on else WORK)
        if switch.here.is_on:
            counters.take()

    def make_sample(self, index: int) -> Any:
        return torch.full((3, 4), float(index)), index


class Either(Gains):
    """Every sample is `bare`, but with recipes the fifth is `lazy`. It takes no work."""

    def __init__(self, bare: Any, lazy: Any) -> None:
        super().__init__(16)
        self.bare, self.lazy = bare, lazy

    def make_image(self) -> None:
        if switch.here.is_on:
            counters.take()

    def make_sample(self, index: int) -> Any:
        return self.lazy if switch.here.is_on and index == 5 else self.bare
