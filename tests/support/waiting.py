# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable

from feedrate import Loader


def wait_until(claim: Callable[[], bool]) -> bool:
    """Ask again and again for two minutes at most; return the last answer."""
    deadline = time.monotonic() + 120
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.01)
    return claim()


def await_makers(loader: Loader) -> None:
    """Wait until a loader has made all that it may make for now; then no thread of its own is left."""
    run = loader._resources.run
    assert run is not None
    for maker in run._feed._makers:
        maker.join()
