# SPDX-License-Identifier: Apache-2.0
"""feedrate feeds the GPU: pack a dataset once, then read it at the machine's speed.

The names below are the whole public surface. They are loaded when first used, so `import feedrate` costs next
to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedrate.errors import (
        AlreadyExists,
        BadSample,
        FeedrateError,
        MissingExtra,
        NotFound,
        PackError,
        SourceError,
        StorageError,
        UsageError,
    )
    from feedrate.loader.cache import Cache
    from feedrate.loader.cached import cached
    from feedrate.loader.dataset import Dataset
    from feedrate.loader.decode import decode
    from feedrate.loader.decode_batch import decode_batch
    from feedrate.loader.device.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
    from feedrate.loader.device.mixing import CutMix, MixUp, RandomErasing
    from feedrate.loader.image import CenterCrop, RandomCrop, RandomResizedCrop, Resize, View
    from feedrate.loader.loader import Loader
    from feedrate.scratch.commands import stage

    __version__: str

__all__ = [
    "AlreadyExists",
    "BadSample",
    "Cache",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Dataset",
    "FeedrateError",
    "GaussianBlur",
    "Grayscale",
    "Loader",
    "MissingExtra",
    "MixUp",
    "NotFound",
    "PackError",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Solarize",
    "SourceError",
    "StorageError",
    "UsageError",
    "View",
    "__version__",
    "cached",
    "decode",
    "decode_batch",
    "stage",
]

_HOMES = {
    "feedrate.errors": (
        "AlreadyExists",
        "BadSample",
        "FeedrateError",
        "MissingExtra",
        "NotFound",
        "PackError",
        "SourceError",
        "StorageError",
        "UsageError",
    ),
    "feedrate.loader.cache": ("Cache",),
    "feedrate.loader.cached": ("cached",),
    "feedrate.loader.dataset": ("Dataset",),
    "feedrate.loader.decode": ("decode",),
    "feedrate.loader.decode_batch": ("decode_batch",),
    "feedrate.loader.device.colour": ("ColorJitter", "GaussianBlur", "Grayscale", "Solarize"),
    "feedrate.loader.device.mixing": ("CutMix", "MixUp", "RandomErasing"),
    "feedrate.loader.image": ("CenterCrop", "RandomCrop", "RandomResizedCrop", "Resize", "View"),
    "feedrate.loader.loader": ("Loader",),
    "feedrate.scratch.commands": ("stage",),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("feedrate")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'feedrate' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
