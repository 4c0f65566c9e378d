# SPDX-License-Identifier: Apache-2.0
"""JSON becomes a checked dataclass, or is refused; and comes back as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from feedrate import documents
from feedrate.documents import Stored


@dataclass(frozen=True)
class Part:
    crc: Annotated[int, Stored(lambda text: int(text, 16), "crc32c", "{:x}".format)]
    name: str = "whole"


@dataclass(frozen=True)
class Thing:
    kind: Literal["one", "two"]
    rate: float
    parts: tuple[Part, ...]
    counts: Mapping[str, int]
    limit: float | None = None


DOCUMENT = {"kind": "one", "rate": 3, "parts": [{"crc32c": "ff"}], "counts": {"a": 1}, "newer": 1}
THING = Thing("one", 3.0, (Part(255),), {"a": 1})


def test_a_document_becomes_what_its_fields_say() -> None:
    assert documents.load(Thing, DOCUMENT) == THING
    assert type(documents.load(Thing, DOCUMENT).rate) is float


def test_what_was_dumped_is_loaded_again() -> None:
    part = Part(7, "other")
    assert documents.dump(part) == {"crc32c": "7", "name": "other"}
    assert documents.load(Part, documents.dump(part)) == part
    assert documents.dump(Part(7), omits_defaults=True) == {"crc32c": "7"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "three"}, "'three' is no"),
        ({"rate": True}, "True is no float"),
        ({"rate": math.inf}, "inf is no float"),
        ({"rate": 10**400}, "is no float"),
        ({"parts": {}}, "is no list"),
        ({"parts": [3]}, "3 is no Mapping"),
        ({"parts": [{}]}, "Part has no crc32c"),
        ({"parts": [{"crc32c": "xyz"}]}, "invalid literal"),
        ({"counts": {"a": 1.5}}, "1.5 is no int"),
        ({"limit": "much"}, "'much' is no float"),
    ],
)
def test_what_is_something_else_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        documents.load(Thing, {**DOCUMENT, **changes})


def test_what_is_missing_is_replaced_where_somebody_says_by_what() -> None:
    def guess(kind: Any, value: Any) -> Any:
        return {Mapping: {}, list: [], float: math.nan, str: "", int: -1}.get(kind, value)

    found = documents.load(Thing, {"kind": "two", "parts": [3, {"crc32c": "1"}], "counts": {"a": "x"}}, guess)
    assert math.isnan(found.rate)
    assert (found.kind, found.parts, found.counts) == ("two", (Part(1),), {"a": -1})
