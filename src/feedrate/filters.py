# SPDX-License-Identifier: Apache-2.0
"""The filters of a resize, in Pillow's words and by Pillow's numbers."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence

from feedrate.errors import UsageError

FILTERS = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "box": 4, "hamming": 5, "nearest": 0}
BILINEAR = FILTERS["bilinear"]

# A word, PIL.Image.Resampling's or torchvision's InterpolationMode's member; or several of them.
Filter = str | enum.Enum
Interpolation = Filter | Sequence[Filter]


def check_interpolation(value: Interpolation, name: str) -> str | tuple[str, ...]:
    """Return the word of a filter, or the words of several to draw from.

    Raises:
        UsageError: there is no such filter; the message begins with `name`.
    """
    if not isinstance(value, (tuple, list)):
        return check_filter(value, name)
    if not value:
        raise UsageError(
            f"{name}: interpolation is an empty {type(value).__name__}: there is no filter to draw"
        )
    words = tuple(check_filter(one, name) for one in value)
    return words if len(set(words)) > 1 else words[0]


def check_filter(value: object, name: str) -> str:
    """Return the word of one filter."""
    word: object = value
    if isinstance(value, enum.Enum):  # Pillow's have numbers for values
        word = value.value if isinstance(value.value, str) else value.name.lower()
    # As torchvision does with images of Pillow.
    word = "nearest" if word == "nearest-exact" else word
    if isinstance(word, str) and word in FILTERS:
        return str(word)
    near = difflib.get_close_matches(str(word).lower(), FILTERS, n=1)
    raise UsageError(
        f"{name}: interpolation must be one of {', '.join(FILTERS)}; got {value!r}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


def find_filters(operation: object) -> tuple[int, ...]:
    """Return the filters of an image operation, to draw from, by Pillow's numbers.

    Raises:
        UsageError: an operation of the user's own has a filter that is none.
    """
    words = check_interpolation(getattr(operation, "interpolation", "bilinear"), type(operation).__name__)
    return tuple(FILTERS[word] for word in ((words,) if isinstance(words, str) else words))
