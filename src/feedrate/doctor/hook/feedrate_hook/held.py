# SPDX-License-Identifier: Apache-2.0
"""Replaces what writes: open for writing gives /dev/null; removing, renaming and known savers do nothing.

A script that keeps its last few checkpoints must not remove a good one because the new one was held back.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

from . import withheld

WRITING_MODES = frozenset("wax+")

# Functions that change files, and how many of their arguments are paths.
# When all are harmless, the call goes through.
OS_NAMES = {
    "remove": 1,
    "unlink": 1,
    "rename": 2,
    "renames": 2,
    "replace": 2,
    "rmdir": 1,
    "removedirs": 1,
    "truncate": 1,
    "ftruncate": 1,
    "link": 2,
    "symlink": 2,
    "mkdir": 1,
    "makedirs": 1,
    "mkfifo": 1,
    "mknod": 1,
    "chmod": 1,
    "chown": 1,
    "utime": 1,
    "setxattr": 1,
    "fsync": 1,  # /dev/null refuses it
    "fdatasync": 1,
    "posix_fallocate": 1,
}
SHUTIL_NAMES = {
    "copy": 2,
    "copy2": 2,
    "copyfile": 2,
    "copytree": 2,
    "copymode": 2,
    "copystat": 2,
    "move": 2,
    "rmtree": 1,
    "make_archive": 1,
    "unpack_archive": 2,
}
PATH_NAMES = (
    "unlink",
    "rename",
    "replace",
    "rmdir",
    "mkdir",
    "touch",
    "symlink_to",
    "hardlink_to",
    "link_to",
    "chmod",
)


def replace_writers(scope: Any, end: Callable[[str], None]) -> None:
    """Replace everything known. The real functions still serve the doctor's own code and worker processes."""
    replace_open(scope)
    for module, names in ((os, OS_NAMES), (shutil, SHUTIL_NAMES)):
        for name, paths in names.items():
            if hasattr(module, name):
                setattr(module, name, harmless_only(scope, module, name, paths))
    for name in PATH_NAMES:
        if hasattr(pathlib.Path, name):
            setattr(pathlib.Path, name, harmless_only(scope, pathlib.Path, name, 1))
    replace_locks(scope)
    replace_processes(scope, end)
    replace_sockets(scope, end)
    withheld.replace_savers(scope)
    # What is registered from now on belongs to the spoilt part of the run.
    register = atexit.register
    atexit.register = lambda function, *args, **kwargs: (  # type: ignore[assignment]
        function if scope.applies() else register(function, *args, **kwargs)
    )


def replace_open(scope: Any) -> None:
    real_open, real_os_open = io.open, os.open

    def guarded_open(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if (
            not (isinstance(mode, str) and WRITING_MODES & set(mode))
            or not scope.applies()
            or scope.is_harmless(file)
        ):
            return real_open(file, mode, *args, **kwargs)
        scope.blocked("open for writing", file)
        kwargs.pop("closefd", None)
        kwargs.pop("opener", None)
        return real_open(os.devnull, mode.replace("x", "w"), *args[:4], **kwargs)

    def guarded_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if not writes or not scope.applies() or scope.is_harmless(path):
            return real_os_open(path, flags, *args, **kwargs)
        scope.blocked("os.open for writing", path)
        return real_os_open(os.devnull, flags & (os.O_WRONLY | os.O_RDWR | os.O_CLOEXEC))

    builtins.open = guarded_open
    io.open = guarded_open
    os.open = guarded_os_open
    logging = sys.modules.get("logging")
    if logging is not None:
        # Handlers that roll over keep the real open.
        logging.FileHandler._open = lambda self: guarded_open(self.baseFilename, self.mode)


def harmless_only(scope: Any, owner: Any, name: str, paths: int) -> Callable[..., Any]:
    real = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not scope.applies() or (args and all(scope.is_harmless(path) for path in args[:paths])):
            return real(*args, **kwargs)
        scope.blocked(f"{owner.__name__}.{name}", " ".join(str(arg) for arg in args[:paths]))
        return args[1] if paths == 2 and len(args) > 1 else None

    guarded.__name__ = name
    return guarded


def replace_locks(scope: Any) -> None:
    """Files are /dev/null now, and its lock is one for the whole machine."""
    fcntl = sys.modules.get("fcntl")
    for name in ("flock", "lockf"):
        real = getattr(fcntl, name, None)
        if real is not None:

            def guarded(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                return None if scope.applies() else _real(*args, **kwargs)

            setattr(fcntl, name, guarded)


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
        if not scope.applies():
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
                self.type == socket.SOCK_DGRAM and scope.applies()
            ):  # metrics to a collector: nobody waits for them
                scope.blocked(f"socket.{_name}")
                return len(args[0]) if args and isinstance(args[0], (bytes, bytearray)) else 0
            return _guarded(self, *args)

        setattr(socket.socket, name, sent)
