# SPDX-License-Identifier: Apache-2.0
"""What a loader's samples go through, read off its dataset: transforms, labels, sampler, collate function.

The doctor writes a feedrate.Loader with the same crop, filter, flip and so on from it. Only what is stored in
an object is read (its `__dict__`): no property, no `repr`, no method of the user's is called, and nothing is
imported. What is read is bounded, however deep and large the user's objects are.
"""

from __future__ import annotations

import enum
import functools
import math
import types
from typing import Any

from ..session import session
from ..wrapping import ByIdentity, install, name_of
from .describe import tensors_of

_DEEPEST_DATASET = 8  # datasets inside of datasets
_DEEPEST = 8  # objects inside of objects
_MOST_VALUES = 500  # in one description
_MOST_EACH = 24  # elements of a list, attributes of an object
_LONGEST_TEXT = 120
_MOST_CLASSES = 100_000
_MOST_IN_ROW = 8192
_LIBRARIES = (
    "torchvision.transforms.", "timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing",
    "timm.data.mixup", "timm.data.tf_preprocessing", "albumentations.", "kornia.augmentation.",
)  # fmt: skip
# Attributes of a dataset that say what is done to its samples; others only where a library's object is there.
_TELLING = ("transform", "transforms", "target_transform", "loader", "input_img_mode", "load_bytes")
_LARGEST_SEED = 2**32 - 1  # larger ones are drawn: torch begins with 64 random bits
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def describe_pipeline(loader: Any, iterator: Any) -> dict[str, Any]:
    """Return the fact: layers of the dataset, the outermost first, and what makes batches of its samples."""

    def field(name: str) -> Any:
        return getattr(loader, name, getattr(iterator, f"_{name}", None))

    budget = Budget()
    dataset = field("dataset")
    layers = _describe_layers(dataset, budget)
    return {
        "layers": layers,
        "collate": {"uses": _used_by(field("collate_fn"), budget), **budget.describe(field("collate_fn"))}
        if callable(field("collate_fn"))
        else None,
        "sampler": _describe_sampler(getattr(loader, "sampler", None)),
        "batch_sampler": name_of(type(getattr(loader, "batch_sampler", None))),
        "seed": _find_seed(loader),
        "prefetcher": prefetchers.get(loader),
    }


class Budget:
    """Describes values, so many in all; then only that there are more."""

    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def describe(self, value: Any, depth: int = 0, is_named_only: bool = False) -> Any:
        """Return a value for JSON: plain ones as they are, others as a dict that says what they are.

        `is_named_only`: of objects the class and nothing else.
        """
        self.left -= 1
        if self.left < 0 or depth > _DEEPEST:
            return {"more": True}
        kind = type(value)
        if value is None or kind in (bool, int):
            return value
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if kind is str:
            return value[:_LONGEST_TEXT]
        if kind in (list, tuple):
            listed = [self.describe(one, depth + 1, is_named_only) for one in value[:_MOST_EACH]]
            return listed if len(value) <= _MOST_EACH else [*listed, {"more": True}]
        # Never isinstance: it asks an object for its __class__, which may be a property.
        if issubclass(kind, enum.Enum):
            held = stored(value)
            return {"enum": str(held.get("_name_")), "value": self.describe(held.get("_value_"), depth + 1)}
        if issubclass(kind, _FUNCTIONS):
            return {"function": name_of(value)}
        plain = _plain_number(value)
        if plain is not None:
            return self.describe(plain, depth + 1)
        return {"class": name_of(kind)} if is_named_only else self._describe_object(value, depth)

    def _describe_object(self, value: Any, depth: int) -> Any:
        described: dict[str, Any] = {"class": name_of(type(value))}
        held = stored(value)
        public = [(name, one) for name, one in held.items() if type(name) is str and name[:1] != "_"]
        if public:
            # A transform is made of others in these attributes; what else it holds may be many (policies).
            described["held"] = {
                name: self.describe(one, depth + 1, name not in ("transforms", "transform"))
                for name, one in public[:_MOST_EACH]
            }
        modules = held.get("_modules")  # of torch's Sequential and ModuleList
        if type(modules) is dict and modules:
            described["modules"] = self.describe(list(modules.values()), depth + 1)
        return described


