# SPDX-License-Identifier: Apache-2.0
"""Turn values that stand in a source's tables into bytes, and refuse, in words, what nobody could load."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.format.fields import Kind


class UnusableValue(Exception):
    """The reason, in words, why an input cannot be packed."""


def dump_value(kind: Kind, value: object) -> bytes:
    """Return the bytes that stand for a value of a table.

    Raises:
        UnusableValue: the value is not of this kind.
    """
    if kind is Kind.TEXT:
        if isinstance(value, (list, dict)):
            raise UnusableValue("is not a text")
        return str(value).encode("utf-8", "surrogateescape")
    if kind is Kind.JSON:
        return json.dumps(_parse_json(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert kind is Kind.BOXES, kind
    return dump_array(_parse_boxes(_parse_json(value)))


def dump_array(array: npt.NDArray[Any]) -> bytes:
    """Return a .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _parse_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnusableValue(f"is not JSON: {error}") from error


def _parse_boxes(rows: object) -> npt.NDArray[np.float32]:
    try:
        boxes = np.asarray(rows if rows else np.zeros((0, 4)), np.float32)
    except (ValueError, TypeError) as error:
        raise UnusableValue("boxes must be rows of equally many numbers") from error
    if boxes.ndim != 2 or boxes.shape[1] < 4 or not np.isfinite(boxes).all():
        raise UnusableValue(f"boxes must be rows of at least 4 finite numbers, got shape {boxes.shape}")
    return boxes
