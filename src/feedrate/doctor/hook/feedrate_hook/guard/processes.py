# SPDX-License-Identifier: Apache-2.0
"""Other threads and processes: those that write are waited for before the guard, and ended with the run.

Before: the loop's thread stands still, so that whatever moves is another's: a thread that saves a checkpoint,
a program that uploads it, a native thread that fills a file. Those that serve others for the whole run
(queues of loggers, monitors) are idle when nothing comes; they were there before the loop.

At the end: workers are sent home, then os._exit; no user code runs after. Any thread may call `end`; the
first one counts and none returns. The work is done by a thread that was started before the guard went up: the
kernel restricts the loop's thread, and this one has folders to remove. It also watches over the loop: when it
takes no batch for long, the user's code has left it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from ..record import opened_files, other_loaders
from ..session import session
from ..wrapping import living
from .kernel import writable_files

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


def wait_for_writers(scope: Any, most_s: float, older: Collection[threading.Thread]) -> str | None:
    """Wait until nobody writes. A sentence about one who still does after `most_s`, or None.

    `older`: threads that were there before the loop.
    """
    deadline = time.monotonic() + most_s
    before = find_writers(scope, older)
    since = time.monotonic()
    while before:
        time.sleep(LOOK_EVERY_S)
        now = find_writers(scope, older)
        moved = [who for who, progress in now.items() if progress is None or before.get(who) != progress]
        if moved:
            since = time.monotonic()
        elif time.monotonic() - since >= QUIET_S:
            return None
        if moved and time.monotonic() >= deadline:
            return f"{moved[0]} was still at work after {most_s:g} s: it would have been cut off"
        before = now
    return None


def find_writers(scope: Any, older: Collection[threading.Thread]) -> dict[str, Any]:
    """Whoever may be writing, and how far each has come; None: it is writing, whether it moves or not."""
    found: dict[str, Any] = {}
    for descriptor, path in writable_files(scope):
        with contextlib.suppress(OSError):
            status, position = os.fstat(descriptor), os.lseek(descriptor, 0, os.SEEK_CUR)
            found[f"whoever writes {path}"] = (status.st_size, status.st_mtime_ns, position)
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        own = thread.ident in scope.own_threads or thread.ident in scope.main_threads
        if own or frame is None:
            continue
        if frame.f_code.co_name in PARKED_IN.get(frame.f_globals.get("__name__", ""), ()):
            continue
        who = f"the thread {thread.name}"
        # What the loop has started may sleep, or wait for a server, before it opens its file: any exit of
        # Python's would wait for it to end. A daemon agrees to be cut off, unless it has its file open.
        if is_saving(frame) or not (thread.daemon or thread in older):
            found[who] = None
        elif who not in found:
            found[who] = 0 if thread.daemon else used_ticks(f"/proc/self/task/{thread.native_id}/stat")
    for pid in other_processes():
        name, progress = describe_process(pid)
        found[f"the process {pid} ({name})"] = progress
    return found


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
    """What this process has started, and what that has, but for loaders' workers and helpers of Python's."""
    workers = {worker.pid for one in live_iterators() for worker in getattr(one, "_workers", ())}
    spared = workers | helper_pids()
    children = children_by_parent()
    found: list[int] = []
    left = [pid for pid in children.get(os.getpid(), []) if pid not in spared]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def describe_process(pid: int) -> tuple[str, Any]:
    """A process's name, and how far it has come; None while it runs or waits for a disk."""
    name, _ = read_stat(f"/proc/{pid}/stat")
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            written = next((int(line.split()[1]) for line in file if line.startswith("wchar")), 0)
    except OSError:
        return "", 0
    used = used_ticks(f"/proc/{pid}/stat")
    return name, None if used is None else (used, written // LEAST_BYTES)


def used_ticks(path: str) -> Any:
    """The processor time of a thread or process; None while it runs or waits for a disk."""
    _, fields = read_stat(path)
    if fields[0] in ("", "Z", "X"):
        return 0
    return None if fields[0] in ("R", "D") else (int(fields[11]) + int(fields[12])) // LEAST_TICKS


def read_stat(path: str) -> tuple[str, list[str]]:
    """The name of a thread or process, and what follows it: first its state, "" where it is gone."""
    try:
        with open(path, "rb") as file:
            before, _, after = file.read().decode("utf-8", "replace").rpartition(")")
    except OSError:
        return "", [""]
    return before.partition("(")[2], after.split()


GRACE_S = 3.0  # for workers to finish their batch: one that writes a cache must not be cut off in it
TERM_S = 1.0
TEMPORARY = "temporary-of-"  # links in the run folder: temporary folders that workers cannot remove any more


class Ending:
    """Ends the process, once."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._watcher: threading.Thread | None = None
        self._exit_code = 0
        self._error: str | None = None
        self.is_overdue: Callable[[], str | None] = lambda: None
        self.first: Callable[[str | None], None] = lambda _error: None
        self.before: list[Callable[[], None]] = []  # last facts, and waiting for the other ranks

    def prepare(self) -> None:
        """Start the thread that will do it."""
        self._watcher = threading.Thread(target=self._watch, name="feedrate-ending", daemon=True)
        self._watcher.start()
        if self._watcher.ident is not None:
            self._scope.own_threads.add(self._watcher.ident)

    def end(self, error: BaseException | str | None = None) -> None:
        """Does not return."""
        if self._lock.acquire(blocking=False):
            if isinstance(error, KeyboardInterrupt):
                self._exit_code = 128 + signal.SIGINT
            if isinstance(error, BaseException):
                error = f"{type(error).__name__}: {error}"
            self._error = error
            self._wanted.set()
            if self._watcher is None or not self._watcher.is_alive():
                self._finish()
        while True:
            try:
                time.sleep(3600)
            except BaseException:  # a signal handler's exception must not lead back into user code
                continue

    def _watch(self) -> None:
        with self._scope.own():
            while not self._wanted.wait(0.5):
                overdue = self.is_overdue()
                if overdue is not None and self._lock.acquire(blocking=False):
                    self._error = overdue
                    self._wanted.set()
            self._finish()

    def _finish(self) -> None:
        try:
            with self._scope.own():
                for step in (self._last_facts, self._send_workers_home, end_children, self._clear):
                    try:
                        step()
                    except BaseException as error:
                        session.note_error(f"experiments: {step.__name__}", error)
                for last in self.before:
                    last()
        finally:
            os._exit(self._exit_code)

    def _last_facts(self) -> None:
        self.first(None if self._exit_code else self._error)  # an interrupt is no fault of the loop
        session.finish("signal" if self._exit_code else "experiments", self._error)

    def _clear(self) -> None:
        clear_multiprocessing(self._scope)
        within(GRACE_S, other_loaders.close_fetching, self._scope)
        folder = self._scope.run_folder
        for name in os.listdir(folder):
            if name.startswith(f"{TEMPORARY}{os.getpid()}-"):
                shutil.rmtree(os.readlink(os.path.join(folder, name)), ignore_errors=True)

    def _send_workers_home(self) -> None:
        # Those that were shut down have nobody to ask: their queues are closed.
        iterators = [one for one in live_iterators() if not getattr(one, "_shutdown", False)]
        # torch's SIGCHLD handler raises in the main thread when a worker dies that it still knows.
        signals = sys.modules.get("torch.utils.data._utils.signal_handling")
        for iterator in iterators:
            if signals is not None and getattr(iterator, "_worker_pids_set", False):
                signals._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False
            iterator._shutdown = True
        within(1.0, lambda: ask_workers_to_leave(iterators), self._scope)
        deadline = time.monotonic() + GRACE_S
        for iterator in iterators:
            for worker in getattr(iterator, "_workers", ()):
                worker.join(max(0.0, deadline - time.monotonic()))


def live_iterators() -> list[Any]:
    """Every iterator of this process that has workers."""
    module = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", None)  # torchdata's with workers derive from this one
    return [iterator for iterator in living(base) if hasattr(iterator, "_workers")]


def ask_workers_to_leave(iterators: list[Any]) -> None:
    for iterator in iterators:
        done = getattr(iterator, "_pin_memory_thread_done_event", None)
        if done is not None:
            done.set()
        iterator._workers_done_event.set()
        for queue in iterator._index_queues:
            queue.cancel_join_thread()
            queue.put(None)


def within(seconds: float, work: Callable[[], Any], scope: Any) -> None:
    """Do `work`, but wait no longer: a worker that was killed may hold a lock for ever."""

    def run() -> None:
        with scope.own():
            work()

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts none when it is leaving
        run()
    else:
        thread.join(seconds)


def end_children() -> None:
    """End what this process started. What made a session of its own means to stay."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        for child in multiprocessing.active_children():
            child.terminate()
    spared = helper_pids()
    children = [pid for pid in children_by_parent().get(os.getpid(), []) if pid not in spared]

    def is_reaped(pid: int) -> bool:
        try:
            return os.waitpid(pid, os.WNOHANG)[0] == pid
        except OSError:  # multiprocessing was faster
            return True

    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + TERM_S
        while children and time.monotonic() < deadline:
            children = [pid for pid in children if not is_reaped(pid)]
            if children:
                time.sleep(0.005)


def helper_pids() -> set[int]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    found = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    return {pid for pid in found if pid is not None}


def children_by_parent() -> dict[int, list[int]]:
    """The processes of this session, by the process that started them.

    A program that made its own session means to stay.
    """
    own = str(os.getsid(0))
    found: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        name, fields = read_stat(f"/proc/{pid}/stat")
        if fields[0] and fields[3] == own and not name.startswith("torch_shm_manag"):
            found.setdefault(int(fields[1]), []).append(int(pid))
    return found


def clear_multiprocessing(scope: Any) -> None:
    """Semaphores and temporary folders, which multiprocessing would have removed at a usual exit."""
    util = sys.modules.get("multiprocessing.util")
    for finalizer in list(getattr(util, "_finalizer_registry", {}).values()):
        callback = getattr(finalizer, "_callback", None)
        if getattr(callback, "__qualname__", "") in ("SemLock._cleanup", "_remove_temp_dir"):
            finalizer()
    for module, name in (("forkserver", "_forkserver"), ("resource_tracker", "_resource_tracker")):
        helper = getattr(sys.modules.get("multiprocessing." + module), name, None)
        stop = getattr(helper, "_stop", None)
        if stop is not None:
            within(TERM_S, stop, scope)
