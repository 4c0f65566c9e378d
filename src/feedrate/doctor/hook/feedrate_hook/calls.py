# SPDX-License-Identifier: Apache-2.0
"""Pillow's calls in the first samples, with their arguments: what plain code in `__getitem__` does to images.

Only calls that no other transform makes are noted: the resize inside of a torchvision Resize is that one's.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from .draws import Sample
from .pipeline import Budget
from .session import session

_MOST_SAMPLES = 24  # of a process
_MOST_CALLS = 40  # of a sample
_VALUES = 40  # of a call's arguments


class Calls:
    """The calls of this process. Written by the thread that fetches."""

    is_open = True  # False: enough were noted
    number = -1  # of the sample that is being noted
    samples: ClassVar[list[list[Any]]] = []
    noted = 0


def note_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note a call of Pillow's: its name, the image's size and mode before it, the other arguments."""
    try:
        if Sample.number != Calls.number:
            if Calls.noted >= _MOST_SAMPLES:
                Calls.is_open = False
                return
            Calls.number = Sample.number
            Calls.noted += 1
            Calls.samples.append([])
        calls = Calls.samples[-1]
        if len(calls) >= _MOST_CALLS:
            return
        image: Any = args[0] if args else None
        is_image = isinstance(image, sys.modules["PIL.Image"].Image)  # and no ImageEnhance
        budget = Budget()
        budget.left = _VALUES
        calls.append(
            {
                "call": name,
                "size": list(image.size) if is_image else None,
                "mode": image.mode if is_image else None,
                "args": [budget.describe(one) for one in args[1:]] if is_image else [],
                "named": {word: budget.describe(one) for word, one in kwargs.items()} if is_image else {},
            }
        )
    except Exception as error:
        Calls.is_open = False
        session.trouble("calls", error)


def write_calls() -> None:
    """A fetch is over: write down what was noted in it."""
    if Calls.samples:
        samples, Calls.samples = Calls.samples, []
        Calls.number = -1
        session.facts("calls", samples=samples)


def after_fork() -> None:
    Calls.is_open = True
    Calls.number = -1
    Calls.samples = []
    Calls.noted = 0
