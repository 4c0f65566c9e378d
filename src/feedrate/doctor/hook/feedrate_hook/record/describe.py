# SPDX-License-Identifier: Apache-2.0
"""Facts about the user's objects, read off without changing them: loaders, batches, modules, torch itself,
and what a loader's samples go through: transforms, labels, sampler, collate function.

From the latter the doctor writes a feedrate.Loader with the same crop, filter, flip and so on. Only what is
stored in an object is read (its `__dict__`): no property, no `repr`, no method of the user's is called, and
nothing is imported. What is read is bounded, however deep and large the user's objects are.
"""

from __future__ import annotations

import enum
import functools
import math
import multiprocessing
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from ..session import Noted, session
from ..wrapping import ByIdentity, name_of

_MOST_TENSORS = 32
_DEEPEST_BATCH = 4


def leaves_in(
    batch: Any, is_leaf: Callable[[Any], bool], most: int = _MOST_TENSORS, opens_objects: bool = False,
    found: list[Any] | None = None, depth: int = 0,
) -> list[Any]:  # fmt: skip
    """Return the leaves inside a batch: of lists, tuples, mappings and, if wanted, objects' attributes."""
    found = [] if found is None else found
    if depth > _DEEPEST_BATCH or len(found) >= most:
        return found
    elements: Any = ()
    if is_leaf(batch):
        found.append(batch)
    elif isinstance(batch, (list, tuple)):
        elements = batch
    elif isinstance(batch, Mapping):
        elements = list(batch.values())
    elif opens_objects and depth < 2 and hasattr(batch, "__dict__"):
        elements = list(vars(batch).values())
        depth += 1
    for element in elements[:most]:
        leaves_in(element, is_leaf, most, opens_objects, found, depth + 1)
    return found


def is_tensor(thing: Any) -> bool:
    return session.torch is not None and isinstance(thing, session.torch.Tensor)


def tensors_of(batch: Any) -> list[Any]:
    """Return the tensors inside a batch: lists, tuples, mappings, and objects with tensors as attributes."""
    return leaves_in(batch, is_tensor, opens_objects=True) if session.torch is not None else []


def usual_size(arrays: list[Any]) -> int | None:
    """Return the first dimension that most arrays have; None: they have none."""
    sizes = [int(array.shape[0]) for array in arrays if len(array.shape)]
    return max(set(sizes), key=sizes.count) if sizes else None


def count_samples(batch: Any, most: int | None = None) -> int:
    """Return how many samples a batch holds, from the first dimension that its tensors agree on."""
    size = usual_size(tensors_of(batch)[:8])
    if size is None:
        size = len(batch) if isinstance(batch, (list, tuple)) and batch else most or 1
    return size if most is None else min(size, most)


def describe_arrays(arrays: list[Any]) -> list[dict[str, Any]]:
    """Return the facts of a batch's tensors, and of arrays that are no tensors."""
    return [
        {
            "shape": list(array.shape),
            "dtype": str(array.dtype).replace("torch.", ""),
            "bytes": array.numel() * array.element_size() if is_tensor(array) else int(array.nbytes),
        }
        for array in arrays
    ]


def _field_of(loader: Any, iterator: Any, name: str) -> Any:
    return getattr(loader, name, getattr(iterator, f"_{name}", None))


def describe_loader(loader: Any, iterator: Any, name: str, made_at: str) -> dict[str, Any]:
    """Return the facts of a loader; `loader` may be an iterator that nobody's loader is known of."""
    field = functools.partial(_field_of, loader, iterator)
    dataset = field("dataset")
    workers = field("num_workers")
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    pack = _find_pack(dataset)
    return {
        **({} if pack is None else {"pack": pack}),
        "loader": name,
        "dataset": name_of(type(dataset)),
        "dataset_len": length_of(dataset),
        "batch_size": field("batch_size") or getattr(batch_sampler, "batch_size", None),
        "num_workers": workers,
        **{
            name: field(name) for name in ("drop_last", "pin_memory", "prefetch_factor", "persistent_workers")
        },
        "context": _context(loader) if workers else None,
        "iterable": getattr(iterator, "_dataset_kind", 0) == 1,
        "takes_batches": hasattr(type(dataset), "__getitems__"),
        "batches": length_of(loader) if _is_of_torch(sampler) and _is_of_torch(batch_sampler) else None,
        "collate": name_of(field("collate_fn")),
        # Beside a batch sampler of the user's, torch puts one in order that nobody asks.
        "shuffle": _is_shuffled(getattr(batch_sampler, "sampler", None) or sampler),
        "class": type(loader).__name__,
        "made_at": made_at,
    }


