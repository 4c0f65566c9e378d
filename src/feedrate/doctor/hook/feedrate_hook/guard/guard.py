# SPDX-License-Identifier: Apache-2.0
"""The guard: from the first experiment on, nothing that the run would write or send gets out.

Put up once and never taken down: the process ends behind it. In order: open files are flushed (what was
written before belongs to the user), their descriptors lead to nowhere (files.py), functions that write or
send do nothing (files.py, libraries.py), what gets past that ends the process (kernel.py), and so does user
code that leaves its loop. Workers of loaders have a guard of their own, for what the dataset writes: those
that are forked behind the guard inherit it, others put it up when they see that the experiments have begun.
The scope says to whom it applies: user code of this process and its workers, not the doctor's own code.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import multiprocessing.process
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..session import parent_pid, session
from ..wrapping import caller
from . import files, kernel, libraries
from .processes import TEMPORARY

HARMLESS_FOLDERS = ("/dev/", "/proc/", "/sys/")  # nothing of these outlives the run
SQLITE_MAGIC = b"SQLite format 3\x00"
# Writers of libraries that keep a part of what they write in memory.
WRITER_LIBRARIES = ("tensorboard", "tensorboardX", "torch", "h5py")
WRITERS = ("SummaryWriter", "EventFileWriter", "File")


class Scope:
    """Answers "does the guard apply to this call?" and writes down, once per place, what it blocked."""

    def __init__(self, is_worker: bool = False) -> None:
        self._pid = -1 if is_worker else os.getpid()
        self._local = threading.local()
        self._seen: set[tuple[str, str]] = set()
        self.run_folder = os.path.realpath(session.settings.get("run") or session.run)
        self.own_threads: set[int] = set()
        self.main_threads = {threading.main_thread().ident, threading.get_ident()}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_own)

    def _forget_own(self) -> None:
        """A worker is forked while the doctor's own code runs; what it calls is the user's dataset."""
        self._local = threading.local()
        self.own_threads.clear()

    def applies(self) -> bool:
        if self.is_own() or threading.get_ident() in self.own_threads:
            return False
        # The thread of a loader that receives batches from its workers, over sockets, is no user code.
        target = getattr(threading.current_thread(), "_target", None)
        return bool(getattr(target, "__name__", "") != "_pin_memory_loop")

    def is_child(self) -> bool:
        return os.getpid() != self._pid

    def is_loading(self) -> bool:
        """The user's dataset makes a batch: it writes no files, but may ask servers and programs."""
        return self.is_child() or bool(getattr(self._local, "is_lent", False))

    def in_user_loop(self) -> bool:
        """The training loop's thread: there is nothing to go on with when it is stopped. Others may go on."""
        return threading.get_ident() in self.main_threads

    def is_own(self) -> bool:
        return bool(getattr(self._local, "depth", 0))

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """What happens inside is the doctor's own doing."""
        self._local.depth = getattr(self._local, "depth", 0) + 1
        try:
            yield
        finally:
            self._local.depth -= 1

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """What happens inside is the user's dataset or sampler, which the doctor's own code has called."""
        local = self._local
        before = getattr(local, "depth", 0), getattr(local, "is_lent", False)
        local.depth, local.is_lent = 0, True
        try:
            yield
        finally:
            local.depth, local.is_lent = before

    def is_harmless(self, path: Any) -> bool:
        """Writing there leaves nothing of the run behind: the run folder, devices, pipes."""
        try:
            if isinstance(path, int):
                if not stat.S_ISREG(os.fstat(path).st_mode):
                    return True
                path = os.readlink(f"/proc/self/fd/{path}")
                if path.endswith(" (deleted)"):
                    return True  # no other user can see it
            text = os.path.realpath(os.fsdecode(path))
            if text.startswith(HARMLESS_FOLDERS) or (text + os.sep).startswith(self.run_folder + os.sep):
                return True
            mode = os.stat(text).st_mode
            return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        except (OSError, TypeError, ValueError):
            return False

    def blocked(self, what: str, target: Any = "") -> None:
        """One fact per thing and place; `target` is that of the first time."""
        with self.own():
            place = caller() or "an unknown place"
            if (what, place) in self._seen or len(self._seen) > 200:
                return
            self._seen.add((what, place))
            session.facts("blocked", what=f"{what} {target}".rstrip() + f" ({place})")


