# SPDX-License-Identifier: Apache-2.0
"""Pillow's calls in the first samples, with their arguments: what plain code in `__getitem__` does to images.

Only calls that no other transform makes are noted: the resize inside of a torchvision Resize is that one's.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from ..session import session
from .draws import Sample, random_states
from .pipeline import Budget

_MOST_SAMPLES = 24  # of a process and a loader
_MOST_CALLS = 40  # of a sample
_VALUES = 40  # of a call's arguments
_PLACED = ("PIL.crop", "PIL.resize")  # of these it matters whether a sample had drawn something before


class Calls:
    """The calls of this process. Written by the thread that fetches."""

    is_open = True  # False: enough were noted
    number = -1  # of the sample that is being noted
    samples: ClassVar[list[list[Any]]] = []
    noted: ClassVar[dict[Any, int]] = {}  # samples, by loader
    loader: Any = None  # the one that is asked, where this is the training process
    states: Any = None  # of the random generators, at the first call of the sample
    has_failed = False


def taken_from(loader: Any) -> None:
    """The training process asks this loader, and makes its samples itself where there are no workers."""
    if loader != Calls.loader:
        Calls.loader = loader
        Calls.is_open = not Calls.has_failed and Calls.noted.get(loader, 0) < _MOST_SAMPLES


def note_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note a call of Pillow's: its name, the image's size and mode before it, the other arguments.

    `drawn`: a random number was drawn in this sample before it.
    """
    try:
        if not Sample.is_open:  # before the loop, in a collate_fn, or of many samples in one call
            return
        if Sample.number != Calls.number:
            noted = Calls.noted.get(Calls.loader, 0)
            if noted >= _MOST_SAMPLES:
                Calls.is_open = False
                return
            Calls.number = Sample.number
            Calls.noted[Calls.loader] = noted + 1
            Calls.samples.append([])
            Calls.states = random_states()
        calls = Calls.samples[-1]
        if len(calls) >= _MOST_CALLS:
            return
        image: Any = args[0] if args else None
        is_image = issubclass(type(image), sys.modules["PIL.Image"].Image)  # and no ImageEnhance
        budget = Budget()
        budget.left = _VALUES
        calls.append(
            {
                "call": name,
                "size": list(image.size) if is_image else None,
                "mode": image.mode if is_image else None,
                "args": [budget.describe(one) for one in args[1:]] if is_image else [],
                "named": {word: budget.describe(one) for word, one in kwargs.items()} if is_image else {},
                **({"drawn": True} if name in _PLACED and random_states() != Calls.states else {}),
            }
        )
    except Exception as error:
        Calls.is_open = False
        Calls.has_failed = True
        session.trouble("calls", error)


def write_calls() -> None:
    """A fetch is over: write down what was noted in it."""
    if Calls.samples:
        samples, Calls.samples = Calls.samples, []
        Calls.number = -1
        session.facts("calls", samples=samples, loader=Calls.loader)


def after_fork() -> None:
    Calls.is_open = True
    Calls.number = -1
    Calls.samples = []
    Calls.noted = {}
    Calls.loader = None  # a worker has one alone