def _find_pack(dataset: Any) -> str | None:
    """Return the pack of a feedrate.Dataset, also of one inside Subset, cached() and the like; None: none."""
    kind: Any = getattr(sys.modules.get("feedrate.loader.dataset"), "Dataset", None)
    for _ in range(_DEEPEST_DATASET if kind is not None else 0):
        if isinstance(dataset, kind):
            return str(dataset.path)
        inner = vars(dataset) if hasattr(dataset, "__dict__") else {}
        several = inner.get("datasets") or [None]
        dataset = inner.get("dataset", inner.get("source", several[0] if isinstance(several, list) else None))
    return None


def length_of(thing: Any) -> int | None:
    # len() of an iterable dataset's loader makes torch count and warn about it, so it is not asked.
    iterable: Any = () if session.torch is None else session.torch.utils.data.IterableDataset
    if getattr(thing, "_dataset_kind", 0) == 1 or isinstance(thing, iterable):
        return None
    try:
        return len(thing)
    except Exception:
        return None


def _is_of_torch(sampler: Any) -> bool:
    """A sampler of the user's own may draw its batches anew when it is asked for their number."""
    return sampler is None or type(sampler).__module__.startswith("torch.utils.data")


def _context(loader: Any) -> str | None:
    context = getattr(loader, "multiprocessing_context", None)
    name = getattr(context, "_name", None) or multiprocessing.get_start_method(allow_none=True)
    return str(name or ("forkserver" if sys.version_info >= (3, 14) else "fork"))


def _is_shuffled(sampler: Any) -> bool | None:
    kind = type(sampler).__name__
    if kind.endswith("RandomSampler"):  # of a subset, weighted, or with a seed of its own
        return True
    if kind == "SequentialSampler":
        return False
    shuffle = getattr(sampler, "shuffle", None)
    return shuffle if isinstance(shuffle, bool) else None


def describe_module(module: Any) -> dict[str, Any]:
    torch = session.torch
    parameters = list(module.parameters())
    first = parameters[0] if parameters else None
    images = [p for p in parameters if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    is_last = bool(images) and images[0].is_contiguous(memory_format=torch.channels_last)
    return {
        "class": name_of(type(module)),
        "parameters": sum(p.numel() for p in parameters),
        "device": str(first.device) if first is not None else None,
        "dtype": str(first.dtype).replace("torch.", "") if first is not None else None,
        "channels_last": is_last and not images[0].is_contiguous() if images else None,
    }


def describe_autocast(device: str) -> tuple[bool, str | None]:
    """Return whether autocast is on for a kind of device, and its type."""
    torch = session.torch
    try:
        enabled = bool(torch.is_autocast_enabled(device))
        dtype = torch.get_autocast_dtype(device) if enabled else None
    except (TypeError, AttributeError):  # torch before 2.4
        enabled = bool(torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled())
        dtype = (torch.get_autocast_gpu_dtype if device == "cuda" else torch.get_autocast_cpu_dtype)()
    return enabled, str(dtype).replace("torch.", "") if enabled else None


def describe_torch(is_over: bool = False) -> dict[str, Any]:
    """Return the facts of torch. CUDA is asked directly only when it is in use, or when the program is over:
    to ask the driver could break processes that the program forks later."""
    torch = session.torch
    cuda = torch.cuda
    built = bool(getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None))
    fact: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda": False if not built else None,
        "cuda_built": built,
        "threads": int(torch.get_num_threads()),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    if built and cuda.is_initialized():
        fact["cuda"] = True
    elif built and is_over:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fact["cuda"] = bool(cuda.is_available())
    elif built and hasattr(cuda, "_device_count_nvml"):
        count = cuda._device_count_nvml()
        fact["cuda"] = count > 0 if count >= 0 else None
    return fact


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
    field = functools.partial(_field_of, loader, iterator)
    budget = Budget()
    layers, collate = _describe_layers(field("dataset"), budget), None
    if callable(field("collate_fn")):
        collate = {"uses": _used_by(field("collate_fn"), budget), **budget.describe(field("collate_fn"))}
    return {
        "layers": layers,
        "collate": collate,
        "sampler": _describe_sampler(getattr(loader, "sampler", None), field("dataset")),
        "batch_sampler": name_of(type(getattr(loader, "batch_sampler", None))),
        "seed": _find_seed(loader),
        "prefetcher": prefetchers.get(loader),
    }


