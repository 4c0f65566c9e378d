# SPDX-License-Identifier: Apache-2.0
"""What users write in a call, checked: where it makes no sense, a sentence says what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from feedrate.errors import UsageError
from feedrate.kernel.depth import Depth

P = ParamSpec("P")
R = TypeVar("R")
Asked = TypeVar("Asked")
Self = TypeVar("Self")
Size = tuple[int, int]  # height, width
Range = tuple[float, float]

# What a DataLoader is told by, and what a Loader does instead.
_NO_PROCESSES = "leave it out: threads load here, and there are no worker processes"
_PINNED = (
    'leave it out: device="cuda" gives batches on the GPU, and where CUDA is in use, host batches are pinned'
)
_OTHER_WORDS = {
    "num_workers": "threads load here, as many as there are usable cores; threads=4 sets their number",
    "pin_memory": _PINNED,
    "pin_memory_device": _PINNED,
    "persistent_workers": _NO_PROCESSES,
    "worker_init_fn": _NO_PROCESSES,
    "multiprocessing_context": _NO_PROCESSES,
    "timeout": _NO_PROCESSES,
    "prefetch_factor": "prefetch=4 makes so many batches ahead",
    "sampler": "order=[...] takes positions or a function of the epoch, weights=[...] draws with "
    "replacement, and ranks get their parts without one",
    "batch_sampler": "order=[...] takes positions or a function of the epoch, and batch_size= cuts them",
    "collate_fn": "it is collate=... here",
    "in_order": "leave it out: batches always come in order",
    "generator": "seed=1 fixes every random choice",
}


def options_by_name(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call that gives options by position end with a UsageError that says what to write instead."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_unnamed(function, signature, args)
        return function(*args, **kwargs)

    return call


def takes(
    options: Callable[P, Asked],
) -> Callable[[Callable[[Self, Asked], None]], Callable[Concatenate[Self, P], None]]:
    """Let `__init__` be called with the arguments of a class of options, and get these, checked."""
    signature = inspect.signature(options)

    def decorate(init: Callable[[Self, Asked], None]) -> Callable[Concatenate[Self, P], None]:
        @functools.wraps(init)
        def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            _check_unnamed(init, signature, args)
            _check_known(_name_call(init), kwargs, signature.parameters)
            signature.bind(*args, **kwargs)
            init(self, options(*args, **kwargs))

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *signature.parameters.values()]
        vars(call)["__signature__"] = signature.replace(parameters=parameters)
        return call

    return decorate


def _check_unnamed(function: Any, signature: inspect.Signature, args: Sequence[object]) -> None:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    most = kinds.index(inspect.Parameter.KEYWORD_ONLY)
    if len(args) > most:
        unnamed = zip(list(signature.parameters)[most:], args[most:], strict=False)
        words = [f"{name}={value!r}" for name, value in unnamed]
        shown = ", ".join(word if len(word) <= 60 else f"{word.partition('=')[0]}=..." for word in words)
        raise UsageError(f"{_name_call(function)} takes options by name: write {shown}")


def _name_call(function: Any) -> str:
    name: str = function.__qualname__
    return name.removesuffix(".__init__")


def _check_known(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a UsageError for the first option that there is not: what to write instead."""
    options = list(known)[1:]
    for name in given:
        if name not in known:
            instead = _OTHER_WORDS.get(name) if call == "Loader" else None
            if instead is None:
                near = difflib.get_close_matches(name, options, n=1)
                instead = f"did you mean {near[0]}=?" if near else f"there are {', '.join(options)}"
            raise UsageError(f"{call} has no option {name}: {instead}")


def check_choice(name: str, value: object, *choices: str, also: str | None = None) -> None:
    if value not in choices:
        *others, last = [*(f'"{choice}"' for choice in choices), *([] if also is None else [also])]
        raise UsageError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_functions(**functions: object) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name} must be a function, got {function!r}")


def check_whole(name: str, value: object, *, least: int, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not is_whole(value):
        raise UsageError(f"{name} must be a whole number, got {value!r}")
    if not is_whole(value, least):
        raise UsageError(f"{name} must be at least {least}, got {value}")
    if not is_whole(value, least, 2**63 - 1):
        raise UsageError(f"{name} is too large: {value}")


def check_size(size: Any, name: str) -> int | Size:
    numbers = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
    for number in numbers:
        if not is_whole(number, 1):
            raise UsageError(
                f"{name}: size must be a whole number of pixels, or (height, width), at least 1; got {size!r}"
            )
    height, width = (int(number) for number in numbers)
    return (height, width) if isinstance(size, (tuple, list)) else height


def as_pair(size: int | Size) -> Size:
    """Return height and width of a checked size: one number is both."""
    return size if isinstance(size, tuple) else (size, size)


def is_whole(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_number and least <= int(value) <= most  # type: ignore[call-overload]


def check_pair(pair: Any, name: str) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in pair)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be two numbers, got {pair!r}") from None
    return low, high


def is_number(value: object) -> bool:
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]


def check_share(name: str, p: object) -> None:
    if not is_number(p) or not 0 <= p <= 1:  # type: ignore[operator]
        raise UsageError(f"{name}: p must be a probability from 0 to 1, got {p!r}")


def as_range(value: Any) -> Range | None:
    """Return two numbers of which the second is not the smaller one; None: this is none."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(is_number(one) for one in pair) or pair[0] > pair[1]:
        return None
    return float(pair[0]), float(pair[1])


def check_depth(depth: Any) -> Depth | None:
    """Return what becomes of gray of more than 8 bits: as given, a range as two floats."""
    if depth is None or (isinstance(depth, str) and depth in ("clip", "uint16")):
        return depth  # type: ignore[return-value]
    pair = as_range(depth)
    if pair is None or pair[0] == pair[1]:
        raise UsageError(
            f'depth must be "clip", "uint16" or (low, high), the values that become 0 and 255; got {depth!r}',
            hint="depth=(0, 4095) for 12 bits",
        )
    return pair


def as_plain(value: Any) -> Any:
    """Return lists in the place of arrays and tensors, also inside tuples; all else as it was typed."""
    if isinstance(value, (tuple, list)):
        return type(value)([as_plain(one) for one in value])
    return value.tolist() if hasattr(value, "tolist") else value
