# SPDX-License-Identifier: Apache-2.0
"""The processes of a command: which they are, what they leave in /dev/shm, and how both are removed.

torch and multiprocessing remove their names in /dev/shm themselves, through a process that outlives the
others. When that one was killed, too, they stay: then the doctor removes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from feedrate.doctor.facts import read_facts
from feedrate.doctor.hook.feedrate_hook.layout import ENVIRONMENT
from feedrate.machine.process import (
    ProcessStat,
    is_alive,
    list_processes,
    read_command_line,
    read_environ,
    read_file,
    read_stat,
)
from feedrate.machine.rates import JobMeter


def make_meter(root: int, run: str, ignored: set[int]) -> JobMeter:
    """Return the meter of a run: who has its name in the environment belongs to it, whoever started it."""
    return JobMeter(root, ignored, lambda pid: read_environ(pid, ENVIRONMENT) == run)


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


_LOOK_EVERY_S = 0.05
_UNKNOWN_START = -1
_DYING_S = 15.0  # a killed process gives back its memory first; on a crowded machine that takes its time
# They end by themselves once nobody uses them, and remove shared memory when they do.
_CLEANERS = re.compile(r"resource_tracker|torch_shm_manager")


def find_members(run: Path, known: Mapping[int, int]) -> list[ProcessStat]:
    """Return the processes of a run that still live: those known before, and those that carry its name."""
    found = []
    mine = os.getpid()
    for pid in list_processes():
        stat = read_stat(pid)
        if stat is None or pid in (1, mine) or stat.is_over:
            continue
        if known.get(pid) == stat.start or read_environ(pid, ENVIRONMENT) == str(run):
            found.append(stat)
    return found


def end_members(run: Path, known: Mapping[int, int], *, grace_s: float, sessions: Collection[int]) -> int:
    """End what still runs: by itself within `grace_s`, else asked to (SIGTERM), else made to (SIGKILL).

    Args:
        sessions: processes in other sessions are daemons that mean to stay: they are left alone.

    Returns:
        How many did not end by themselves.
    """

    def find() -> list[ProcessStat]:
        return [stat for stat in find_members(run, known) if stat.session in sessions]

    left = _wait(find(), grace_s)
    if not left:
        return 0
    count = len(left)
    _signal(left, signal.SIGTERM)
    _signal(left, signal.SIGCONT)  # a stopped process takes no signal but SIGKILL
    _wait(left, 3.0)
    lines = ((stat, " ".join(read_command_line(stat.pid))) for stat in find())
    _signal([stat for stat, line in lines if not _CLEANERS.search(line)], signal.SIGKILL)
    _wait(find(), 2.0)
    _signal(find(), signal.SIGKILL)
    _wait(find(), _DYING_S)
    return count


def find_sessions(run: Path, own: int) -> set[int]:
    """Return the sessions in which the run's own processes are, besides the doctor's.

    Launchers give each rank a session. Whatever else made one for itself is a daemon.
    """
    found = {own}
    for fact in read_facts(run):
        is_process = fact.get("kind") == "process" and isinstance(fact.get("session"), int)
        if is_process and (fact.get("role") in ("main", "worker") or fact.get("local_rank") is not None):
            found.add(fact["session"])
    return found


def _wait(members: list[ProcessStat], seconds: float) -> list[ProcessStat]:
    until = time.monotonic() + seconds
    while members and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
        members = [stat for stat in members if is_alive(stat.pid, stat.start)]
    return members


def _signal(members: list[ProcessStat], number: signal.Signals) -> None:
    for stat in members:
        if is_alive(stat.pid, stat.start):
            try:
                os.kill(stat.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def remove_shared_memory(run: Path, known: Mapping[int, int], names: Iterable[str]) -> None:
    """Remove what the run's processes, which have ended, left in /dev/shm: torch_PID_... and `names`."""
    try:
        began = (run / "settings.json").stat().st_mtime
    except OSError:
        return
    # On a busy machine a worker can come and go between two looks at the processes; it has left records.
    rings = (path.name.partition("-")[0] for path in run.glob("*-*.ring"))
    recorded = {int(name): _UNKNOWN_START for name in rings if name.isdigit()}
    remove_names({*names, *find_torch_names({**recorded, **known})}, since=began)


def find_torch_names(known: Mapping[int, int], folder: Path = FOLDER) -> set[str]:
    """Return the names that torch made in processes which were known and have ended."""
    found = set()
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = re.fullmatch(r"torch_(\d+)_.*", name)
        if match is None or int(match.group(1)) not in known:
            continue
        stat, start = read_stat(int(match.group(1))), known[int(match.group(1))]
        # Its number may already be another process's; of one that only left records, nobody can tell.
        if stat is None or stat.is_over or start not in (stat.start, _UNKNOWN_START):
            found.add(name)
    return found


def remove_folder(run: Path) -> None:
    """Remove a run folder; one that is still being written to needs a second try."""
    for _ in range(5):
        shutil.rmtree(run, ignore_errors=True)
        if not run.exists():
            return
        time.sleep(_LOOK_EVERY_S)


def clean_up(run: Path, known: Mapping[int, int], names: Iterable[str], *, session: int) -> None:
    """Do all of it for a doctor that cannot; nothing when the run folder is gone, as after a good end.

    Args:
        session: the doctor's, which the command began in.
    """
    if run.is_dir():
        end_members(run, known, grace_s=0.0, sessions=find_sessions(run, session))
        remove_shared_memory(run, known, names)
        remove_folder(run)
