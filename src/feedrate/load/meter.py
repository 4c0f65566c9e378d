# SPDX-License-Identifier: Apache-2.0
"""What each stage of a loader did and how long it took; `Loader.stats()` reads it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from feedrate.kernel import DecodeReport
from feedrate.results.load import LoaderStats, StageStats

STAGES = (
    "order",
    "fetch",
    "index",
    "read and decode",
    "other fields",
    "transform",
    "collate",
    "finish",
    "transfer",
)


class Meter:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_s = dict.fromkeys(STAGES, 0.0)
        self._batches = dict.fromkeys(STAGES, 0)
        self._waited_s = {"consumer": 0.0, "makers": 0.0, "makers for the device": 0.0}
        self._counts: Counter[str] = Counter()
        self._pillow_reasons: Counter[str] = Counter()
        self._cpu_reasons: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the body as one batch of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                self._busy_s[name] += seconds
                self._batches[name] += 1

    def add_wait(self, who: str, seconds: float) -> None:
        with self._lock:
            self._waited_s[who] += seconds

    @contextmanager
    def wait(self, who: str) -> Iterator[None]:
        """Count the time of the body as waiting."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add_wait(who, time.perf_counter() - began)

    def waits(self) -> tuple[float, float]:
        """Return how many seconds the consumer has waited, and all makers together for the device."""
        with self._lock:
            return self._waited_s["consumer"], self._waited_s["makers for the device"]

    def count(self, **counts: int) -> None:
        """Add to `batches`, `samples`, `bad_samples`, `empty_batches`, `left_out`, `bytes_read`."""
        with self._lock:
            self._counts.update(counts)

    def add_report(self, report: DecodeReport) -> None:
        with self._lock:
            self._counts["by_pillow"] += report.by_pillow
            self._pillow_reasons.update(report.pillow_reasons or {})

    def add_gpu(self, decoded: int, left: Mapping[str, int]) -> bool:
        """Count images that the GPU decoded, and why others were left to the CPU; say if none was before."""
        with self._lock:
            is_first = not self._cpu_reasons
            self._counts["by_gpu"] += decoded
            self._cpu_reasons.update(left)
        return is_first

    def read(self) -> LoaderStats:
        with self._lock:
            stages = tuple(StageStats(name, self._batches[name], self._busy_s[name]) for name in STAGES)
            return LoaderStats(
                stages=stages,
                batches=self._counts["batches"],
                samples=self._counts["samples"],
                bad_samples=self._counts["bad_samples"],
                left_out=self._counts["left_out"],
                bytes_read=self._counts["bytes_read"],
                by_pillow=self._counts["by_pillow"],
                pillow_reasons=dict(self._pillow_reasons),
                consumer_waited_s=self._waited_s["consumer"],
                makers_waited_s=self._waited_s["makers"] + self._waited_s["makers for the device"],
                empty_batches=self._counts["empty_batches"],
                by_gpu=self._counts["by_gpu"],
                cpu_reasons=dict(self._cpu_reasons),
            )
