# SPDX-License-Identifier: Apache-2.0
"""Makes run folders as the hook would leave them, of loops whose times are known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedrate.doctor.hook.feedrate_hook import layout

MS = 1_000_000


class FakeProcess:
    """One process's facts and records; `write` puts them into the folder."""

    def __init__(self, pid: int, **facts: Any) -> None:
        self.pid = pid
        self.facts: list[dict[str, Any]] = [{"kind": "process", "pid": pid, **facts}]
        self.records: list[bytes] = []
        self._names: dict[str, int] = {}

    def fact(self, kind: str, **values: Any) -> None:
        self.facts.append({"kind": kind, "t_ns": 0, **values})

    def record(
        self, kind: int, name: str, start: int, wall: int, *, phase: int = 0, cpu: int = 0, queue: int = 0,
        a: int = 0, b: int = 0, c: int = 0,
    ) -> None:  # fmt: skip
        number = self._names.setdefault(name, len(self._names) + 1) if name else 0
        self.records.append(layout.RECORD.pack(kind, phase, number, start, wall, cpu, queue, a, b, c))

    def write(self, folder: Path) -> None:
        names = [{"kind": "name", "id": number, "text": text} for text, number in self._names.items()]
        text = "".join(json.dumps(fact) + "\n" for fact in [*names, *self.facts])
        (folder / f"{self.pid}-1.facts").write_text(text)
        header = layout.HEADER.pack(
            layout.MAGIC, layout.VERSION, self.pid, layout.CAPACITY, len(self.records)
        ).ljust(layout.HEADER_BYTES, b"\0")
        (folder / f"{self.pid}-1.ring").write_bytes(header + b"".join(self.records))


class FakeLoop:
    """A training loop that steps exactly as told; times in milliseconds."""

    def __init__(
        self, *, workers: int = 2, pid: int = 100, batch: int = 8, loader: Mapping[str, Any] | None = None
    ) -> None:
        self.main = FakeProcess(pid, rank=0, role="main")
        self.batch, self.workers = batch, workers
        self.now = 1000 * MS
        self.number = 0
        self.main.fact("torch", version="2.13.0", cuda=False, threads=1)
        self.main.fact("module", **{"class": "Net", "device": "cpu"})
        self.main.fact("loader", loader="loader-0", num_workers=workers, batch_size=batch, **(loader or {}))

    def step(
        self, *, wait: float, forward: float = 4, backward: float = 5, optimizer: float = 1, other: float = 0,
        before: float = 0, phase: int = layout.REAL, probed: bool = True, wait_cpu: float = 0.1,
    ) -> None:  # fmt: skip
        """One next() and the computing after it; `before` and `other` are the loop's own code."""
        c = layout.PROBED if probed else 0
        self.main.record(
            layout.WAIT, "loader-0", self.now, round(wait * MS), phase=phase, cpu=round(wait_cpu * MS),
            a=self.batch, b=self.number, c=c,
        )  # fmt: skip
        self.now += round((wait + before) * MS)
        for kind, length in (
            (layout.FORWARD, forward),
            (layout.BACKWARD, backward),
            (layout.OPTIMIZER, optimizer),
        ):
            if probed and length:
                self.main.record(kind, "", self.now, round(length * MS), phase=phase)
            self.now += round(length * MS)
        self.now += round(other * MS)
        self.number += 1

    def fetches(self, pid: int, count: int, *, cpu: float, blocked: float = 0, queue: float = 0,
                parts: Mapping[str, tuple[float, float]] | None = None, phase: int = layout.REAL,
                from_disk: float = 0.0, faults: int = 0) -> FakeProcess:  # fmt: skip
        """A worker that made `count` batches; times per batch. `parts`: name -> cpu, blocked.

        `from_disk`: the bytes that a disk gave, for each one that was read.
        """
        worker = FakeProcess(pid, ppid=self.main.pid, role="worker")
        now = 1000 * MS
        wall = cpu + blocked + queue
        for i in range(count):
            worker.record(
                layout.FETCH, "", now, round(wall * MS), phase=phase, cpu=round(cpu * MS),
                queue=round(queue * MS),
                a=self.batch, c=i,
            )  # fmt: skip
            for name, (part_cpu, part_blocked) in (parts or {}).items():
                worker.record(
                    layout.PART, name, now, round((part_cpu + part_blocked) * MS), phase=phase,
                    cpu=round(part_cpu * MS), a=self.batch,
                )  # fmt: skip
            read = 100_000 * self.batch
            worker.record(layout.IO, "", now, 0, phase=phase, a=read, b=round(read * from_disk), c=faults)
            now += round(wall * MS)
        return worker


def fill(disk: Path, but: int = 0) -> None:
    """Leave so many bytes of a small disk free."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - but))
