# SPDX-License-Identifier: Apache-2.0
"""The last two lines of the guard, for what gets past the replaced functions.

An audit hook and, where the kernel has it, Landlock, which also holds writers that are not Python.

Holds back whatever the run would write from the first experiment on: checkpoints, logs, messages.

Put up once and never taken down: the process ends behind it. In order: open files are flushed (what was
written before belongs to the user), their descriptors lead to nowhere (memory_files.py), what writes or sends
does nothing (held.py, withheld.py, messages.py), what gets past that ends the process (fence.py), and so does
user code that leaves its loop. Workers of loaders have one of their own, for what the dataset writes: those
that are forked behind the guard inherit it, others put it up when they see that the experiments have begun.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import io
import multiprocessing.process
import os
import platform
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from ..session import session
from . import files, processes
from .processes import TEMPORARY
from .scope import Scope

# Events that write, remove, start or send something; the number of arguments that are paths.
PATH_EVENTS = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.mkdir": 1,
    "shutil.copyfile": 2,
    "shutil.copymode": 2,
    "shutil.copystat": 2,
    "shutil.copytree": 2,
    "shutil.move": 2,
    "shutil.rmtree": 1,
    "shutil.make_archive": 1,
    "shutil.unpack_archive": 2,
}
LEAVING_EVENTS = frozenset(
    (
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
        "socket.connect",
        "sqlite3.connect",
        "ftplib.connect",
        "smtplib.connect",
        "urllib.Request",
    )
)
FORKS = ("os.fork", "os.forkpty")
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# They read the device's state; loops that print it every few steps call them.
HARMLESS_PROGRAMS = frozenset(("nvidia-smi", "rocm-smi"))


def add_audit_hook(scope: Any, end: Callable[[str], None]) -> None:
    """From now on, what writes ends the process; in datasets and in threads beside the loop it fails."""

    def hook(event: str, args: Any) -> None:
        if event == "open":
            if not args[2] & WRITING_FLAGS or scope.is_harmless(args[0]):
                return
        elif event in PATH_EVENTS:
            if all(scope.is_harmless(path) for path in args[: PATH_EVENTS[event]]):
                return
        elif event in LEAVING_EVENTS:
            if event == "sqlite3.connect" and args[0] == ":memory:":
                return
            if scope.is_loading() or is_harmless_program(event, args):
                return
        else:
            return
        if not scope.applies():
            return
        target = str(args[0]) if args else ""
        scope.blocked(event, target)
        if scope.in_user_loop() and not scope.is_loading():
            end("another process was to be started" if event in FORKS else f"{event} {target}".rstrip())
        raise PermissionError(errno.EACCES, f"feedrate doctor: nothing may be written any more: {event}")

    sys.addaudithook(hook)


def is_harmless_program(event: str, args: Any) -> bool:
    """subprocess.Popen, and what it calls underneath, of a program that only shows the device's state."""
    if event not in ("subprocess.Popen", "os.posix_spawn"):
        return False
    words = args[1] if isinstance(args[1], (list, tuple)) and args[1] else str(args[1]).split()
    return bool(words) and os.path.basename(os.fsdecode(words[0])) in HARMLESS_PROGRAMS


# Landlock (linux/landlock.h). The numbers of the calls are the same on all machines but old alpha.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_REG = 1 << 1, 1 << 4, 1 << 5, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14  # of version 2 and 3
PATH_BENEATH = struct.Struct("=Qi")  # allowed access, folder
PR_SET_NO_NEW_PRIVS = 38


def put_up_landlock(allowed_folders: list[str]) -> bool:
    """Let this thread, and what it starts, write and remove files in these folders only. False: not possible.

    Making folders and sockets stays allowed: they hold nothing. Nobody can take the restriction back.
    """
    if sys.platform != "linux" or platform.machine() == "alpha":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    access = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_REG
    access |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", access)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        for folder in allowed_folders:
            if not os.path.isdir(folder):
                continue
            descriptor = os.open(folder, getattr(os, "O_PATH", 0o10000000) | os.O_CLOEXEC)
            try:
                rule = PATH_BENEATH.pack(access, descriptor)
                if libc.syscall(ADD_RULE, ruleset, 1, rule, ctypes.c_uint32(0)) != 0:
                    return False
            finally:
                os.close(descriptor)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


SQLITE_MAGIC = b"SQLite format 3\x00"