def stored(value: Any) -> dict[Any, Any]:
    """Return what an object itself stores; its class is not asked."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _plain_number(value: Any) -> Any:
    """Return small tensors, arrays and numbers of numpy's as Python's own; None: it is none of these."""
    torch, module = session.torch, type(value).__module__
    if torch is not None and type(value) is torch.Tensor:
        is_small = value.device.type == "cpu" and value.numel() <= _MOST_EACH and not value.requires_grad
        return value.tolist() if is_small else None
    if torch is not None and type(value) is torch.dtype:
        return str(value)
    if (
        module == "numpy"
        and hasattr(value, "tolist")
        and getattr(value, "size", _MOST_EACH + 1) <= _MOST_EACH
    ):
        return value.tolist() if value.dtype.kind in "biuf" else None
    return None


def _describe_layers(dataset: Any, budget: Budget) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = []
    while dataset is not None and len(layers) < _DEEPEST_DATASET:
        held = stored(dataset)
        layer: dict[str, Any] = {"class": name_of(type(dataset))}
        found = {
            name: budget.describe(value)
            for name, value in list(held.items())
            if type(name) is str and (name in _TELLING or _is_of_library(value)) and not _is_both(value)
        }
        for owner in type(dataset).__mro__:
            for name, value in list(vars(owner).items()):
                if _is_of_library(value) and not _is_code(value):  # one that all such datasets share
                    found.setdefault(name, budget.describe(value))
        if found:
            layer["held"] = found
        used = _used_by(getattr(type(dataset), "__getitem__", None), budget)
        if used:
            layer["uses"] = used
        layer.update(_describe_labels(held))
        indices: Any = held.get("indices")
        several: Any = held.get("datasets")
        if type(indices) in (list, range, tuple):
            layer["samples"] = len(indices)
        if type(several) is list and several:
            layer["datasets"] = len(several)
        layers.append(layer)
        inner = several[0] if type(several) is list and several else held.get("dataset")
        dataset = inner if inner is not dataset else None
    return layers


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.startswith(_LIBRARIES)


def _is_both(value: Any) -> bool:
    """torchvision keeps transform and target_transform once more, together."""
    return name_of(type(value)) == "torchvision.datasets.vision.StandardTransform"


def _used_by(function: Any, budget: Budget) -> list[Any]:
    """Return the libraries' objects that a function finds in its module or around it."""
    if type(function) is types.MethodType:
        function = function.__func__
    if type(function) is not types.FunctionType:
        return []
    around = function.__globals__
    found = [around[name] for name in function.__code__.co_names if name in around]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [budget.describe(value) for value in found if _is_of_library(value) and not _is_code(value)]


def _is_code(value: Any) -> bool:
    return issubclass(type(value), (type, types.ModuleType, *_FUNCTIONS))


def _describe_labels(held: dict[Any, Any]) -> dict[str, Any]:
    """Return whether labels number the classes in sorted order, as ImageFolder does and a pack does."""
    numbers = held.get("class_to_idx")
    if type(numbers) is not dict:
        numbers = stored(held.get("reader")).get("class_to_idx")  # timm's
    if type(numbers) is not dict or not 0 < len(numbers) <= _MOST_CLASSES:
        return {}
    if not all(type(name) is str for name in numbers):
        return {}
    are_sorted = all(numbers[name] == at for at, name in enumerate(sorted(numbers)))
    return {"classes": len(numbers), "are_sorted": are_sorted}


def _describe_sampler(sampler: Any) -> dict[str, Any]:
    held = stored(sampler)
    plain = {
        name: held[name]
        for name in ("replacement", "_num_samples", "num_samples", "shuffle", "seed", "drop_last")
        if type(held.get(name)) in (bool, int)
    }
    return {"class": name_of(type(sampler)), **plain}


def _find_seed(loader: Any) -> int | None:
    """Return the seed that the script gave, to its loader or to torch."""
    torch = session.torch
    held, sampler = stored(loader), stored(getattr(loader, "sampler", None))
    generator: Any
    for generator in (held.get("generator"), sampler.get("generator")):
        if torch is not None and type(generator) is torch.Generator:
            return _given_seed(generator.initial_seed())
    if type(sampler.get("seed")) is int:
        return _given_seed(sampler["seed"])
    return _given_seed(torch.initial_seed()) if torch is not None else None


def _given_seed(seed: Any) -> int | None:
    return int(seed) if 0 <= seed <= _LARGEST_SEED else None


def describe_form(batch: Any, depth: int = 0) -> Any:
    """Return how a batch is put together: "tensor", a list or dict of such, or the name of a class."""
    torch = session.torch
    if torch is not None and issubclass(type(batch), torch.Tensor):
        return "tensor"
    if type(batch) in (list, tuple) and depth < 3:
        return [describe_form(one, depth + 1) for one in batch[:_MOST_EACH]]
    if type(batch) is dict and depth < 3:
        return {
            str(name)[:_LONGEST_TEXT]: describe_form(one, depth + 1)
            for name, one in list(batch.items())[:_MOST_EACH]
            if type(name) is str
        }
    return name_of(type(batch))


def describe_ranges(batch: Any) -> list[list[float] | None]:
    """Return the lowest and the highest value of each tensor, in the middle row of its first image.

    So few values that torch starts no threads for them: a process that has some must not fork any more.
    """
    ranges: list[list[float] | None] = []
    for tensor in tensors_of(batch):
        is_plain = tensor.layout is session.torch.strided and not tensor.is_complex()
        is_image = is_plain and tensor.dim() == 4 and tensor.device.type == "cpu" and tensor.numel() > 0
        row = tensor[0].select(1, tensor.shape[2] // 2) if is_image else None
        if row is None or row.numel() > _MOST_IN_ROW:
            ranges.append(None)
        else:
            values = [value for line in row.tolist() for value in line]
            ranges.append([min(values), max(values)])
    return ranges


# What timm's PrefetchLoader was given, by the DataLoader inside of it: it normalises where batches arrive.
prefetchers = ByIdentity()


def _noted(original: Any) -> Any:
    code, defaults = original.__code__, original.__defaults__ or ()
    names = code.co_varnames[1 : code.co_argcount]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            given = dict(zip(names[len(names) - len(defaults) :], defaults))  # noqa: B905 (Python 3.8)
            given.update(zip(names, args))  # noqa: B905
            given.update(kwargs)
            inner = given.pop("loader", None)
            budget = Budget()
            if inner is not None:
                told = {name: budget.describe(one) for name, one in given.items() if name != "device"}
                prefetchers.put(inner, told)
        except Exception as error:
            session.trouble("PrefetchLoader", error)

    return __init__


def patch_prefetcher(module: Any) -> None:
    """timm.data.loader has been imported."""
    install(module, "PrefetchLoader.__init__", _noted)
