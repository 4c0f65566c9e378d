# SPDX-License-Identifier: Apache-2.0
"""Steps as torchvision's second transforms have them, under their names: what `run` reads and calls."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

SECOND = "torchvision.transforms.v2"


class TensorImage(torch.Tensor):
    """What torchvision calls tv_tensors.Image."""

    __module__ = "torchvision.tv_tensors._image"
    __qualname__ = "Image"


class Compose(torch.nn.Module):
    def __init__(self, transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, *inputs: Any) -> Any:
        for step in self.transforms:
            inputs = (step(*inputs),)
        return inputs[0]


class ToImage(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        rows = torch.as_tensor(np.array(image, copy=True))
        rows = rows.view(image.size[1], image.size[0], -1).permute(2, 0, 1)
        return rows.as_subclass(TensorImage)


class ToDtype(torch.nn.Module):
    def __init__(self, dtype: Any, scale: bool = False) -> None:
        super().__init__()
        self.dtype, self.scale = dtype, scale

    def forward(self, image: Any) -> Any:
        kind = type(image)
        image = image.as_subclass(torch.Tensor).to(self.dtype)
        return (image.div(255) if self.scale else image).as_subclass(kind)


class Normalize(torch.nn.Module):
    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        super().__init__()
        self.mean, self.std, self.inplace = list(mean), list(std), inplace

    def forward(self, image: Any) -> Any:
        plain = image.as_subclass(torch.Tensor)
        mean, std = (torch.as_tensor(one, dtype=plain.dtype).view(-1, 1, 1) for one in (self.mean, self.std))
        plain = plain.sub_(mean) if self.inplace else plain.sub(mean)
        return plain.div_(std).as_subclass(type(image))


class ToPureTensor(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return image.as_subclass(torch.Tensor)


_MODULES: dict[str, tuple[Any, ...]] = {
    f"{SECOND}._container": (Compose,),
    f"{SECOND}._type_conversion": (ToImage, ToPureTensor),
    f"{SECOND}._misc": (ToDtype, Normalize),
}


def register(patch: pytest.MonkeyPatch) -> Any:
    """Let the classes stand in modules of torchvision's names; return that of Compose."""
    for name, classes in _MODULES.items():
        module = types.ModuleType(name)
        for kind in classes:
            patch.setattr(kind, "__module__", name)
            if "forward" in vars(kind):
                patch.setattr(vars(kind)["forward"], "__module__", name)
            setattr(module, kind.__name__, kind)
        patch.setitem(sys.modules, name, module)
    return sys.modules[f"{SECOND}._container"]
