# SPDX-License-Identifier: Apache-2.0
"""Run independent tasks on processes of this machine.

The parent owns a small shared array: slot 0 asks everybody to stop, and each worker has two slots of its own
where it counts samples and bytes. Tasks and results go through a pipe to each worker, not through queues of
multiprocessing: those have locks, which a killed worker would hold for ever, and semaphores with names, which
stay when everybody is killed. Nor are workers its processes: those import what the working folder has, and
the user's script once more. A worker inherits three open files: its pipe, the array, and the end of a pipe
whose other end the parent holds, by which it notices that the parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from feedrate.calls import one_ahead
from feedrate.errors import FeedrateError
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.isolated import isolated_command
from feedrate.progress import Tick

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Task = TypeVar("Task")
Done = TypeVar("Done")
Watch = Callable[[int, int], None]  # samples and bytes so far

_POLL_S = 0.2
# 64 MB of photographs took one process 1.8 s, two processes 3.5 s (busy 2-core machine): starting costs.
_WORTH_A_WORKER_BYTES = 100_000_000
# Where tasks have threads of their own, one process keeps so many cores busy: what it does by itself, mostly
# writing, takes a sixth of the time of looking at a photograph.
_CORES_PER_PROCESS = 4
# Pillow's own: a script that sets them decides what is packed, and a new process would not know.
_SWITCHES = (("PIL.Image", "MAX_IMAGE_PIXELS"), ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES"))


class Stopped(Exception):
    """The parent wants no more."""


# What `advance` calls in this process, and what `count_threads` says.
_count: Watch | None = None
_threads = 1


def count_threads() -> int:
    """Return how many threads a task may use: processes share the machine out among them, one has it all."""
    return _threads


def advance(samples: int, size_bytes: int) -> None:
    """Count finished work; called by tasks, often. Raises `Stopped` when the work is no longer wanted."""
    if _count is not None:
        _count(samples, size_bytes)


class SizedTask(Protocol):
    """A task that says how much it is about."""

    @property
    def samples(self) -> int: ...

    @property
    def source_bytes(self) -> int: ...


Sized = TypeVar("Sized", bound=SizedTask)


def report_tasks(
    phase: str,
    tasks: Sequence[SizedTask],
    missing: Sequence[SizedTask],
    watch: Callable[[Tick], None],
    unit: str = "sample",
) -> Watch:
    """Return what `run_tasks` is to tell of the `missing` ones of `tasks`; the others count as done."""
    total, left = (sum(task.samples for task in some) for some in (tasks, missing))
    total_bytes, left_bytes = (sum(task.source_bytes for task in some) for some in (tasks, missing))

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick(phase, done, total, done_bytes, total_bytes, unit))

    report(0, 0)
    return report


def run_tasks(
    function: Callable[[Task], Done],
    tasks: Sequence[Task],
    *,
    workers: int | None,
    size_bytes: int,
    watch: Watch,
    begin: Callable[[Task], Callable[[], Done]] | None = None,
    have_threads: Callable[[], bool] = lambda: False,
) -> Iterator[Done]:
    """Yield what `function` returns for each task, as they finish, in any order.

    With one worker everything happens in this process. `workers` is None: as many as there are cores, but not
    more than `size_bytes` of images are worth starting.

    Args:
        begin: does all of a task but its last step, and returns that; together they are `function`. With
            threads to use, a last step is then done while the next task begins.
        have_threads: says whether tasks do their work on `count_threads()` threads, asked where it matters:
            a process costs a third of a second until it begins, so that fewer are started then.

    Raises:
        FeedrateError: a worker died. Errors of the function come through as they are.
    """
    worth = max(1, size_bytes // _WORTH_A_WORKER_BYTES)
    cores = count_usable_cores()
    threads, threads_each = workers or cores, 1
    is_free = workers is None
    workers = min(workers or min(cores, worth), len(tasks))
    if is_free and workers > 1 and have_threads():
        workers = min(workers, max(1, cores // _CORES_PER_PROCESS))
        threads_each = cores // workers
    if workers > 1:
        return _run_pool(function, tasks, workers, threads_each, watch)
    if begin is None or threads == 1:
        return _run_here(map(function, tasks), threads, watch)
    # However this ends, a last step that was begun is waited for: no file changes after that.
    return _run_here(one_ahead(map(begin, tasks)), threads, watch)


def finish_tasks(
    phase: str,
    function: Callable[[Sized], object],
    tasks: Sequence[Sized],
    find: Callable[[Sized], Done | None],
    *,
    workers: int | None,
    watch: Callable[[Tick], None],
    unit: str = "sample",
    have_threads: Callable[[], bool] = lambda: False,
) -> tuple[list[Sized], list[Done]]:
    """Run the tasks of which `find` finds no result; return these, and the results of all that it finds then.

    See `run_tasks`.
    """
    missing = [task for task in tasks if find(task) is None]
    report = report_tasks(phase, tasks, missing, watch, unit)
    size_bytes = sum(task.source_bytes for task in missing)
    for _ in run_tasks(
        function, missing, workers=workers, size_bytes=size_bytes, watch=report, have_threads=have_threads
    ):
        pass
    return missing, [done for task in tasks if (done := find(task)) is not None]


def _run_here(done: Iterator[Done], threads: int, watch: Watch) -> Iterator[Done]:
    global _count, _threads
    counts = [0, 0]

    def count(samples: int, size_bytes: int) -> None:
        counts[:] = counts[0] + samples, counts[1] + size_bytes
        watch(*counts)

    before, _count, _threads = _count, count, threads
    try:
        yield from done
    finally:
        _count, _threads = before, 1


def _run_pool(
    function: Callable[[Task], Done], tasks: Sequence[Task], workers: int, threads_each: int, watch: Watch
) -> Iterator[Done]:
    # Here, since one process needs none of it, and starts sooner without.
    from multiprocessing import Pipe
    from multiprocessing.connection import wait

    processes: list[subprocess.Popen[bytes]] = []
    busy: set[Any] = set()  # our ends of the pipes to workers that have a task
    waiting = iter(tasks)
    switches = [(m, name, getattr(sys.modules[m], name)) for m, name in _SWITCHES if m in sys.modules]
    with contextlib.ExitStack() as open_files:
        counts_fd = os.memfd_create("feedrate-counts")
        open_files.callback(os.close, counts_fd)
        os.ftruncate(counts_fd, 8 * (1 + 2 * workers))
        shared = _map_counts(counts_fd)
        living_fd, alive_fd = os.pipe()
        open_files.callback(os.close, alive_fd)
        open_files.callback(os.close, living_fd)
        try:
            for number in range(workers):
                ours, theirs = Pipe()
                busy.add(ours)
                with theirs, _interrupts_later():
                    processes.append(start_worker(theirs.fileno(), counts_fd, living_fd))
                with _explain_death():
                    ours.send((function, 1 + 2 * number, threads_each, switches))
                    ours.send(next(waiting))
            while busy:
                ready: list[Any] = wait(list(busy), timeout=_POLL_S)
                watch(sum(shared[1::2]), sum(shared[2::2]))
                for pipe in ready:
                    with _explain_death():
                        has_failed, result = pipe.recv()
                    if has_failed:
                        raise result
                    # Before the result is used: no worker waits for what happens with it.
                    for task in waiting:
                        with _explain_death():
                            pipe.send(task)
                        break
                    else:
                        busy.remove(pipe)
                        pipe.close()
                    yield result
        finally:
            shared[0] = 1
            for pipe in busy:
                pipe.close()
            for process in processes:
                process.wait()


def start_worker(*fds: int) -> subprocess.Popen[bytes]:
    """Start a process that has these open files: its pipe, the array, and the sign that this one lives."""
    words = isolated_command("feedrate.packing.workers:work", *map(str, fds))
    # Not a fork: this process may have threads (rich, pyarrow), and a forked lock may be held by nobody.
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=fds)


def _map_counts(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, 0)).cast("q")


@contextlib.contextmanager
def _explain_death() -> Iterator[None]:
    """Make a sentence of what a pipe says whose other end is gone."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise FeedrateError(
            "a worker process died; was it killed for want of memory?",
            hint="run the same command again, perhaps with fewer --workers",
        ) from error


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back; a process that is started meanwhile does so until it is a worker.

    One that died of it while it imports would print a traceback, and pass for one that was killed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work() -> None:
    """Be the worker whose open files the command line names."""
    from multiprocessing.connection import Connection

    pipe_fd, counts_fd, living_fd = map(int, sys.argv[1:])
    work_with(Connection(pipe_fd), counts_fd, living_fd)


def work_with(pipe: Connection, counts_fd: int, living_fd: int) -> None:
    """Do what comes through the pipe, until its other end is closed."""
    from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]

    global _count, _threads
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    warnings.simplefilter("ignore")  # Pillow's: what matters of them ends in the report
    threading.Thread(target=_end_with_parent, args=(living_fd,), daemon=True).start()
    shared = _map_counts(counts_fd)

    def count(samples: int, size_bytes: int) -> None:
        if shared[0]:
            raise Stopped
        shared[slot] += samples
        shared[slot + 1] += size_bytes

    with contextlib.suppress(EOFError, ConnectionError):
        function, slot, _threads, switches = pipe.recv()
        _count = count
        for module, name, value in switches:
            setattr(importlib.import_module(module), name, value)
        while True:
            task = pipe.recv()
            try:
                answer = (False, function(task))
            except BaseException as error:
                answer = (True, ExceptionWithTraceback(error, error.__traceback__))
            try:
                pipe.send(answer)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                pipe.send((True, RuntimeError(f"a worker's answer cannot be sent: {error}")))


def _end_with_parent(living_fd: int) -> None:
    os.read(living_fd, 1)
    os._exit(1)
