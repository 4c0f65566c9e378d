# SPDX-License-Identifier: Apache-2.0
"""Workers that are forks of a process which has imported what they need: they start at once."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd

from feedrate.packing.workers import work_with


class OpenFile:
    """A file descriptor that arrives in a process of multiprocessing."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        return receive_file, (DupFd(self.fd),)


def receive_file(arriving: DupFd) -> int:
    return int(arriving.detach())


def _work(pipe_fd: int, counts_fd: int, living_fd: int) -> None:
    work_with(Connection(pipe_fd), counts_fd, living_fd)


class ForkedWorker:
    def __init__(self, fds: tuple[int, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=_work, args=tuple(map(OpenFile, fds)))
        self._process.start()

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode or 0


def fork_worker(*fds: int) -> ForkedWorker:
    return ForkedWorker(fds)
