# SPDX-License-Identifier: Apache-2.0
"""The processes of a command, and the largest other user of the cores.

Members are the command's descendants, and those that lost their parent on the way. Reading every process of a
big machine twice a second would cost more than all else together. So known members are asked for their
children, and the whole of /proc is walked only as often as its cost allows.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from feedrate.machine.process import ProcessStat, list_processes, read_file, read_stat, read_user

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
        ignored: processes that watch, and their children.
        is_marked: whether a process belongs to the command, also where another process started it.
    """

    def __init__(
        self, root: int, ignored: set[int], is_marked: Callable[[int], bool] = lambda _: False
    ) -> None:
        self._root = root
        self._is_marked = is_marked
        self._ignored = ignored | {root}
        self._known: dict[int, int] = {}  # pid -> start
        self._there: set[int] = set()  # of those, at the last look
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
        self._there = set(members)
        return members

    def _ask_known(self) -> dict[int, ProcessStat]:
        members: dict[int, ProcessStat] = {}
        waiting = [self._root, *self._there]
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
        everybody, children = _read_everybody()
        roots = [self._root, *(pid for pid, stat in everybody.items() if self._is_member(stat))]
        members: dict[int, ProcessStat] = {}
        while roots:
            pid = roots.pop()
            if pid in everybody and pid not in members and pid not in self._ignored:
                members[pid] = everybody[pid]
            elif pid != self._root:
                continue
            roots += children.pop(pid, [])
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
        if self._is_marked(pid):
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
            # A process that was not there at the last walk has begun since.
            grown = {s.pid: s.cpu_s - self._cpu_before.get((s.pid, s.start), 0.0) for s in others}
            by_name = defaultdict[str, float](float)
            for stat in others:
                by_name[stat.name] += grown[stat.pid]
            name = max(by_name, key=by_name.__getitem__, default="")
            if by_name[name] > 0:
                biggest = max((s.pid for s in others if s.name == name), key=lambda pid: grown[pid])
                self.biggest_other = Other(name, read_user(biggest), by_name[name] / passed_s)
        self._cpu_before = {(s.pid, s.start): s.cpu_s for s in everybody.values()}
        self._walked_s = now_s

    def _is_mine(self, stat: ProcessStat, everybody: dict[int, ProcessStat]) -> bool:
        """Whether it is the doctor or one that watches, or was started by one."""
        mine, above = {*self._ignored, os.getpid()}, set[int]()
        pid = stat.pid
        while pid in everybody and pid not in above:
            above.add(pid)
            pid = everybody[pid].parent
        return bool(above & mine)


def _read_children(pid: int) -> list[int]:
    # Those of the main thread: children of other threads are found by the next walk.
    return [int(word) for word in (read_file(f"/proc/{pid}/task/{pid}/children") or b"").split()]


def _read_everybody() -> tuple[dict[int, ProcessStat], dict[int, list[int]]]:
    """Return all processes, and the children of each."""
    everybody = {pid: stat for pid in list_processes() if (stat := read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for stat in everybody.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    return everybody, children


def list_tree(root: int) -> list[ProcessStat]:
    """Return a process and all that it has started, by whichever of its threads, parents first."""
    everybody, children = _read_everybody()
    found = [root]
    for pid in found:
        found += children.pop(pid, [])
    return [everybody[pid] for pid in found if pid in everybody]
