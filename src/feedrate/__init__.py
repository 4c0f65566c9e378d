# SPDX-License-Identifier: Apache-2.0
"""feedrate feeds the GPU: pack a dataset once, then read it at the machine's speed.

The names in `_MODULES` are the whole public surface. They are loaded when first used, so `import feedrate`
costs next to nothing. Type checkers and editors do not run `__getattr__`: they read the imports below the
table, where `as` says that a name is meant for others. A test compares the two.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_MODULES = {
    "feedrate.errors": "AlreadyExists BadSample FeedrateError MissingExtra NotFound PackError SourceError"
    " StorageError UsageError",
    "feedrate.loader.cache": "Cache",
    "feedrate.loader.cached": "cached",
    "feedrate.loader.dataset": "Dataset",
    "feedrate.loader.decode_batch": "decode_batch",
    "feedrate.loader.device.colour": "ColorJitter GaussianBlur Grayscale Solarize",
    "feedrate.loader.device.mixing": "CutMix MixUp RandomErasing",
    "feedrate.loader.image": "CenterCrop RandomCrop RandomResizedCrop Resize View decode",
    "feedrate.loader.loader": "Loader",
    "feedrate.packing.build.pack": "pack",
    "feedrate.packing.change.append": "AppendOptions append",
    "feedrate.packing.change.columns": "ColumnOptions add_column",
    "feedrate.packing.change.entries": "set_entries",
    "feedrate.packing.change.split": "SplitOptions extend_split split",
    "feedrate.packing.check.unpack": "unpack",
    "feedrate.packing.check.verify": "verify",
    "feedrate.packing.indexing.local": "index",
    "feedrate.packing.options": "Engine PackOptions",
    "feedrate.packing.recode": "Recode",
    "feedrate.scratch.commands": "stage",
    "feedrate.source.options": "FieldSpec",
}

if TYPE_CHECKING:
    from feedrate.errors import AlreadyExists as AlreadyExists
    from feedrate.errors import BadSample as BadSample
    from feedrate.errors import FeedrateError as FeedrateError
    from feedrate.errors import MissingExtra as MissingExtra
    from feedrate.errors import NotFound as NotFound
    from feedrate.errors import PackError as PackError
    from feedrate.errors import SourceError as SourceError
    from feedrate.errors import StorageError as StorageError
    from feedrate.errors import UsageError as UsageError
    from feedrate.loader.cache import Cache as Cache
    from feedrate.loader.cached import cached as cached
    from feedrate.loader.dataset import Dataset as Dataset
    from feedrate.loader.decode_batch import decode_batch as decode_batch
    from feedrate.loader.device.colour import ColorJitter as ColorJitter
    from feedrate.loader.device.colour import GaussianBlur as GaussianBlur
    from feedrate.loader.device.colour import Grayscale as Grayscale
    from feedrate.loader.device.colour import Solarize as Solarize
    from feedrate.loader.device.mixing import CutMix as CutMix
    from feedrate.loader.device.mixing import MixUp as MixUp
    from feedrate.loader.device.mixing import RandomErasing as RandomErasing
    from feedrate.loader.image import CenterCrop as CenterCrop
    from feedrate.loader.image import RandomCrop as RandomCrop
    from feedrate.loader.image import RandomResizedCrop as RandomResizedCrop
    from feedrate.loader.image import Resize as Resize
    from feedrate.loader.image import View as View
    from feedrate.loader.image import decode as decode
    from feedrate.loader.loader import Loader as Loader
    from feedrate.packing.build.pack import pack as pack
    from feedrate.packing.change.append import AppendOptions as AppendOptions
    from feedrate.packing.change.append import append as append
    from feedrate.packing.change.columns import ColumnOptions as ColumnOptions
    from feedrate.packing.change.columns import add_column as add_column
    from feedrate.packing.change.entries import set_entries as set_entries
    from feedrate.packing.change.split import SplitOptions as SplitOptions
    from feedrate.packing.change.split import extend_split as extend_split
    from feedrate.packing.change.split import split as split
    from feedrate.packing.check.unpack import unpack as unpack
    from feedrate.packing.check.verify import verify as verify
    from feedrate.packing.indexing.local import index as index
    from feedrate.packing.options import Engine as Engine
    from feedrate.packing.options import PackOptions as PackOptions
    from feedrate.packing.recode import Recode as Recode
    from feedrate.scratch.commands import stage as stage
    from feedrate.source.options import FieldSpec as FieldSpec

    __version__: str

__all__ = sorted(["__version__", *" ".join(_MODULES.values()).split()])


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("feedrate")
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'feedrate' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
