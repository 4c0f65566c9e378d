# SPDX-License-Identifier: Apache-2.0
"""A name for what a dataset's samples are: the user's key, the number of samples, and the class' own code."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from types import CodeType
from typing import Any

from feedrate.store.codec import MAGIC


def name_dataset(dataset: Any, key: str) -> str:
    """Return a name that changes with the key, the length, and what the class and its bases do.

    Functions that these call, and files, are not looked at: the key is the user's word for them.
    """
    kind = type(dataset)
    parts: list[str] = [MAGIC.decode(), key, str(len(dataset)), f"{sys.version_info[:2]}"]
    for base in kind.__mro__:
        if base is not object and not base.__module__.startswith("torch."):
            parts.append(base.__qualname__)
            parts += [line for name, value in sorted(vars(base).items()) for line in _describe(name, value)]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", key)[:40].strip("-.") or "key"
    return f"cached-{readable}-{digest[:16]}"


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
