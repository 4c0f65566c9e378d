# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job on one node come to share a cache's files, which have no names.

Whoever has such files open leaves an entry in a folder that only the user can read: its process number and
the numbers of its descriptors. Another process opens them as /proc/PID/fd/N and leaves an entry of its own.
The files live while one process has them open, and nothing of them is left when the last one ends, however
it ends. An entry is locked by its process for as long as that lives; one that nobody holds is removed by
the next process that comes here. That takes a few microseconds under one lock, the gate.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedrate.cache.limits import Tier
from feedrate.cache.table import make_memory
from feedrate.errors import StorageError
from feedrate.files.atomic import say_reason
from feedrate.files.lock import Lock, lock_fd, locked_if_free
from feedrate.files.permissions import find_distrust
from feedrate.machine.memory import find_memory_group

_GATE = "gate"
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")

Descriptors = dict[str, int]
_thread = threading.local()


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


def find_meeting_folder(bases: tuple[str, ...] | None = None) -> Path | None:
    """Return the user's private folder for entries, made if need be; None: there is no place for one."""
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
        if stat.S_ISDIR(info.st_mode) and not find_distrust(info, forbidden=0o077) and _has_room(folder):
            return folder
    return None


def _has_room(folder: Path) -> bool:
    """Return whether a folder takes an entry: containers make /dev/shm small, and others fill it."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(4096))
    except OSError:
        return False
    return True


class SharedFiles:
    """Where the processes that share files of one name meet."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self.folder = folder
        self.process = os.getpid()
        self._entry: Path | None = None
        self._held: Lock | None = None  # children of a fork close it: the entry ends with its process

    def join(self, make: Callable[[], Descriptors], accept: Callable[[Descriptors], bool]) -> Descriptors:
        """Return descriptors of the shared files.

        Args:
            make: called when nobody has them open.
            accept: says whether what was opened is what is looked for.
        """
        if self.folder is None:
            return make()
        with self._gate():
            for entry in self._live_entries():
                found = _open_entry(entry)
                if found is None:
                    continue
                if accept(found):
                    self._enter(found)
                    return found
                for descriptor in found.values():
                    os.close(descriptor)
            made = make()
            self._enter(made)
            return made

    def enter(self, descriptors: Descriptors) -> None:
        """Leave an entry for files that this process has open already: a fork inherits them."""
        if self.folder is not None:
            with self._gate():
                self._enter(descriptors)

    def leave(self) -> None:
        """Take this process' entry away. May be called twice, and in a fork, where it does nothing."""
        if os.getpid() != self.process or self._entry is None:
            return
        entry, held, self._entry, self._held = self._entry, self._held, None, None
        with contextlib.suppress(OSError), self._gate():
            entry.unlink()
        if held is not None:
            held.release()

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        assert self.folder is not None
        # The garbage collector may close another shelf of this process while this thread holds the gate.
        if getattr(_thread, "gate_of", None) == self.folder:
            yield
            return
        gate = os.open(self.folder / _GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            lock_fd(gate)
            _thread.gate_of = self.folder
            yield
        finally:
            _thread.gate_of = None
            os.close(gate)

    def _live_entries(self) -> list[Path]:
        """Return the entries of this name whose processes live; remove those of any name whose do not."""
        assert self.folder is not None
        live = [p for p in sorted(self.folder.iterdir()) if p.name != _GATE and not _remove_if_stale(p)]
        return [path for path in live if path.name.startswith(f"{self.name}.")]

    def _enter(self, descriptors: Descriptors) -> None:
        assert self.folder is not None
        self.process = os.getpid()
        entry = self.folder / f"{self.name}.{self.process}-{secrets.token_hex(4)}"
        fd = os.open(entry, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._entry, self._held = entry, Lock(fd)
        lock_fd(fd)
        files = {name: [number, *_identity(number)] for name, number in descriptors.items()}
        os.write(fd, json.dumps({"pid": self.process, "files": files}).encode())


def sweep(folder: Path | None = None) -> int:
    """Remove entries whose processes are gone; returns how many. `folder`: that of `find_meeting_folder`."""
    folder = folder or find_meeting_folder()
    if folder is None:
        return 0
    with SharedFiles("", folder)._gate():
        return sum(_remove_if_stale(path) for path in folder.iterdir() if path.name != _GATE)


def _remove_if_stale(path: Path) -> bool:
    """Remove an entry that no process holds. Under the gate, so that nobody is just making it."""
    with contextlib.suppress(OSError), locked_if_free(path) as is_free:
        if is_free:
            path.unlink(missing_ok=True)
            return True
    return False


def _open_entry(entry: Path) -> Descriptors | None:
    """Open the files of a living process; None: they cannot be reached from here."""
    opened: Descriptors = {}
    is_same = True
    try:
        described: Any = json.loads(entry.read_bytes())
        for name, (number, *identity) in described["files"].items():
            opened[name] = reopen(int(number), process=int(described["pid"]))
            # The number of a process that is gone may have been given out anew.
            is_same = is_same and _identity(opened[name]) == identity
    except (OSError, ValueError, KeyError, TypeError):
        is_same = False
    if is_same:
        return opened
    for descriptor in opened.values():
        os.close(descriptor)
    return None


def reopen(descriptor: int, process: int | None = None) -> int:
    """Open a file once more through a descriptor, so that its locks and position are not shared.

    Raises:
        OSError: it cannot be done here: there is no /proc, or the process is out of reach.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    return os.open(f"/proc/{process or 'self'}/fd/{descriptor}", flags)


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
        own = reopen(inherited)
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
