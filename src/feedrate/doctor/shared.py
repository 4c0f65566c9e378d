# SPDX-License-Identifier: Apache-2.0
"""Shared memory of a run in /dev/shm: which names its processes had mapped, and away with those left behind.

torch and multiprocessing remove their names themselves, through a process that outlives the others. When that
one was killed, too, nobody would.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from feedrate.probe.process import ProcessStat, list_processes, read_file

FOLDER = Path("/dev/shm")


class SharedNames:
    """Collects names. A process is asked when it is new or got a child: queues are made before workers."""

    def __init__(self) -> None:
        self._due: set[int] = set()
        self._known: set[int] = set()
        self.names: set[str] = set()

    def look(self, members: dict[int, ProcessStat]) -> list[str]:
        """Return the names that were not known before."""
        found = set().union(*(read_mapped_names(pid) for pid in self._due if pid in members))
        new = members.keys() - self._known
        # What has just started maps its memory a little later: it is asked at the next look.
        self._due = new | {members[pid].parent for pid in new}
        self._known |= new
        fresh = found - self.names
        self.names |= fresh
        return sorted(fresh)


def read_mapped_names(pid: int, folder: Path = FOLDER) -> set[str]:
    """Return the names in /dev/shm of what a process has mapped, if they are still there."""
    prefix = f"{folder}/".encode()
    lines = (read_file(f"/proc/{pid}/maps") or b"").splitlines()
    # By number: a semaphore is made under another name, which is shown, and then given its own.
    numbers = {int(line.split(None, 5)[4]) for line in lines if prefix in line}
    if not numbers:
        return set()
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.inode() in numbers}


def remove_names(names: Iterable[str], *, since: float, folder: Path = FOLDER) -> None:
    """Remove names that this user made since a moment (seconds of the clock), and that nobody uses."""
    left = {name for name in names if _is_ours(folder / name, since)}
    if not left:
        return
    used = set().union(*(read_mapped_names(pid, folder) for pid in list_processes()))
    for name in left - used:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _is_ours(path: Path, since: float) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return facts.st_uid == os.geteuid() and facts.st_ctime >= since
