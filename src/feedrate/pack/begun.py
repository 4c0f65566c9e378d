# SPDX-License-Identifier: Apache-2.0
"""What is known of a pack when its source is listed: that is all that making its shards takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedrate.errors import SourceError
from feedrate.format.fields import Field
from feedrate.results.progress import Rejection
from feedrate.source.record import Reader


class NothingToPack(SourceError):
    """A source without a single sample that can be packed."""

    rejected: tuple[Rejection, ...] = ()


class Listed(NamedTuple):
    """A source whose listing is on disk; `settings` and `plan` say what becomes of it."""

    reader: Reader
    listing: Path
    settings: dict[str, Any]
    plan: str
    rejected: tuple[Rejection, ...]
    made: tuple[Field, ...] = ()  # by a map
    scale: float = 1.0


def all_rejected(rejected: tuple[Rejection, ...]) -> NothingToPack:
    if not rejected:
        return NothingToPack("there is nothing to pack")
    first = rejected[0]
    error = NothingToPack(
        f"not one sample can be packed, all {len(rejected):,} were rejected: '{first.path}': {first.reason}"
    )
    error.rejected = rejected
    return error


def table_name(settings: Mapping[str, Any]) -> str:
    """Return what the table of labels is called beside the shards."""
    return str(settings["labels"]["name"])