class Guard:
    """`reason_not_to` first; then `put_up`; it is never taken down."""

    def __init__(self, scope: Any, ending: Any) -> None:
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
        for descriptor, path in kernel.writable_files(self._scope):
            if kernel.has_magic(descriptor, SQLITE_MAGIC):
                return f"the database {path} is open for writing, which cannot be held back"
        return None

    def flush(self) -> None:
        """Bring to the files what the user's code wrote before the experiments."""
        # Handlers of loggers may keep records in memory, above the file.
        for reference in list(getattr(sys.modules.get("logging"), "_handlerList", ())):
            flush_quietly(reference() if callable(reference) else reference)
        for thing in writing_objects():
            if isinstance(thing, io.IOBase):
                flush_file(thing)
            else:
                flush_quietly(thing)
        flush_quietly(sys.stdout, sys.stderr)

    def put_up(self) -> None:
        scope, ending = self._scope, self._ending
        with scope.own():
            self.flush()
            session.scope = scope
            self._redirect_files()
            self._keep_sockets_of_workers_short()
            libraries.replace_senders(scope, ending.end)
            self._catch_the_way_out()
            self._restrict(ending.end)

    def put_up_in_worker(self) -> None:
        """The same for what a dataset writes. The worker goes on to serve batches, and ends as always.

        No file is flushed: a forked worker has the training process's buffers, which that writes itself.
        """
        with self._scope.own():
            flush_quietly(sys.stdout, sys.stderr)
            session.scope = self._scope
            config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
            if config.get("tempdir") is None:
                self._keep_sockets_of_workers_short()
            else:  # it cannot remove that any more: the training process does (processes.py)
                name = f"{TEMPORARY}{parent_pid()}-{os.getpid()}"
                os.symlink(config["tempdir"], os.path.join(self._scope.run_folder, name))
            self._redirect_files()
            self._restrict(lambda _what: None)

    def _redirect_files(self) -> None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._descriptors_to_silence():
            with contextlib.suppress(OSError):
                files.replace_descriptor(null, descriptor)
        os.close(null)
        for mapping in self._mappings():
            mapping.make_private()
        # Temporary files work as ever: they are where they will be removed whatever happens.
        folder = os.path.join(self._scope.run_folder, "temporary")
        os.makedirs(folder, exist_ok=True)
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        files.replace_writers(self._scope)

    def _mappings(self) -> list[kernel.Mapping]:
        return [one for one in kernel.writable_mappings() if not self._scope.is_harmless(one.path)]

    def _restrict(self, end: Callable[[str], None]) -> None:
        kernel.add_audit_hook(self._scope, end)
        if session.settings.get("landlock", True):  # False in tests of what stands before it
            kernel.put_up_landlock([self._scope.run_folder, "/dev", "/proc"])

    def _descriptors_to_silence(self) -> list[int]:
        found = {1, 2} | {descriptor for descriptor, _ in kernel.writable_files(self._scope)}
        # Pipes that Python code writes to are the input of programs that it started.
        for thing in writing_objects():
            with contextlib.suppress(OSError, ValueError):
                descriptor = thing.fileno() if isinstance(thing, io.BufferedWriter) else 1
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    found.add(descriptor)
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


def follow() -> None:
    """In a worker, before it calls the dataset: the training process makes experiments."""
    if session.scope is None:
        Guard(Scope(is_worker=True), None).put_up_in_worker()


def writing_objects() -> list[Any]:
    """Open files, and writers of libraries."""
    kinds: dict[type, bool] = {}
    found = []
    # type(), not isinstance(): lazy proxies answer __class__ by running code.
    for thing in gc.get_objects():
        kind = type(thing)
        is_writing = kinds.get(kind)
        if is_writing is None:
            is_file = issubclass(kind, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom))
            is_library = str(kind.__module__).split(".")[0] in WRITER_LIBRARIES
            is_writing = kinds[kind] = is_file or (is_library and kind.__name__ in WRITERS)
        if is_writing:
            found.append(thing)
    return found


def flush_file(file: Any) -> None:
    """A regular file or the terminal. A pipe whose reader is stuck would take us with it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.fileno() in (1, 2)
        if is_file and file.writable():
            file.flush()


def flush_quietly(*things: Any) -> None:
    for thing in things:
        with contextlib.suppress(Exception):
            thing.flush()
