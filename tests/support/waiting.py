# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(claim: Callable[[], bool]) -> bool:
    """Ask again and again for two minutes at most; return the last answer."""
    deadline = time.monotonic() + 120
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.01)
    return claim()
