# SPDX-License-Identifier: Apache-2.0
"""Facts about the user's objects, read off without changing them: loaders, batches, modules, torch itself."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import Any

from ..session import session
from ..wrapping import name_of

_MOST_TENSORS = 32
_DEEPEST = 8  # datasets inside of datasets


def tensors_of(batch: Any, found: list[Any] | None = None, depth: int = 0) -> list[Any]:
    """Return the tensors inside a batch: lists, tuples, mappings, and objects with tensors as attributes."""
    found = [] if found is None else found
    torch = session.torch
    if torch is None or depth > 4 or len(found) >= _MOST_TENSORS:
        return found
    if isinstance(batch, torch.Tensor):
        found.append(batch)
    elif isinstance(batch, (list, tuple)):
        for element in batch[:_MOST_TENSORS]:
            tensors_of(element, found, depth + 1)
    elif isinstance(batch, Mapping):
        for element in list(batch.values())[:_MOST_TENSORS]:
            tensors_of(element, found, depth + 1)
    elif depth < 2 and hasattr(batch, "__dict__"):
        for element in list(vars(batch).values())[:_MOST_TENSORS]:
            tensors_of(element, found, depth + 2)
    return found


def count_samples(batch: Any, most: int | None = None) -> int:
    """Return how many samples a batch holds, from the first dimension that its tensors agree on."""
    sizes = [int(t.shape[0]) for t in tensors_of(batch)[:8] if t.dim() > 0]
    if not sizes:
        if isinstance(batch, (list, tuple)) and batch:
            return len(batch) if most is None else min(len(batch), most)
        return most or 1
    size = max(set(sizes), key=sizes.count)
    return size if most is None else min(size, most)


def describe_batch(batch: Any) -> list[dict[str, Any]]:
    cuda = session.torch.cuda.is_initialized()
    return [
        {
            "shape": list(t.shape),
            "dtype": str(t.dtype).replace("torch.", ""),
            "bytes": t.numel() * t.element_size(),
            # Only a process that uses CUDA has pinned memory; to ask in another could wake the driver.
            "pinned": bool(cuda and t.device.type == "cpu" and t.is_pinned()),
            "device": str(t.device),
        }
        for t in tensors_of(batch)
    ]


def describe_loader(loader: Any, iterator: Any, name: str, made_at: str) -> dict[str, Any]:
    """Return the facts of a loader; `loader` may be an iterator that nobody's loader is known of."""

    def field(public: str, private: str = "") -> Any:
        return getattr(loader, public, getattr(iterator, private or f"_{public}", None))

    dataset = field("dataset")
    workers = field("num_workers")
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    pack = _find_pack(dataset)
    return {
        **({} if pack is None else {"pack": pack}),
        "loader": name,
        "dataset": name_of(type(dataset)),
        "dataset_len": _length(dataset),
        "batch_size": field("batch_size") or getattr(batch_sampler, "batch_size", None),
        "drop_last": field("drop_last"),
        "num_workers": workers,
        "pin_memory": field("pin_memory"),
        "prefetch_factor": field("prefetch_factor"),
        "persistent_workers": field("persistent_workers"),
        "context": _context(loader) if workers else None,
        "iterable": getattr(iterator, "_dataset_kind", 0) == 1,
        "batches": _length(loader) if _is_of_torch(sampler) and _is_of_torch(batch_sampler) else None,
        "collate": name_of(field("collate_fn")),
        # Beside a batch sampler of the user's, torch puts one in order that nobody asks.
        "shuffle": _is_shuffled(getattr(batch_sampler, "sampler", None) or sampler),
        "class": type(loader).__name__,
        "made_at": made_at,
    }


def _find_pack(dataset: Any) -> str | None:
    """Return the pack of a feedrate.Dataset, also of one inside Subset, cached() and the like; None: none."""
    kind: Any = getattr(sys.modules.get("feedrate.loader.dataset"), "Dataset", None)
    for _ in range(_DEEPEST if kind is not None else 0):
        if isinstance(dataset, kind):
            return str(dataset.path)
        held = vars(dataset) if hasattr(dataset, "__dict__") else {}
        several = held.get("datasets") or [None]
        dataset = held.get("dataset", held.get("source", several[0] if isinstance(several, list) else None))
    return None


def _length(thing: Any) -> int | None:
    # len() of an iterable dataset's loader makes torch count and warn about it, so it is not asked.
    if getattr(thing, "_dataset_kind", 0) == 1 or isinstance(thing, _iterable_class()):
        return None
    try:
        return len(thing)
    except Exception:
        return None


def _is_of_torch(sampler: Any) -> bool:
    """A sampler of the user's own may draw its batches anew when it is asked for their number."""
    return sampler is None or type(sampler).__module__.startswith("torch.utils.data")


def _iterable_class() -> Any:
    return session.torch.utils.data.IterableDataset


def _context(loader: Any) -> str | None:
    context = getattr(loader, "multiprocessing_context", None)
    name = getattr(context, "_name", None) or multiprocessing.get_start_method(allow_none=True)
    if name is None:
        name = "forkserver" if sys.version_info >= (3, 14) else "fork"
    return str(name)


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
    return {
        "class": name_of(type(module)),
        "parameters": sum(p.numel() for p in parameters),
        "device": str(first.device) if first is not None else None,
        "dtype": str(first.dtype).replace("torch.", "") if first is not None else None,
        "channels_last": None
        if not images
        else images[0].is_contiguous(memory_format=torch.channels_last) and not images[0].is_contiguous(),
        "training": bool(module.training),
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
        "devices": 0 if not built else None,
        "device_name": None,
        "threads": int(torch.get_num_threads()),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    if built and cuda.is_initialized():
        fact.update(cuda=True, devices=cuda.device_count(), device_name=cuda.get_device_name())
    elif built and is_over:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fact["cuda"] = bool(cuda.is_available())
            fact["devices"] = cuda.device_count() if fact["cuda"] else 0
    elif built and hasattr(cuda, "_device_count_nvml"):
        count = cuda._device_count_nvml()
        if count >= 0:
            fact.update(cuda=count > 0, devices=count)
    return fact