class Guard:
    """`reason_not_to` first; then `put_up`; it is never taken down."""

    def __init__(self, book: Any, scope: Any, ending: Any) -> None:
        self._book = book
        self._scope = scope
        self._ending = ending

    def reason_not_to(self) -> str | None:
        """Why the guard cannot be put up: a sentence, or None."""
        for mapping in self._mappings():
            if not mapping.can_be_private():
                return f"{mapping.path} is mapped into memory for writing, which cannot be held back"
        return None

    def open_database(self) -> str | None:
        """Why the loop could not go on behind the guard: a sentence, or None. Asked before that is up."""
        for descriptor, path in writable_files(self._scope):
            if has_magic(descriptor, SQLITE_MAGIC):
                return f"the database {path} is open for writing, which cannot be held back"
        return None

    def flush(self) -> None:
        """Bring to the files what the user's code wrote before the experiments."""
        flush_loggers()
        for thing in writing_objects():
            if isinstance(thing, io.IOBase):
                flush_file(thing)
            else:
                flush_quietly(thing)
        for stream in (sys.stdout, sys.stderr):
            flush_quietly(stream)

    def put_up(self) -> None:
        scope, ending = self._scope, self._ending
        with scope.own():
            self.flush()
            session.scope = scope
            self._hold_files()
            self._keep_sockets_of_workers_short()
            processes.replace_processes(scope, ending.end)
            processes.replace_sockets(scope, ending.end)
            self._catch_the_way_out()
            self._put_up_fence(ending.end)

    def put_up_in_worker(self) -> None:
        """The same for what a dataset writes. The worker goes on to serve batches, and ends as always.

        No file is flushed: a forked worker has the training process's buffers, which that writes itself.
        """
        with self._scope.own():
            for stream in (sys.stdout, sys.stderr):
                flush_quietly(stream)
            session.scope = self._scope
            config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
            if config.get("tempdir") is None:
                self._keep_sockets_of_workers_short()
            else:  # it cannot remove that any more: see ending.py
                name = f"{TEMPORARY}{session.parent()}-{os.getpid()}"
                os.symlink(config["tempdir"], os.path.join(self._scope.run_folder, name))
            self._hold_files()
            self._put_up_fence(lambda _what: None)

    def _hold_files(self) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._descriptors_to_silence():
            try:
                files.replace_descriptor(null, descriptor)
            except OSError:
                continue
        os.close(null)
        for mapping in self._mappings():
            mapping.make_private()
        # Temporary files work as ever: they lie where they will be removed whatever happens.
        folder = os.path.join(self._scope.run_folder, "temporary")
        os.makedirs(folder, exist_ok=True)
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        files.replace_writers(self._scope)

    def _mappings(self) -> list[files.Mapping]:
        return [one for one in files.writable_mappings() if not self._scope.is_harmless(one.path)]

    def _put_up_fence(self, end: Callable[[str], None]) -> None:
        add_audit_hook(self._scope, end)
        wanted = self._book.settings.get("landlock", True)  # False in tests of what stands before it
        is_up = wanted and put_up_landlock([self._scope.run_folder, "/dev", "/proc"])
        self._book.fact("guard", landlock=bool(is_up))

    def _descriptors_to_silence(self) -> list[int]:
        found = {1, 2} | {descriptor for descriptor, _ in writable_files(self._scope)}
        # Pipes that Python code writes to are the input of programs that it started.
        for thing in writing_objects():
            try:
                descriptor = thing.fileno() if isinstance(thing, io.BufferedWriter) else 1
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    found.add(descriptor)
            except (OSError, ValueError):
                continue
        return sorted(found)

    def _keep_sockets_of_workers_short(self) -> None:
        """Workers of the trials make their temporary folders where they will be removed whatever happens."""
        process = sys.modules.get("multiprocessing.process")
        if process is None:
            return
        folder = os.path.join(self._scope.run_folder, "mp")
        os.makedirs(folder, exist_ok=True)
        if len(folder) >= 70:  # the path of a Unix socket ends at 107
            open_folder = os.open(folder, os.O_RDONLY)  # until the end
            folder = f"/proc/{os.getpid()}/fd/{open_folder}"
        if os.path.isdir(folder):
            process.current_process()._config["tempdir"] = folder

    def _catch_the_way_out(self) -> None:
        """However the user's code leaves its loop, the process ends before any more of it is called."""
        ending, scope = self._ending, self._scope
        shutdown = threading._shutdown  # type: ignore[attr-defined]

        def leave() -> None:
            if not scope.is_child():
                ending.end("the script came to its end")
            shutdown()

        sys.excepthook = lambda _kind, error, _trace: ending.end(error)
        if hasattr(threading, "excepthook"):
            threading.excepthook = lambda _args: None
        sys.unraisablehook = lambda _args: None
        # The first thing that Python calls when the main module is over.
        threading._shutdown = leave  # type: ignore[attr-defined]
        atexit.register(leave)


def follow(book: Any) -> None:
    """In a worker, before it calls the dataset: the training process makes experiments."""
    if session.scope is None:
        Guard(book, Scope(book, is_worker=True), None).put_up_in_worker()


def writable_files(scope: Any) -> list[tuple[int, str]]:
    """Descriptors that can write to a file which will still be there tomorrow."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            path = os.readlink(f"/proc/self/fd/{name}")
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        can_write = flags & os.O_ACCMODE != os.O_RDONLY and not flags & getattr(os, "O_PATH", 0)
        if is_regular and can_write and not path.endswith(" (deleted)") and not scope.is_harmless(path):
            found.append((descriptor, path))
    return found


def writing_objects() -> list[Any]:
    """Open files, and writers of libraries that keep a part of what they write in memory."""
    kinds: dict[type, bool] = {}
    found = []
    # type(), not isinstance(): lazy proxies answer __class__ by running code.
    for thing in gc.get_objects():
        kind = type(thing)
        is_writing = kinds.get(kind)
        if is_writing is None:
            is_file = issubclass(kind, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom))
            is_library = str(kind.__module__).split(".")[0] in (
                "tensorboard",
                "tensorboardX",
                "torch",
                "h5py",
            )
            is_writer = kind.__name__ in ("SummaryWriter", "EventFileWriter", "File")
            is_writing = kinds[kind] = is_file or (is_library and is_writer)
        if is_writing:
            found.append(thing)
    return found


def has_magic(descriptor: int, magic: bytes) -> bool:
    try:
        # Opened anew: the descriptor may be for writing only, and its position is the user's.
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def flush_file(file: Any) -> None:
    """A regular file or the terminal. A pipe whose reader is stuck would take us with it."""
    try:
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.fileno() in (1, 2)
        if is_file and file.writable():
            file.flush()
    except (OSError, ValueError, AttributeError):
        return


def flush_quietly(thing: Any) -> None:
    try:
        thing.flush()
    except Exception:
        return


def flush_loggers() -> None:
    """Handlers may keep records in memory, above the file."""
    logging = sys.modules.get("logging")
    for reference in list(getattr(logging, "_handlerList", ())):
        handler = reference() if callable(reference) else reference
        if handler is not None:
            flush_quietly(handler)
