# SPDX-License-Identifier: Apache-2.0
"""The tier of a cache that lies on the GPU: whole decoded images, filled in the first epoch, never evicted.

```
a sample    ABSENT --claim: a maker decodes it whole--> CLAIMED --keep: its bytes are queued--> HELD
            CLAIMED --release: no room, or another try may do--> ABSENT
            CLAIMED --refuse: its crops must not come from here--> REFUSED
```

It belongs to one loader and one device. Memory is taken in chunks, as it fills, on the stream of the loader's
copies; all that reads or writes there runs on that stream, so that memory which is given back needs no wait.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.cache.results import TierStats
from feedrate.errors import UsageError
from feedrate.kernel import I64
from feedrate.kernel.cuda.stored import IMAGE
from feedrate.loader.cache import GpuBudget
from feedrate.units import format_bytes

CHUNK_BYTES = 512 << 20
# So much of the GPU's memory stays free: what the model has not allocated yet is not ours to take.
LEAST_FREE_BYTES = 1_000_000_000
FREE_PART = 20
ABSENT, CLAIMED, HELD, REFUSED = range(4)
Rows = npt.NDArray[Any]
_ROW = np.dtype([("image", IMAGE), ("source_bytes", "<i8"), ("state", "u1")])

log = logging.getLogger("feedrate")


class GpuTier:
    """Images by field and position, and the memory they lie in. Any thread may use it.

    Attributes:
        is_frozen: no more memory is taken.

    Args:
        stream: the one of the loader's copies to the device.
        fields: names of the fields whose images may be kept.
        samples: how many the pack has.

    Raises:
        UsageError: the device has not as much memory as was asked for.
    """

    def __init__(
        self, device: Any, stream: Any, budget: GpuBudget, fields: Sequence[str], samples: int
    ) -> None:
        self.device, self.stream, self._budget = device, stream, budget
        # A garbage collection in a thread that holds it may end the loader, and close this.
        self._lock = threading.RLock()
        self._tables = {name: np.zeros(samples, _ROW) for name in fields}
        self._chunks: list[Any] = []
        self._left = 0  # of the last chunk
        self._is_full = self.is_frozen = False  # full: nothing is claimed any more
        self._check_budget()
        self.begin_epoch()

    def _check_budget(self) -> None:
        limit, (free, kept_free) = self._budget.limit_bytes, self._measure_free()
        # Where another loader has filled some of it, training has begun: then what fits is taken, in words.
        if limit is None or self._budget.left < limit or limit <= free - kept_free:
            return
        most = max(free - kept_free, 0) // 1_000_000
        fits = f'gpu="{most}MB" fits now; ' if most else ""
        raise UsageError(
            f"cache=Cache(gpu={self._budget.asked!r}) does not fit: {self.device} has "
            f"{format_bytes(free)} free, of which {format_bytes(kept_free)} stay free for the model",
            hint=f'{fits}gpu="auto" takes what is free, as it fills',
        )

    def _measure_free(self) -> tuple[int, int]:
        """Return how many bytes are free on the device, and how many of them stay free."""
        import torch

        free, total = torch.cuda.mem_get_info(self.device)
        return free, max(LEAST_FREE_BYTES, total // FREE_PART)

    def begin_epoch(self) -> None:
        with self._lock:
            self._hits = self._made = self._others = 0

    def count(self, *, hits: int, made: int, others: int) -> None:
        """Add samples of this epoch: that were here, that came here, and that came another way."""
        with self._lock:
            self._hits, self._made, self._others = self._hits + hits, self._made + made, self._others + others

    def takes(self, field: str) -> bool:
        return field in self._tables

    def find(self, field: str, positions: I64) -> tuple[npt.NDArray[np.bool_], Rows]:
        """Return which images are here, and all their rows of `IMAGE`."""
        with self._lock:
            rows = self._tables[field][positions]
        return rows["state"] == HELD, rows["image"]

    def hold(self) -> list[Any]:
        """Return the memory of what is here now: while the caller keeps it, `close` does not free it."""
        with self._lock:
            return list(self._chunks)

    def has(self, field: str, positions: I64) -> npt.NDArray[np.bool_]:
        """Return which samples of a field are here, so that their bytes are not needed."""
        return self.find(field, positions)[0] if self.takes(field) else np.zeros(len(positions), np.bool_)

    def claim(self, field: str, positions: I64, sizes: I64) -> npt.NDArray[np.bool_]:
        """Return which images the caller is to decode whole, as far as there is room for them; no promise.

        When not even the first one fits, nothing is claimed any more: what is kept stays the same.

        Args:
            positions: each one once.
            sizes: how many bytes each takes, at the most.
        """
        table, limit = self._tables[field], self._budget.limit_bytes
        with self._lock:
            if self._is_full:
                return np.zeros(len(positions), np.bool_)
            claimed: npt.NDArray[np.bool_] = table["state"][positions] == ABSENT
            if limit is not None:
                claimed &= sizes <= limit
                fits = np.cumsum(np.where(claimed, sizes, 0)) <= self._left + self._budget.left
                self._is_full = bool(claimed.any()) and not (claimed & fits).any()
                claimed &= fits
            table["state"][positions[claimed]] = CLAIMED
        return claimed

    def reserve(self, size_bytes: int) -> Any:
        """Return memory for an image; None: there is none."""
        with self._lock:
            if size_bytes > self._left and not self._grow(size_bytes):
                return None
            chunk = self._chunks[-1]
            start = len(chunk) - self._left
            self._left -= size_bytes
            return chunk[start : start + size_bytes]

    def _grow(self, size_bytes: int) -> bool:
        if self.is_frozen:
            return False
        import torch

        free, kept_free = self._measure_free()
        most = min(CHUNK_BYTES, free - kept_free)
        chunk_bytes = self._budget.take(size_bytes, most)
        if not chunk_bytes:
            self._freeze(
                f"{format_bytes(free)} are free, of which {format_bytes(kept_free)} stay free for the model"
                if most < size_bytes
                else None
            )
            return False
        try:
            with torch.cuda.stream(self.stream):
                chunk = torch.empty(chunk_bytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            self._budget.give(chunk_bytes)
            self._freeze(str(error).splitlines()[0])
            return False
        self._chunks.append(chunk)
        self._left = chunk_bytes
        return True

    def freeze(self, reason: str) -> None:
        """Take no more memory, and say why."""
        with self._lock:
            self._freeze(reason)

    def _freeze(self, reason: str | None) -> None:
        """Take no more memory; without a reason, it is as full as was asked for."""
        if reason is not None and not self.is_frozen:
            log.warning(
                "the cache takes no more than the %s that it has on %s: %s. What is kept stays, other "
                "samples come as without it", format_bytes(self.memory_bytes), self.device, reason,
            )  # fmt: skip
        self._is_full = self.is_frozen = True

    def keep(self, field: str, positions: I64, images: Rows, source_bytes: I64) -> None:
        """Publish images whose bytes are queued, as rows of `IMAGE`; the caller claimed them."""
        rows = np.zeros(len(positions), _ROW)
        rows["image"], rows["source_bytes"], rows["state"] = images, source_bytes, HELD
        with self._lock:
            self._tables[field][positions] = rows

    def refuse(self, field: str, positions: I64) -> None:
        """Let nobody try these again."""
        with self._lock:
            self._tables[field]["state"][positions] = REFUSED

    def release(self, field: str, positions: I64) -> None:
        """Let others try what the caller claimed and neither kept nor refused."""
        states = self._tables[field]["state"]
        with self._lock:
            states[positions[states[positions] == CLAIMED]] = ABSENT

    @property
    def memory_bytes(self) -> int:
        """How much of the device's memory it has."""
        return sum(len(chunk) for chunk in self._chunks)

    def stats(self, positions: I64, fields: Sequence[str]) -> TierStats:
        """Return what is here of some samples, and the hits of this epoch."""
        samples = size_bytes = source_bytes = 0
        for name in self._tables.keys() & set(fields):
            with self._lock:
                rows = self._tables[name][positions]
            rows = rows[rows["state"] == HELD]
            image = rows["image"]
            samples += len(rows)
            size_bytes += int((image["width"].astype(np.int64) * image["height"] * image["channels"]).sum())
            source_bytes += int(rows["source_bytes"].sum())
        return TierStats("gpu", samples, size_bytes, source_bytes, self._budget.limit_bytes, self._hits)

    @property
    def misses(self) -> tuple[int, int]:
        """Samples of this epoch that were not here: that came here, and that came another way."""
        with self._lock:
            return self._made, self._others

    def close(self) -> None:
        """Give the memory back, to the device itself: others may wait for it. May be called twice."""
        with self._lock:
            had_memory = bool(self._chunks)
            self._budget.give(self.memory_bytes)
            self._chunks.clear()
            self._left, self._is_full, self.is_frozen = 0, True, True
            self._tables = {}
        if had_memory:
            import torch

            with contextlib.suppress(RuntimeError):  # the process ends, and CUDA did before
                torch.cuda.empty_cache()
