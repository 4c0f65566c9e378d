# SPDX-License-Identifier: Apache-2.0
"""Which GPU of the machine is torch's `cuda:0`? A job on a shared machine sees only some of them."""

from __future__ import annotations

from collections.abc import Sequence


def find_gpu(uuids: Sequence[str], ordinal: int, visible: str | None) -> int | None:
    """Return the driver's number of torch's GPU `ordinal`; None: unknown.

    Args:
        uuids: of the GPUs, in the driver's order.
        visible: CUDA_VISIBLE_DEVICES of the process; None: not set.
    """
    if visible is None:
        return ordinal if ordinal < len(uuids) else None
    entries = [entry.strip() for entry in visible.split(",")]
    entry = entries[ordinal] if ordinal < len(entries) else ""
    if entry.isdigit():
        number = int(entry)
        if number < len(uuids):
            return number
        # A scheduler that hides the other GPUs from the driver, too, may leave their numbers in place.
        return ordinal if len(entries) == len(uuids) else None
    # The beginning of a name is enough for CUDA, if it is the beginning of only one.
    matches = [number for number, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
