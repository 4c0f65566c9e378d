# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job on one node come to share a cache's files, which have no names.

Whoever has such files open has a list of them open, too: a file in memory that is called after the cache and
holds the numbers of its descriptors. Another process finds it among the open files of the user's processes,
opens what it lists by way of /proc/PID/fd, and makes a list of its own. Files and lists live while one
process has them open, and nothing of them is left when the last one ends, however it ends. Who looks, or
makes files because there are none, holds a lock meanwhile, the gate: a folder that only the user can enter.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from feedrate.cache.limits import Tier
from feedrate.cache.table import make_memory
from feedrate.errors import StorageError
from feedrate.files.atomic import say_reason
from feedrate.files.lock import Lock, lock_fd
from feedrate.files.permissions import find_distrust
from feedrate.machine.memory import find_memory_group

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_LIST = "list"

Descriptors = dict[str, int]


def name_job(environ: Mapping[str, str] = os.environ) -> str:
    """Return what tells this job from others on the node: its number, else whose limit it is under.

    Memory is charged to the group of the process that filled it, so it is shared inside a group only.
    """
    for variable in _JOB_VARIABLES:
        if environ.get(variable):
            # Several nodes of a test cluster may be one machine.
            return f"{variable}={environ[variable]} {environ.get('SLURMD_NODENAME', '')}".rstrip()
    group = find_memory_group()
    return "node" if group is None else str(group.folder)


def find_gate(bases: tuple[str, ...] | None = None) -> Path | None:
    """Return the user's private folder, made if need be; None: there is no place for one."""
    for base in bases or ("/dev/shm", tempfile.gettempdir()):
        # Not feedrate-UID, where copies are if this is scratch, too, and others may look.
        folder = Path(base) / f"feedrate-shared-{os.getuid()}"
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            info = os.lstat(folder)
        except OSError:
            continue
        # Made by another user before us, or opened to others: not to be trusted.
        if stat.S_ISDIR(info.st_mode) and not find_distrust(info, forbidden=0o077):
            return folder
    return None


def join(name: str, make: Callable[[], Descriptors], accept: Callable[[Descriptors], bool]) -> Descriptors:
    """Return descriptors of the files of that name, and of the list of them that this process has now.

    Args:
        make: called when nobody has them open.
        accept: says whether what was opened is what is looked for.
    """
    folder = find_gate()
    if folder is None or sys.platform != "linux":
        return make()
    gate = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with Lock(gate):
        lock_fd(gate)
        for place in _find_lists(name):
            found = _open_listed(place)
            if found is not None and accept(found):
                return publish(name, found)
            close_all(found or {})
        return publish(name, make())


def publish(name: str, descriptors: Descriptors) -> Descriptors:
    """Let other processes find these files; returns them with their list, instead of an inherited one."""
    if _LIST in descriptors:
        os.close(descriptors.pop(_LIST))
    files = {what: [number, *_identity(number)] for what, number in descriptors.items()}
    if sys.platform == "linux":
        descriptors = {**descriptors, _LIST: make_memory(_title(name))}
        os.write(descriptors[_LIST], json.dumps(files).encode())
    return descriptors


def close_all(descriptors: Descriptors) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def _title(name: str) -> str:
    return f"feedrate-{name}"


def _find_lists(name: str) -> Iterator[str]:
    """Yield the lists of that name that processes of this user have open, as paths in /proc."""
    title, mine = f"/memfd:{_title(name)} (deleted)", os.getuid()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        numbers: list[str] = []
        with contextlib.suppress(OSError):  # it has ended, or is not to be looked at
            if os.stat(f"/proc/{process}").st_uid == mine:
                numbers = os.listdir(f"/proc/{process}/fd")
        for number in numbers:
            with contextlib.suppress(OSError):
                if os.readlink(place := f"/proc/{process}/fd/{number}") == title:
                    yield place


def _open_listed(place: str) -> Descriptors | None:
    """Open the files of a living process by its list; None: they cannot be reached from here."""
    opened: Descriptors = {}
    try:
        with open(place, "rb") as file:
            listed = json.load(file)
        for what, (number, *identity) in listed.items():
            opened[what] = _open_again(f"{os.path.dirname(place)}/{int(number)}")
            if _identity(opened[what]) != identity:  # the list is older than a fork's own descriptors
                raise FileNotFoundError(number)
    except (OSError, ValueError, TypeError, AttributeError):
        close_all(opened)
        return None
    return opened


def _open_again(place: str) -> int:
    return os.open(place, os.O_RDWR | os.O_CLOEXEC)


def _identity(descriptor: int) -> list[int]:
    info = os.fstat(descriptor)
    return [info.st_dev, info.st_ino]


_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def make_file(tier: Tier) -> int:
    if tier.kind == "ram":
        return make_memory("feedrate-cache")
    try:
        with tempfile.TemporaryFile(dir=tier.folder, buffering=0) as file:
            return os.dup(file.fileno())
    except OSError as error:
        why = say_reason(error, Path(tier.folder or os.curdir))
        raise StorageError(f"cannot write to the cache's disk {tier.folder}: {why}") from error


def take_over(inherited: int) -> int:
    """Return a descriptor of a fork's own: locks on the inherited one would be its parent's too."""
    try:
        own = _open_again(f"/proc/self/fd/{inherited}")
    except OSError:  # no /proc
        return inherited
    os.close(inherited)
    return own


def punch_hole(descriptor: int, offset: int, size: int) -> None:
    """Give the pages of a range back to the system. Where that is unknown they stay until the file goes."""
    if sys.platform == "linux":
        arguments = (
            ctypes.c_int(descriptor),
            ctypes.c_int(_PUNCH_HOLE),
            ctypes.c_int64(offset),
            ctypes.c_int64(size),
        )
        ctypes.CDLL(None).fallocate(*arguments)
