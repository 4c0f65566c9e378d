# SPDX-License-Identifier: Apache-2.0
"""Temporary folders go away, too, when a scheduler or a closing terminal ends a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_like_an_interrupt() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, which end Python on the spot, into an exception that runs every `finally`."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
