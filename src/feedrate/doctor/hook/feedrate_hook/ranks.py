# SPDX-License-Identifier: Apache-2.0
"""Ranks agree, through files in the run folder, when the experiments begin and how many steps each phase has.

A rank that made one step more than the others would wait in a collective for ever.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from typing import Any

MARGIN = 8  # steps between the decision and the beginning: every rank has read it by then
PATIENCE_S = 120.0  # longer than a rank waits for those who write


class Ranks:
    """One rank's view. With one rank every answer is immediate."""

    def __init__(self, book: Any) -> None:
        self.rank = 0
        self.size = 1
        self._folder = book.run
        # Several jobs, or a restarted one, may share a run folder.
        names = (
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SLURM_STEP_ID",
        )
        job = "|".join(os.environ.get(name, "") for name in names)
        self._job = f"{zlib.crc32(job.encode()):08x}"
        self._agreed: dict[str, Any] | None = None

    def look(self) -> None:
        """Find out whether this process has others to keep step with, and tell them that it takes part.

        Variables of the environment do not tell: tasks beside each other need not train one model.
        """
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        if self.size > 1:
            self._write(f"rank-{self.rank}", {})

    def withdraw(self) -> None:
        """It does not any more."""
        if self.size == 1:
            return
        try:
            os.unlink(self._path(f"rank-{self.rank}"))
        except OSError:
            return

    def present(self) -> int:
        return sum(os.path.exists(self._path(f"rank-{rank}")) for rank in range(self.size))

    def decide(self, plan: dict[str, Any]) -> None:
        self._write("begin", plan)
        self._agreed = plan

    def plan(self) -> dict[str, Any] | None:
        """What rank 0 decided; None: nothing yet. Cheap: it is asked at every step."""
        if self._agreed is None:
            self._agreed = self._read("begin")
        return self._agreed

    def gather(self, name: str, value: Any) -> list[Any] | None:
        """Every rank's value, when all are there. None: one of them did not come."""
        if self.size == 1:
            return [value]
        self._write(f"{name}-{self.rank}", value)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.has_ended():
            values = [self._read(f"{name}-{rank}") for rank in range(self.size)]
            if all(value is not None for value in values):
                return values
            time.sleep(0.01)
        return None

    def has_ended(self) -> bool:
        """Some other rank is over: whoever waits for it in a collective waits in vain."""
        return any(
            os.path.exists(self._path(f"ended-{rank}")) for rank in range(self.size) if rank != self.rank
        )

    def leave(self) -> None:
        """End together: a rank that goes first takes the others' connections down."""
        if self.size == 1:
            return
        self._write(f"ended-{self.rank}", {})
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            if all(os.path.exists(self._path(f"ended-{rank}")) for rank in range(self.size)):
                return
            time.sleep(0.01)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{self._job}-{name}")

    def _write(self, name: str, value: Any) -> None:
        path = self._path(name)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.rename(f"{path}.{os.getpid()}", path)

    def _read(self, name: str) -> Any:
        try:
            with open(self._path(name), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None
