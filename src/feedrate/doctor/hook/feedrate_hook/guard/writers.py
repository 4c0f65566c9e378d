# SPDX-License-Identifier: Apache-2.0
"""Who else writes at this moment? Threads and processes that save what the real run computed are waited for.

The loop's thread stands still meanwhile, so that whatever moves is somebody else's: a thread that saves a
checkpoint, a program that uploads it, a native thread that fills a file. Those that serve others for the
whole run (queues of loggers, monitors) are idle when nothing comes; they were there before the loop.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from ..record import opened_files
from . import guard, processes

WAIT_S = 60.0
QUIET_S = 0.5  # without any progress: nobody writes
LOOK_EVERY_S = 0.05
# Less in that time is no work: servers and monitors wake up now and then to look whether there is some.
LEAST_TICKS, LEAST_BYTES = 3, 1024
# Modules and functions in which a thread waits for others to give it work.
PARKED_IN = {
    "threading": ("wait", "join", "_wait_for_tstate_lock"),
    "queue": ("get", "put"),
    "selectors": ("select",),
    "concurrent.futures.thread": ("_worker",),
    "multiprocessing.connection": ("wait", "_recv", "accept"),
    "multiprocessing.queues": ("get", "_feed"),
}
SAVING = frozenset(
    (module.split(".")[0], path.split(".")[-1])
    for module, paths in opened_files.SAVERS.items()
    for path in paths
)


def wait(scope: Any, most_s: float, older: Collection[threading.Thread]) -> str | None:
    """Wait until nobody writes. A sentence about one who still does after `most_s`, or None.

    `older`: threads that were there before the loop.
    """
    deadline = time.monotonic() + most_s
    before = look(scope, older)
    since = time.monotonic()
    while before:
        time.sleep(LOOK_EVERY_S)
        now = look(scope, older)
        moved = [who for who, progress in now.items() if progress is None or before.get(who) != progress]
        if moved:
            since = time.monotonic()
        elif time.monotonic() - since >= QUIET_S:
            return None
        if moved and time.monotonic() >= deadline:
            return f"{moved[0]} was still at work after {most_s:g} s: it would have been cut off"
        before = now
    return None


def look(scope: Any, older: Collection[threading.Thread]) -> dict[str, Any]:
    """Whoever may be writing, and how far each has come; None: it is writing, whether it moves or not."""
    found: dict[str, Any] = {}
    for path, size, time_ns, position in open_files(scope):
        found[f"whoever writes {path}"] = (size, time_ns, position)
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        own = thread.ident in scope.own_threads or thread.ident in scope.main_threads
        if own or frame is None or is_parked(frame):
            continue
        who = f"the thread {thread.name}"
        # What the loop has started may sleep, or wait for a server, before it opens its file: any exit of
        # Python's would wait for it to end. A daemon agrees to be cut off, unless it has its file open.
        if is_saving(frame) or not (thread.daemon or thread in older):
            found[who] = None
        elif who not in found:
            found[who] = 0 if thread.daemon else spent(f"/proc/self/task/{thread.native_id}/stat")
    for pid in other_processes():
        name, progress = describe(pid)
        found[f"the process {pid} ({name})"] = progress
    return found


def open_files(scope: Any) -> list[tuple[str, int, int, int]]:
    """Files that are open for writing: path, size, time of the last write, position."""
    found = []
    for descriptor, path in guard.writable_files(scope):
        try:
            status = os.fstat(descriptor)
            found.append((path, status.st_size, status.st_mtime_ns, os.lseek(descriptor, 0, os.SEEK_CUR)))
        except OSError:
            continue
    return found


def is_parked(frame: Any) -> bool:
    return frame.f_code.co_name in PARKED_IN.get(frame.f_globals.get("__name__", ""), ())


def is_saving(frame: Any) -> bool:
    """Whether a thread's stack has a saver of a library in it, or holds a file that it writes."""
    while frame is not None:
        library = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if (library, frame.f_code.co_name) in SAVING:
            return True
        for value in list(frame.f_locals.values()):
            # type(), not isinstance(): lazy proxies answer __class__ by running code.
            if issubclass(type(value), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)):
                try:
                    # Standard output may be a file, which threads that report to it hold all the time.
                    is_file = value.fileno() > 2 and stat.S_ISREG(os.fstat(value.fileno()).st_mode)
                    if value.writable() and is_file:
                        return True
                except (OSError, ValueError):
                    continue
        frame = frame.f_back
    return False


def other_processes() -> list[int]:
    """What this process has started, and what that has, but for workers of loaders and helpers of Python's.

    A program that made its own session means to stay, and is not ended.
    """
    workers = {worker.pid for one in processes.live_iterators() for worker in getattr(one, "_workers", ())}
    spared = workers | processes.helper_pids()
    children = processes.children_by_parent()
    found: list[int] = []
    left = [pid for pid in children.get(os.getpid(), []) if pid not in spared]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def describe(pid: int) -> tuple[str, Any]:
    """A process's name, and how far it has come; None while it runs or waits for a disk."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            written = next((int(line.split()[1]) for line in file if line.startswith("wchar")), 0)
    except OSError:
        return "", 0
    used = spent(f"/proc/{pid}/stat")
    return name, None if used is None else (used, written // LEAST_BYTES)


def spent(path: str) -> Any:
    """The processor time of a thread or process; None while it runs or waits for a disk."""
    try:
        with open(path, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    if fields[0] in (b"Z", b"X"):
        return 0
    return None if fields[0] in (b"R", b"D") else (int(fields[11]) + int(fields[12])) // LEAST_TICKS
