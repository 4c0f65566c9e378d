# SPDX-License-Identifier: Apache-2.0
"""JSON to a checked dataclass, and back: the fields' types say what a document must hold.

By hand: 130 lines that every command may load at once. A library for it would be one more to install, and its
sentences are not ours.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

Loaded = TypeVar("Loaded")
# Of a type and a value of JSON that is none of it: what stands in its place.
Instead = Callable[[Any, Any], Any]


class Stored(NamedTuple):
    """How a field stands in a document, as `Annotated[type, Stored(...)]`.

    Attributes:
        load: returns the field's value of the document's, or raises ValueError or TypeError. None: as its
            type says.
        name: what it is called there; "": as the field.
        dump: the way back.
    """

    load: Callable[[Any], Any] | None = None
    name: str = ""
    dump: Callable[[Any], Any] = lambda value: value


class _Entry(NamedTuple):
    field: str
    name: str
    kind: Any
    load: Callable[[Any], Any] | None
    dump: Callable[[Any], Any]
    default: Any
    is_needed: bool


@functools.cache
def _list_entries(kind: type) -> tuple[_Entry, ...]:
    hints, found = get_type_hints(kind, include_extras=True), []
    for one in fields(kind):
        hint, stored = hints[one.name], Stored()
        if get_origin(hint) is Annotated:
            hint, stored = get_args(hint)[:2]
        is_needed = one.default is MISSING and one.default_factory is MISSING
        name = stored.name or one.name
        found.append(_Entry(one.name, name, hint, stored.load, stored.dump, one.default, is_needed))
    return tuple(found)


def load(kind: type[Loaded], value: object, instead: Instead | None = None) -> Loaded:
    """Return a value of JSON as what it is declared to be: a dataclass, a tuple, a mapping, a number.

    Args:
        instead: asked for what is missing or something else; None: that is an error.

    Raises:
        ValueError, TypeError: it is something else.
    """
    return cast(Loaded, _load(kind, value, instead))


def _load(kind: Any, value: Any, instead: Instead | None) -> Any:
    if is_dataclass(kind):
        return _load_fields(cast(type, kind), _fit(Mapping, value, instead), instead)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        listed = _fit(list, value, instead)
        if instead is not None and is_dataclass(inner[0]):  # then what is none is left out
            listed = [one for one in listed if isinstance(one, Mapping)]
        return tuple(_load(inner[0], one, instead) for one in listed)
    if origin is Mapping:
        named = _fit(Mapping, value, instead)
        return {str(name): _load(inner[1], one, instead) for name, one in named.items()}
    if origin in (Union, types.UnionType):
        known = [one for one in inner if one is not types.NoneType]
        return value if value is None or len(known) > 1 else _load(known[0], value, instead)
    if origin is Literal:
        is_one = value in inner
    elif kind is float:
        # A whole number of JSON has no largest one; a float has.
        is_one = type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
        value = float(value) if is_one else value
    else:
        is_one = kind is Any or type(value) is kind
    return value if is_one else _replace(kind, value, instead)


def _load_fields(kind: type, given: Mapping[str, Any], instead: Instead | None) -> Any:
    values = {}
    for one in _list_entries(kind):
        if one.name in given or (one.is_needed and instead is not None):
            value = given.get(one.name)
            values[one.field] = _load(one.kind, value, instead) if one.load is None else one.load(value)
        elif one.is_needed:
            raise ValueError(f"{kind.__name__} has no {one.name}")
    made = kind(**values)
    check = getattr(made, "check_loaded", None)
    if check is not None and instead is None:
        check()
    return made


def _fit(kind: Any, value: Any, instead: Instead | None) -> Any:
    return value if isinstance(value, kind) else _replace(kind, value, instead)


def _replace(kind: Any, value: Any, instead: Instead | None) -> Any:
    if instead is None:
        raise ValueError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return instead(kind, value)


def dump(thing: Any, *, omits_defaults: bool = False) -> dict[str, Any]:
    """Return the document of a dataclass, from which `load` makes it again; its fields as `Stored` says."""
    kind: Any = type(thing)
    values = ((one, getattr(thing, one.field)) for one in _list_entries(kind))
    return {
        one.name: one.dump(value)
        for one, value in values
        if not omits_defaults or one.is_needed or value != one.default
    }
