# SPDX-License-Identifier: Apache-2.0
"""Small views of large tensors: a worker hands over the storage under a tensor whole, not the part in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..session import session

_MOST_BATCHES = 12  # that are written down
_MOST_LOOKS = 24  # at batches that are as they should be, before it is enough
_MOST_TENSORS = 512
_DEEPEST = 4
_LEAST_BYTES = 1 << 18  # beside the batch; less is not worth a word


class Views:
    """What the batches of this worker take with them."""

    def __init__(self) -> None:
        self.is_looking = True
        self._looks = 0
        self._written = 0

    def look(self, batch: Any) -> None:
        """A batch was made in a worker, and will be handed over."""
        self._looks += 1
        used, copied = weigh(_tensors_in(batch, []) if session.torch is not None else [])
        if self._written or copied > 2 * used + _LEAST_BYTES:
            self._written += 1
            session.facts("views", used_bytes=used, copied_bytes=copied)
        self.is_looking = self._written < _MOST_BATCHES if self._written else self._looks < _MOST_LOOKS


def weigh(tensors: list[Any]) -> tuple[int, int]:
    """Return the bytes of the tensors, and those that are copied when they are handed to another process.

    A storage is copied once, whatever the number of its views; one in shared memory already is not copied.
    """
    used = copied = 0
    seen = set()
    for tensor in tensors:
        used += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and not storage.is_shared():
            seen.add(storage.data_ptr())
            copied += storage.nbytes()
    return used, copied


def _tensors_in(batch: Any, found: list[Any], depth: int = 0) -> list[Any]:
    """Return the tensors of a batch that lie in memory: of lists, tuples and mappings."""
    torch = session.torch
    if isinstance(batch, torch.Tensor):
        if batch.device.type == "cpu" and batch.layout is torch.strided and len(found) < _MOST_TENSORS:
            found.append(batch)
    elif depth < _DEEPEST and isinstance(batch, (list, tuple, Mapping)):
        elements = list(batch.values()) if isinstance(batch, Mapping) else batch
        for element in elements[:_MOST_TENSORS]:
            _tensors_in(element, found, depth + 1)
    return found


views = Views()


def after_fork() -> None:
    views.__init__()  # type: ignore[misc]
