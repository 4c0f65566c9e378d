# SPDX-License-Identifier: Apache-2.0
"""A name for what a dataset's samples are: the user's key, the number of samples, the class' own code, and of
what parts of which datasets it is made."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
from types import CodeType
from typing import Any

import numpy as np

from feedrate.cache.codec import MAGIC

# Of how names are made: caches of another version are not found any more, and go when they are old.
_VERSION = "2"


def name_dataset(dataset: Any, key: str) -> str:
    """Return a name that changes with the key, the length, what the class and its bases do, and the structure
    of torch's `Subset` and `ConcatDataset`, with their indices.

    Functions that these call, files, and other attributes are not looked at: the key is the user's word.
    """
    parts: list[str] = [
        _VERSION,
        MAGIC.decode(),
        key,
        f"{sys.version_info[:2]}",
        *_describe_dataset(dataset, []),
    ]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", key)[:40].strip("-.") or "key"
    return f"cached-{readable}-{digest[:16]}"


def _describe_dataset(dataset: Any, above: list[Any]) -> list[str]:
    """Describe a dataset and those that it is made of; `above`: those that it is a part of."""
    parts = ["("]
    with contextlib.suppress(TypeError, RuntimeError):  # what it is made of need not know its length
        parts.append(str(len(dataset)))
    for base in type(dataset).__mro__:
        if base is not object:
            parts.append(base.__qualname__)
        if not base.__module__.startswith("torch."):
            parts += [line for name, value in sorted(vars(base).items()) for line in _describe(name, value)]
    if _is_torch(dataset, "Subset"):
        parts.append(_describe_indices(dataset.indices))
    for inner in list_inner(dataset):
        if not any(inner is one for one in above):
            parts += _describe_dataset(inner, [*above, dataset])
    return [*parts, ")"]


def list_inner(dataset: Any) -> list[Any]:
    """Return the datasets of torch's kind that a dataset holds, in a fixed order."""
    if _is_torch(dataset, "ConcatDataset"):
        return list(dataset.datasets)
    held = sorted(getattr(dataset, "__dict__", {}).items())
    return [value for _, value in held if value is not dataset and _is_torch(value, "Dataset")]


def _is_torch(value: Any, name: str) -> bool:
    """Return whether a value is of a class of torch.utils.data; torch is not imported for that."""
    return any(
        base.__name__ == name and base.__module__.startswith("torch.utils.data")
        for base in type(value).__mro__
    )


def _describe_indices(indices: Any) -> str:
    try:
        numbers = np.asarray(indices, np.int64)
    except (TypeError, ValueError, OverflowError):
        return repr(indices)
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def _describe(name: str, value: Any) -> list[str]:
    value = inspect.unwrap(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value)
    if isinstance(value, property):
        value = value.fget
    code = getattr(value, "__code__", None)
    return [name, *_describe_code(code)] if isinstance(code, CodeType) else []


def _describe_code(code: CodeType) -> list[str]:
    lines = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines += _describe_code(constant)
        elif isinstance(constant, frozenset):  # its order differs from run to run
            lines += sorted(map(repr, constant))
        else:
            lines.append(repr(constant))
    return lines
