# SPDX-License-Identifier: Apache-2.0
"""Results whose every text was written by somebody who means harm, made from the types of their fields."""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import types
import typing
from typing import Any

# A terminal would clear its screen, and begin a line that feedrate did not write; a browser would run it.
NAME = "\x1b[2J\x9b\r\nforged\u202e\x07<script>alert(1)</script>\udcff"


def make_hostile(hint: Any) -> Any:
    """Return a value of a type, with `NAME` wherever there is text."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is str or hint is object or hint is Any:
        return NAME
    if hint in (int, float, bool, bytes):
        return {int: 2, float: 0.5, bool: True, bytes: b"x"}[hint]
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return make_hostile(next(one for one in arguments if one is not type(None)))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(map(make_hostile, arguments))
    if origin in (tuple, collections.abc.Sequence):
        return (make_hostile(arguments[0]),) * 2
    if origin in (dict, collections.abc.Mapping):
        return {make_hostile(arguments[0]): make_hostile(arguments[1])}
    assert dataclasses.is_dataclass(hint), hint
    hints = typing.get_type_hints(hint, vars(sys.modules[hint.__module__]))
    return hint(**{f.name: make_hostile(hints[f.name]) for f in dataclasses.fields(hint) if f.init})
