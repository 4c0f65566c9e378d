# SPDX-License-Identifier: Apache-2.0
"""The report of a batch that was decoded in several parts."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from feedrate.kernel import I64, DecodeReport


class Tally:
    """Adds up reports; any thread may add."""

    def __init__(self, samples: int) -> None:
        self._lock = threading.Lock()
        self._statuses = np.zeros(samples, np.int32)
        self._reasons: dict[int, str] = {}
        self._by_pillow: Counter[str] = Counter()
        self._bytes_read = 0

    def count(self, report: DecodeReport) -> None:
        """Add what was read and what went through Pillow, and nothing of how samples ended."""
        with self._lock:
            self._by_pillow.update(report.pillow_reasons or {})
            self._bytes_read += report.bytes_read

    def add(self, report: DecodeReport, but: I64 | None = None, *, at: I64 | None = None) -> None:
        """Add a report of all samples `but` some, or of those `at` these places."""
        self.count(report)
        places = np.arange(len(self._statuses)) if at is None else at
        left_out = set() if but is None else set(but.tolist())
        for i, place in enumerate(places.tolist()):
            if place not in left_out:
                self._statuses[place] = report.statuses[i]
                if i in report.reasons:
                    self._reasons[place] = report.reasons[i]

    def report(self) -> DecodeReport:
        by_pillow = dict(self._by_pillow)
        return DecodeReport(
            self._statuses,
            dict(sorted(self._reasons.items())),
            sum(by_pillow.values()),
            by_pillow,
            self._bytes_read,
        )
