# SPDX-License-Identifier: Apache-2.0
"""What a spoilt run would tell other processes, and other machines, is not sent.

The end of a run whose weights are spoilt: workers are sent home, then os._exit. No user code runs after.

Any thread may call `end`; the first one counts and none returns. The work is done by a thread that was
started before the guard went up: the fence holds the loop's thread, and this one has folders to remove. It
also watches over the loop: when it takes no batch for long, the user's code has left it.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..record import other_loaders


def replace_processes(scope: Any, end: Callable[[str], None]) -> None:
    """What another process is told, it may write; and nobody may wait for its answer for ever."""
    places = (
        ("multiprocessing.queues", "Queue", ("put",)),
        ("multiprocessing.queues", "JoinableQueue", ("put",)),
        ("multiprocessing.queues", "SimpleQueue", ("put",)),
        ("multiprocessing.connection", "Connection", ("send",)),
        ("multiprocessing.pool", "Pool", ("apply_async", "_map_async", "imap", "imap_unordered")),
        ("concurrent.futures.process", "ProcessPoolExecutor", ("submit",)),
    )
    for module, cls, names in places:
        owner = getattr(sys.modules.get(module), cls, None)
        for name in names:
            real = None if owner is None else vars(owner).get(name)
            if real is not None:
                setattr(owner, name, ending_call(scope, end, f"{cls}.{name}", real))


def ending_call(
    scope: Any, end: Callable[[str], None], what: str, real: Callable[..., Any]
) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if scope.is_loading() or not scope.applies():
            return real(*args, **kwargs)
        is_thread_pool = type(args[0]).__name__ == "ThreadPool"  # a Pool by inheritance, but in this process
        if is_thread_pool:
            return real(*args, **kwargs)
        scope.blocked(what)
        if scope.in_user_loop():
            end(what)
        raise BrokenPipeError(f"feedrate doctor: nothing may be sent any more: {what}")

    return guarded


def replace_sockets(scope: Any, end: Callable[[str], None]) -> None:
    """Python's sockets only: those of the collectives are not Python's."""
    socket = sys.modules.get("socket")
    if socket is None:
        return
    for name in ("send", "sendall", "sendto", "sendmsg", "sendfile"):
        real = getattr(socket.socket, name)
        guarded = ending_call(scope, end, f"socket.{name}", real)

        def sent(self: Any, *args: Any, _guarded: Any = guarded, _name: str = name) -> Any:
            if (
                self.type == socket.SOCK_DGRAM and scope.applies() and not scope.is_loading()
            ):  # metrics to a collector: nobody waits for them
                scope.blocked(f"socket.{_name}")
                return len(args[0]) if args and isinstance(args[0], (bytes, bytearray)) else 0
            return _guarded(self, *args)

        setattr(socket.socket, name, sent)


GRACE_S = (
    3.0  # for workers to finish the batch they are at: one that writes a cache must not be cut off in it
)
TERM_S = 1.0
TEMPORARY = "temporary-of-"  # links in the run folder: temporary folders that workers cannot remove any more


class Ending:
    """Ends the process, once."""

    def __init__(self, book: Any, scope: Any) -> None:
        self._book = book
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
                        self._book.trouble(step.__name__, error)
                for last in self.before:
                    last()
        finally:
            os._exit(self._exit_code)

    def _last_facts(self) -> None:
        self.first(self._error)
        how = "signal" if self._exit_code else "experiments"
        self._book.fact("end", how=how, exit=self._exit_code, error=self._error)

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
        for iterator in iterators:
            forget_workers(iterator)
        within(1.0, lambda: ask_workers_to_leave(iterators), self._scope)
        deadline = time.monotonic() + GRACE_S
        for iterator in iterators:
            for worker in getattr(iterator, "_workers", ()):
                worker.join(max(0.0, deadline - time.monotonic()))


def live_iterators() -> list[Any]:
    """Every iterator of this process that has workers."""
    module = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", None)  # torchdata's with workers derive from this one
    if base is None:
        return []
    # type(), not isinstance(): lazy proxies answer __class__ by running code.
    return [
        thing for thing in gc.get_objects() if issubclass(type(thing), base) and hasattr(thing, "_workers")
    ]


def forget_workers(iterator: Any) -> None:
    """The SIGCHLD handler of torch raises in the main thread when a worker dies that it still knows."""
    signals = sys.modules.get("torch.utils.data._utils.signal_handling")
    if signals is not None and getattr(iterator, "_worker_pids_set", False):
        signals._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    iterator._shutdown = True


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
    children = [pid for pid in child_pids() if pid not in spared]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in children:
            try:
                os.kill(pid, number)
            except OSError:
                continue
        deadline = time.monotonic() + TERM_S
        while children and time.monotonic() < deadline:
            children = [pid for pid in children if not is_reaped(pid)]
            if children:
                time.sleep(0.005)


def is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:  # multiprocessing was faster
        return True


def helper_pids() -> set[int]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    found = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    return {pid for pid in found if pid is not None}


def child_pids() -> list[int]:
    """Direct children in this session. A program that made its own session means to stay."""
    return children_by_parent().get(os.getpid(), [])


def children_by_parent() -> dict[int, list[int]]:
    """The processes of this session, by the process that started them."""
    session = os.getsid(0)
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    text = file.read()
            except OSError:
                continue
            start, end = text.index(b"(") + 1, text.rindex(b")")
            fields = text[end + 2 :].split()
            is_shared_memory_manager = text[start:end].startswith(b"torch_shm_manag")
            if int(fields[3]) == session and not is_shared_memory_manager:
                found.setdefault(int(fields[1]), []).append(int(name))
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
