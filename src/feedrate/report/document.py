# SPDX-License-Identifier: Apache-2.0
"""Results as JSON documents: the result's own fields, under the command's name and a schema version."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Goes up when a field changes its meaning or goes away; new fields leave it as it is.
SCHEMA_VERSION = 1


def dump_document(command: str, result: DataclassInstance) -> str:
    """Return any result dataclass as one JSON object, ending with a newline."""
    fields = _plain(dataclasses.asdict(result))
    if "command" in fields:
        # Of the doctor: what it ran. `command` says whose document this is, in all of them.
        fields = {"argv": fields.pop("command"), **fields}
    document = {"command": command, "schema_version": SCHEMA_VERSION, **fields}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _plain(value: Mapping[str, object]) -> dict[str, object]:
    return {str(name): _plain_value(v) for name, v in value.items()}


def _plain_value(value: object) -> object:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain_value(v) for v in value]
    # JSON has no infinity and no NaN; strict readers stumble over Python's.
    return None if isinstance(value, float) and not math.isfinite(value) else value
