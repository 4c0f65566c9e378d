# SPDX-License-Identifier: Apache-2.0
"""How fast the device takes a buffer of the batch's size, from pageable and from pinned memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

COPIES = 5
MOST_BYTES = 1 << 29


def measure(book: Any, size: int) -> None:
    """Write the fact "copy-rates". Without a CUDA device in use, nothing."""
    torch = sys.modules["torch"]
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    size = min(size, MOST_BYTES)
    pageable = torch.ones(size, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    # A batch of bytes makes four times as many on the device when it becomes float32 there.
    few = target[: max(1, size // 4)]
    book.fact(
        "copy-rates",
        bytes=size,
        pageable_bytes_per_s=size / fastest(lambda: target.copy_(pageable)),
        pinned_bytes_per_s=size / fastest(lambda: target.copy_(pinned, non_blocking=True)),
        uint8_convert_elements_per_s=few.numel() / fastest(lambda: few.float()),
    )


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of the middle one of a few goes, the device's work included."""
    synchronize = sys.modules["torch"].cuda.synchronize
    times = []
    for _ in range(COPIES + 1):
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[COPIES // 2]
