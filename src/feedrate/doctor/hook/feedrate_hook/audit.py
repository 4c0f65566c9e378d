# SPDX-License-Identifier: Apache-2.0
"""Python's audit events. One hook for all who listen: it is called at each event, several times a sample."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_listeners: dict[str, Callable[[Any], None]] = {}


def listen(event: str, listener: Callable[[Any], None]) -> None:
    """Call `listener` with the arguments of each such event, for the life of this process and its forks."""
    if not _listeners:
        sys.addaudithook(_on_event)
    _listeners[event] = listener


def _on_event(event: str, args: Any) -> None:
    if event in _listeners:
        _listeners[event](args)
