# SPDX-License-Identifier: Apache-2.0
"""One process's records and facts. Made at the first record; never raises, and stops when the disk is full.

Writers need no lock: each takes a number, fills the slot of that number, then stores the count. Two threads
that cross can leave the count one short until the next record.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import struct
import threading
import time
from typing import Any

from . import layout

_COUNT = struct.Struct("<q")
_PHASE = struct.Struct("<I")
_CHUNK = 1024  # records for which space is reserved at a time
_MOST_NAMES = 50_000
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


class Ring:
    """The records of this process, and its names and facts."""

    def __init__(self, run: str) -> None:
        self.phase = layout.REAL
        self._run = run
        self._path = os.path.join(run, f"{os.getpid()}-{time.perf_counter_ns()}") if run else ""
        self._memory: Any = None
        self._numbers = itertools.count()
        self._room = 0 if run else -1  # records below this number have space; -1: no recording
        self._lock = threading.RLock()
        self._is_growing = False
        self._names: dict[str, int] = {"": 0}
        self._name_numbers = itertools.count(1)

    def write(
        self,
        kind: int,
        name: int,
        start: int,
        wall: int,
        cpu: int = 0,
        queue: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        phase: int | None = None,
    ) -> None:
        number = next(self._numbers)
        if number >= self._room and not self._grow(number):
            return
        start_byte = layout.HEADER_BYTES + number % layout.CAPACITY * layout.RECORD.size
        if phase is None:
            phase = self.phase
        try:
            layout.RECORD.pack_into(
                self._memory, start_byte, kind, phase, name, start, wall, cpu, queue, a, b, c
            )
            _COUNT.pack_into(self._memory, layout.WRITTEN_OFFSET, number + 1)
        except (struct.error, ValueError, TypeError):
            # The fields before the one that does not fit are there already.
            self._memory[start_byte : start_byte + layout.RECORD.size] = bytes(layout.RECORD.size)

    def set_phase(self, phase: int) -> None:
        self.phase = phase
        if self._memory is None and self._room == 0:
            self._grow(0)
        if self._memory is not None:
            _PHASE.pack_into(self._memory, layout.PHASE_OFFSET, phase)

    def _grow(self, number: int) -> bool:
        """Reserve space: to write to a mapped file that has no blocks, on a full disk, kills the process."""
        if self._room < 0:
            return False
        with self._lock:
            if self._is_growing:
                return False  # a finalizer that ran in the middle of this wants to record something
            self._is_growing = True
            try:
                if self._memory is None:
                    self._memory = self._create()
                while self._room <= number:
                    self._reserve(self._room)
                    self._room += _CHUNK
                    if self._room >= layout.CAPACITY:
                        self._room = 2**62
            except Exception:
                self._room = -1
                return False
            finally:
                self._is_growing = False
        return True

    def _create(self) -> Any:
        path = f"{self._path}.ring"
        size = layout.HEADER_BYTES + layout.CAPACITY * layout.RECORD.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOSE_ON_EXEC, 0o600)
        try:
            # In this order: on a full disk the file stays empty. Workers map its header, and to read a page
            # of a full tmpfs that has no block kills the process, too.
            _fallocate(fd, 0, layout.HEADER_BYTES)
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        _PHASE.pack_into(memory, layout.PHASE_OFFSET, self.phase)
        layout.HEADER.pack_into(memory, 0, layout.MAGIC, layout.VERSION, os.getpid(), layout.CAPACITY, 0)
        return memory

    def _reserve(self, first: int) -> None:
        # Opened again each time: a kept descriptor may have become another file's.
        fd = os.open(f"{self._path}.ring", os.O_RDWR | _CLOSE_ON_EXEC)
        try:
            start = layout.HEADER_BYTES + first * layout.RECORD.size
            _fallocate(fd, start, _CHUNK * layout.RECORD.size)
        finally:
            os.close(fd)

    def name(self, text: str) -> int:
        """Return the number of a name; a new one is written to the facts first."""
        number = self._names.get(text)
        return self.names([text])[0] if number is None else number

    def names(self, texts: list[str]) -> list[int]:
        """Return the numbers of names; new ones are written to the facts first, with one write."""
        lines = []
        for text in texts:
            if text not in self._names and len(self._names) < _MOST_NAMES:
                number = self._names[text] = next(self._name_numbers)
                lines.append({"kind": "name", "t_ns": time.perf_counter_ns(), "id": number, "text": text})
        if lines:
            self.append(lines)
        return [self._names.get(text, 0) for text in texts]

    def append(self, lines: list[dict[str, Any]]) -> None:
        """Append facts. Nothing happens when the run folder is gone."""
        if not self._path:
            return
        try:
            data = "".join(json.dumps(line, default=str) + "\n" for line in lines).encode("utf-8", "replace")
            fd = os.open(
                f"{self._path}.facts", os.O_WRONLY | os.O_APPEND | os.O_CREAT | _CLOSE_ON_EXEC, 0o600
            )
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except (OSError, ValueError, TypeError):
            pass


def _fallocate(fd: int, start: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, start, size)
    except (AttributeError, OSError):
        # Some file systems do not know the call; a full disk fails here as well.
        if os.pwrite(fd, bytes(size), start) != size:
            raise


class ParentPhase:
    """The phase that the parent process is in, read from the header of its ring."""

    def __init__(self, run: str, parent: int) -> None:
        self._memory: Any = None
        try:
            rings = [n for n in os.listdir(run) if n.startswith(f"{parent}-") and n.endswith(".ring")]
            newest = max(rings, key=lambda n: int(n.split("-")[1].split(".")[0]))
            fd = os.open(os.path.join(run, newest), os.O_RDONLY | _CLOSE_ON_EXEC)
            try:
                self._memory = mmap.mmap(fd, layout.HEADER_BYTES, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            pass

    @property
    def is_known(self) -> bool:
        """False: it has recorded nothing so far, or is no process that the hook is in."""
        return self._memory is not None

    def read(self) -> int:
        if self._memory is None:
            return layout.REAL
        phase = int(_PHASE.unpack_from(self._memory, layout.PHASE_OFFSET)[0])
        return phase if phase < len(layout.PHASES) else layout.REAL