class Budget:
    """Describes values, so many in all; then only that there are more."""

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self.left = most

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
            member = stored(value)
            return {
                "enum": str(member.get("_name_")),
                "value": self.describe(member.get("_value_"), depth + 1),
            }
        if issubclass(kind, _FUNCTIONS):
            return {"function": name_of(value)}
        plain = _plain_number(value)
        if plain is None and not _is_of_library(value):  # theirs are known by name
            plain = _find_called(value)
        if plain is not None:
            return self.describe(plain, depth + 1, is_named_only)
        return {"class": name_of(kind)} if is_named_only else self._describe_object(value, depth)

    def _describe_object(self, value: Any, depth: int) -> Any:
        described: dict[str, Any] = {"class": name_of(type(value))}
        attributes = stored(value)
        public = [(name, one) for name, one in attributes.items() if type(name) is str and name[:1] != "_"]
        if public:
            # A transform is made of others in these attributes; what else it holds may be many (policies).
            described["held"] = {
                name: self.describe(one, depth + 1, name not in ("transforms", "transform"))
                for name, one in public[:_MOST_EACH]
            }
        modules = attributes.get("_modules")  # of torch's Sequential and ModuleList
        if type(modules) is dict and modules:
            described["modules"] = self.describe(list(modules.values()), depth + 1)
        return described


def stored(value: Any) -> dict[Any, Any]:
    """Return what an object itself stores; its class is not asked."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _only_calls(self: Any, value: Any) -> Any:
    return self.called(value)


def _find_called(value: Any) -> Any:
    """Return the attribute that is all an object calls when it is called; None: it does something itself."""
    owner: Any = next((one for one in type(value).__mro__ if "__call__" in vars(one)), object)
    code = getattr(vars(owner).get("__call__"), "__code__", None)
    if code is None or code.co_code != _only_calls.__code__.co_code or len(code.co_names) != 1:
        return None
    return stored(value).get(code.co_names[0])


def _plain_number(value: Any) -> Any:
    """Return small tensors, arrays and numbers of numpy's as Python's own; None: it is none of these."""
    torch, module = session.torch, type(value).__module__
    if torch is not None and type(value) is torch.Tensor:
        is_small = value.device.type == "cpu" and value.numel() <= _MOST_EACH and not value.requires_grad
        return value.tolist() if is_small else None
    if torch is not None and type(value) is torch.dtype:
        return str(value)
    size = getattr(value, "size", None) if module == "numpy" and hasattr(value, "tolist") else None
    if size is not None and size <= _MOST_EACH:
        return value.tolist() if value.dtype.kind in "biuf" else None
    return None


def _describe_layers(dataset: Any, budget: Budget) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = []
    while dataset is not None and len(layers) < _DEEPEST_DATASET:
        attributes = stored(dataset)
        layer: dict[str, Any] = {"class": name_of(type(dataset))}
        found = {
            name: budget.describe(value)
            for name, value in list(attributes.items())
            if type(name) is str
            and (name in _TELLING or _is_of_library(value))
            # torchvision keeps transform and target_transform once more, together.
            and name_of(type(value)) != "torchvision.datasets.vision.StandardTransform"
        }
        for owner in type(dataset).__mro__:
            for name, value in list(vars(owner).items()):
                if _is_of_library(value) and not _is_code(value):  # one that all such datasets share
                    found.setdefault(name, budget.describe(value))
        if found:
            layer["held"] = found
        used = _used_by(getattr(type(dataset), "__getitem__", None), budget)
        rows: Any = attributes.get("_format_kwargs")  # of Hugging Face's with_transform
        used += _used_by(rows.get("transform"), budget) if type(rows) is dict else []
        if used:
            layer["uses"] = used
        layer.update(_describe_labels(attributes))
        root: Any = attributes.get("root", stored(attributes.get("reader")).get("root"))  # the latter: timm's
        if type(root) is str or type(root).__module__.startswith("pathlib"):
            layer["root"] = os.path.abspath(str(root))
        indices: Any = attributes.get("indices")
        several: Any = attributes.get("datasets")
        if (chosen := _count_indices(indices)) is not None:
            layer["samples"] = chosen
            if layer["class"] == "torch.utils.data.dataset.Subset":
                layer["of"] = length_of(attributes.get("dataset"))
        if type(several) is list and several:
            layer["datasets"] = len(several)
        layers.append(layer)
        inner = several[0] if type(several) is list and several else attributes.get("dataset")
        dataset = inner if inner is not dataset else None
    return layers


def _count_indices(indices: Any) -> int | None:
    """Return how many a list or an array has; no object of the user's own is asked."""
    if type(indices) in (list, range, tuple):
        return len(indices)
    is_array = name_of(type(indices)) in ("numpy.ndarray", "torch.Tensor") and len(indices.shape) == 1
    return int(indices.shape[0]) if is_array else None


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.startswith(_LIBRARIES)


