# SPDX-License-Identifier: Apache-2.0
"""The processes of a command: which they are, what they leave in /dev/shm, and how both are removed.

Members are the command's descendants, and those that lost their parent on the way. Reading every process of a
big machine twice a second would cost more than all else together. So known members are asked for their
children, and the whole of /proc is walked only as often as its cost allows.

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
from dataclasses import dataclass
from pathlib import Path

from feedrate.doctor.facts import read_facts
from feedrate.machine.process import (
    ProcessStat,
    is_alive,
    list_processes,
    read_command_line,
    read_environ,
    read_file,
    read_stat,
    read_user,
)

ENVIRONMENT = "FEEDRATE_DOCTOR"
_WALK_EVERY_S = 1.0
_WALK_SHARE = 0.003  # of one core, at most


@dataclass(frozen=True, slots=True)
class Other:
    """The processes of one name, outside of the tree, that used the most CPU between two walks."""

    name: str
    user: int | None
    cores: float


class Tree:
    """The processes below `root`, which itself is not one of them.

    Args:
        run: the run folder as it stands in the environment of the command.
        ignored: processes that watch, and their children.
    """

    def __init__(self, root: int, run: str, ignored: set[int]) -> None:
        self._root = root
        self._run = run
        self._ignored = ignored | {root}
        self._known: dict[int, int] = {}  # pid -> start
        self._strangers: dict[int, int] = {}  # looked at once: not ours
        self._cpu_before: dict[tuple[int, int], float] = {}
        self._walked_s = 0.0
        self._next_walk_s = 0.0
        self.biggest_other: Other | None = None

    def known(self) -> dict[int, int]:
        """Return every process that was ever seen as a member, ended or not: pid -> start."""
        return dict(self._known)

    def look(self, now_s: float | None = None) -> dict[int, ProcessStat]:
        """Return the members that are there now, zombies included."""
        now_s = time.monotonic() if now_s is None else now_s
        began = time.thread_time()
        if now_s >= self._next_walk_s:
            members = self._walk(now_s)
            cost_s = time.thread_time() - began
            self._next_walk_s = now_s + max(_WALK_EVERY_S, cost_s / _WALK_SHARE)
        else:
            members = self._ask_known()
        self._known.update({pid: stat.start for pid, stat in members.items()})
        return members

    def _ask_known(self) -> dict[int, ProcessStat]:
        members: dict[int, ProcessStat] = {}
        waiting = [self._root, *self._known]
        while waiting:
            pid = waiting.pop()
            if pid in members:
                continue
            if pid != self._root:
                stat = read_stat(pid)
                # A number that was given to another process meanwhile is not a member.
                if stat is None or self._known.get(pid, stat.start) != stat.start:
                    continue
                members[pid] = stat
            waiting += [child for child in _read_children(pid) if child not in self._ignored]
        return members

    def _walk(self, now_s: float) -> dict[int, ProcessStat]:
        everybody = {pid: stat for pid in list_processes() if (stat := read_stat(pid)) is not None}
        children: dict[int, list[int]] = {}
        for stat in everybody.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        roots = [self._root, *(pid for pid, stat in everybody.items() if self._is_member(stat))]
        members: dict[int, ProcessStat] = {}
        while roots:
            pid = roots.pop()
            if pid in everybody and pid not in members and pid not in self._ignored:
                members[pid] = everybody[pid]
            elif pid != self._root:
                continue
            roots += children.get(pid, [])
            children.pop(pid, None)
        self._find_biggest_other(everybody, members, now_s)
        return members

    def _is_member(self, stat: ProcessStat) -> bool:
        pid, start = stat.pid, stat.start
        if pid in self._ignored:
            return False
        if self._known.get(pid) == start:
            return True
        if self._strangers.get(pid) == start:
            return False
        if read_environ(pid, ENVIRONMENT) == self._run:
            return True
        self._strangers[pid] = start
        return False

    def _find_biggest_other(
        self, everybody: dict[int, ProcessStat], members: dict[int, ProcessStat], now_s: float
    ) -> None:
        others = [s for s in everybody.values() if s.pid not in members and not self._is_mine(s, everybody)]
        passed_s = now_s - self._walked_s
        self.biggest_other = None
        if self._cpu_before and passed_s > 0:
            # Who was not there at the last walk has begun since.
            grown = {s.pid: s.cpu_s - self._cpu_before.get((s.pid, s.start), 0.0) for s in others}
            by_name: dict[str, float] = {}
            for stat in others:
                by_name[stat.name] = by_name.get(stat.name, 0.0) + grown[stat.pid]
            name = max(by_name, key=lambda name: by_name[name], default="")
            if by_name.get(name, 0.0) > 0:
                biggest = max((s.pid for s in others if s.name == name), key=lambda pid: grown[pid])
                self.biggest_other = Other(name, read_user(biggest), by_name[name] / passed_s)
        self._cpu_before = {(s.pid, s.start): s.cpu_s for s in everybody.values()}
        self._walked_s = now_s

    def _is_mine(self, stat: ProcessStat, everybody: dict[int, ProcessStat]) -> bool:
        """Whether it is the doctor or one that watches, or was started by one."""
        mine, seen = {*self._ignored, os.getpid()}, set()
        pid = stat.pid
        while pid in everybody and pid not in seen:
            if pid in mine:
                return True
            seen.add(pid)
            pid = everybody[pid].parent
        return False


def _read_children(pid: int) -> list[int]:
    # Those of the main thread: what other threads started is found by the next walk.
    return [int(word) for word in (read_file(f"/proc/{pid}/task/{pid}/children") or b"").split()]


def list_children(root: int) -> set[int]:
    """Return what a process has started, by whichever of its threads."""
    stats = (read_stat(pid) for pid in list_processes())
    return {stat.pid for stat in stats if stat is not None and stat.parent == root}


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
        if stat is None or pid in (1, mine) or stat.state in ("Z", "X"):
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
    _signal([stat for stat in find() if not _is_cleaner(stat)], signal.SIGKILL)
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


def _is_cleaner(stat: ProcessStat) -> bool:
    return _CLEANERS.search(" ".join(read_command_line(stat.pid))) is not None


def remove_shared_memory(run: Path, known: Mapping[int, int], names: Iterable[str]) -> None:
    """Remove what the run's processes, which have ended, left in /dev/shm: torch_PID_... and `names`."""
    try:
        began = (run / "settings.json").stat().st_mtime
    except OSError:
        return
    # On a busy machine a worker can come and go between two looks at the processes; it has left records.
    recorded = dict.fromkeys(find_recorded(run), _UNKNOWN_START)
    remove_names({*names, *find_torch_names({**recorded, **known})}, since=began)


def find_recorded(run: Path) -> set[int]:
    """Return the processes whose records are in the run folder."""
    names = (path.name.partition("-")[0] for path in run.glob("*-*.ring"))
    return {int(name) for name in names if name.isdigit()}


def find_torch_names(known: Mapping[int, int], folder: Path = FOLDER) -> set[str]:
    """Return the names that torch made in processes which were known and have ended."""
    found = set()
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = re.fullmatch(r"torch_(\d+)_.*", name)
        if match is None or int(match.group(1)) not in known:
            continue
        stat, start = read_stat(int(match.group(1))), known[int(match.group(1))]
        # Its number may already be another process's; of one that only left records, nobody can tell.
        if stat is None or stat.state in ("Z", "X") or start not in (stat.start, _UNKNOWN_START):
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