def _used_by(function: Any, budget: Budget) -> list[Any]:
    """Return the libraries' objects that a function finds in its module or around it."""
    if type(function) is types.MethodType:
        function = function.__func__
    if type(function) is not types.FunctionType:
        return []
    around, code = function.__globals__, function.__code__
    # Comprehensions, before Python 3.12.
    inner = [one for one in code.co_consts if type(one) is types.CodeType]
    names = [name for one in (code, *inner) for name in one.co_names]
    found = [around[name] for name in dict.fromkeys(names) if name in around]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [budget.describe(value) for value in found if _is_of_library(value) and not _is_code(value)]


def _is_code(value: Any) -> bool:
    return issubclass(type(value), (type, types.ModuleType, *_FUNCTIONS))


def _describe_labels(attributes: dict[Any, Any]) -> dict[str, Any]:
    """Return whether labels number the classes in sorted order, as ImageFolder does and a pack does."""
    numbers = attributes.get("class_to_idx")
    if type(numbers) is not dict:
        numbers = stored(attributes.get("reader")).get("class_to_idx")  # timm's
    if type(numbers) is not dict or not 0 < len(numbers) <= _MOST_CLASSES:
        return {}
    if not all(type(name) is str for name in numbers):
        return {}
    are_sorted = all(numbers[name] == at for at, name in enumerate(sorted(numbers)))
    return {"classes": len(numbers), "are_sorted": are_sorted}


def _describe_sampler(sampler: Any, dataset: Any) -> dict[str, Any]:
    attributes = stored(sampler)
    plain: dict[str, Any] = {
        name: attributes[name]
        for name in ("replacement", "_num_samples")
        if type(attributes.get(name)) in (bool, int)
    }
    kind = name_of(type(sampler))
    if kind == "torch.utils.data.sampler.SubsetRandomSampler":
        plain.update(samples=_count_indices(attributes.get("indices")), of=length_of(dataset))
    return {"class": kind, **plain}


def _find_seed(loader: Any) -> int | None:
    """Return the seed that the script gave, to its loader or to torch."""
    torch = session.torch
    attributes, sampler = stored(loader), stored(getattr(loader, "sampler", None))
    generator: Any
    seed = torch.initial_seed() if torch is not None else None
    if type(sampler.get("seed")) is int:
        seed = sampler["seed"]
    for generator in (sampler.get("generator"), attributes.get("generator")):
        if torch is not None and type(generator) is torch.Generator:
            seed = generator.initial_seed()
    return int(seed) if seed is not None and 0 <= seed <= _LARGEST_SEED else None


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
        with Noted("PrefetchLoader"):
            given = dict(zip(names[len(names) - len(defaults) :], defaults))  # noqa: B905 (Python 3.8)
            given.update(zip(names, args))  # noqa: B905
            given.update(kwargs)
            inner = given.pop("loader", None)
            if inner is not None:
                budget = Budget()
                told = {name: budget.describe(one) for name, one in given.items() if name != "device"}
                prefetchers.put(inner, told)

    return __init__


PATCHES = {"timm.data.loader": [("PrefetchLoader.__init__", _noted)]}
