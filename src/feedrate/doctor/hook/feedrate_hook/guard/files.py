# SPDX-License-Identifier: Apache-2.0
"""Files once a run is spoilt: what is opened for writing is in memory, open files lead there or nowhere.

What removes, renames or copies does nothing: a script that keeps its last few checkpoints must not remove a
good one because the new one was not written.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import gc
import io
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from typing import Any

from . import libraries
from .kernel import WRITING_FLAGS

WRITING_MODES = frozenset("wax+")
COPIED_BYTES = 64 << 20


def guard_opens(scope: Any, real_open: Any, real_os_open: Any) -> tuple[Any, Any]:
    """Stand-ins for open and os.open."""

    def guarded_open(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        is_writing = isinstance(mode, str) and WRITING_MODES & set(mode)
        if not is_writing or not scope.applies() or scope.is_harmless(file):
            return real_open(file, mode, *args, **kwargs)
        scope.blocked("open for writing", file)
        kwargs.pop("closefd", None)
        is_loading = scope.is_loading()
        kwargs["opener"] = lambda path, flags: stand_in(path, flags, is_loading)
        with scope.own():
            return real_open(file, mode, *args[:4], **kwargs)

    def guarded_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if not flags & WRITING_FLAGS or not scope.applies() or scope.is_harmless(path):
            return int(real_os_open(path, flags, *args, **kwargs))
        scope.blocked("os.open for writing", path)
        is_loading = scope.is_loading()
        with scope.own():
            return stand_in(path, flags, is_loading)

    def stand_in(path: Any, flags: int, is_loading: bool) -> int:
        if is_loading and flags & os.O_RDWR and not flags & os.O_TRUNC and is_large(path):
            # What a dataset reads must be real. Should it write, that fails.
            return int(real_os_open(path, os.O_RDONLY | os.O_CLOEXEC))
        return file_in_memory(real_os_open, path, flags)

    return guarded_open, guarded_os_open


def file_in_memory(real_open: Callable[..., int], path: Any, flags: int) -> int:
    """A file of which nothing stays, with a position and a size: archives need them. It can be mapped."""
    try:
        descriptor = os.memfd_create("feedrate", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return real_open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if flags & os.O_RDWR and not flags & os.O_TRUNC:
        try:
            source = real_open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return descriptor
        fill(descriptor, source)
        os.close(source)
    return descriptor


def is_large(path: Any) -> bool:
    """Too large for a copy in memory."""
    try:
        return os.stat(path).st_size > COPIED_BYTES
    except OSError:
        return False


def fill(descriptor: int, source: int) -> None:
    """Copy a file that is not too large for memory; of a larger one only the size."""
    size = os.fstat(source).st_size
    os.ftruncate(descriptor, size)
    if size <= COPIED_BYTES:
        position = 0
        while position < size:
            data = os.pread(source, 1 << 20, position)
            if not data:
                break
            os.pwrite(descriptor, data, position)
            position += len(data)


def replace_descriptor(null: int, descriptor: int) -> None:
    """Let an open file lead nowhere. One that is read, too, gets a copy in memory, at the same position.

    Of a large one, what is read stays real, and a write fails.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    target = null
    if flags & os.O_ACCMODE == os.O_RDWR and stat.S_ISREG(os.fstat(descriptor).st_mode):
        if is_large(descriptor):
            with contextlib.suppress(OSError):
                target = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        elif hasattr(os, "memfd_create"):
            target = os.memfd_create("feedrate", os.MFD_CLOEXEC)
            fill(target, descriptor)
    if target != null:
        os.lseek(target, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        fcntl.fcntl(target, fcntl.F_SETFL, flags & os.O_APPEND)
    os.dup2(target, descriptor, inheritable=os.get_inheritable(descriptor))
    if target != null:
        os.close(target)


def replace_descriptor_calls(scope: Any) -> None:
    """Files are /dev/null now, which refuses some calls, and whose lock is one for the whole machine."""
    for name in ("fsync", "fdatasync", "ftruncate", "posix_fallocate", "sendfile", "copy_file_range"):
        if hasattr(os, name):
            setattr(os, name, forgiving(scope, getattr(os, name)))
    for name in ("flock", "lockf"):
        setattr(fcntl, name, forgiving(scope, getattr(fcntl, name)))


def forgiving(scope: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return real(*args, **kwargs)
        except OSError:
            if scope.applies():
                return None
            raise

    return guarded


# Functions that change files, by how many of their arguments are paths.
# When all are harmless, the call goes through.
REFUSED: tuple[tuple[Any, int, str], ...] = (
    (os, 1, "remove unlink rmdir removedirs truncate mkdir makedirs mkfifo mknod chmod chown utime setxattr"),
    (os, 2, "rename renames replace link symlink"),
    (shutil, 1, "rmtree make_archive"),
    (shutil, 2, "copy copy2 copyfile copytree copymode copystat move unpack_archive"),
    (pathlib.Path, 1, "unlink rename replace rmdir mkdir touch symlink_to hardlink_to link_to chmod"),
)
MAKE_FOLDERS = ("mkdir", "makedirs")


def replace_writers(scope: Any) -> None:
    """Replace everything known. The real functions still serve the doctor's own code."""
    guarded_open, guarded_os_open = guard_opens(scope, io.open, os.open)
    new: list[tuple[Any, str, Any]] = [
        (builtins, "open", guarded_open),
        (io, "open", guarded_open),
        (os, "open", guarded_os_open),
    ]
    unmade: set[str] = set()  # folders that the script thinks it made
    new += [
        (owner, name, harmless_only(scope, owner, name, paths, unmade))
        for owner, paths, names in REFUSED
        for name in names.split()
        if hasattr(owner, name)
    ]
    new += [(os, name, listing(scope, getattr(os, name), unmade)) for name in ("listdir", "scandir")]
    accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10
    if getattr(accessor, "open", None) is io.open:
        accessor.open = staticmethod(guarded_open)  # type: ignore[union-attr]
    real: dict[int, tuple[Any, Any]] = {}
    for owner, name, guarded in new:
        if isinstance(owner, type):
            setattr(owner, name, guarded)
        else:
            real[id(getattr(owner, name))] = (getattr(owner, name), guarded)
    replace_references(real)
    replace_descriptor_calls(scope)
    libraries.replace_savers(scope)
    # What is registered from now on belongs to the spoilt part of the run.
    register = atexit.register
    atexit.register = lambda function, *args, **kwargs: (  # type: ignore[assignment]
        function if scope.applies() else register(function, *args, **kwargs)
    )


def listing(scope: Any, look: Callable[..., Any], unmade: set[str]) -> Callable[..., Any]:
    """Who made a folder may look into it, and must not fail: one that was not made is empty."""

    def guarded(path: Any = ".") -> Any:
        try:
            return look(path)
        except FileNotFoundError:
            is_unmade = not isinstance(path, int) and os.path.abspath(os.fsdecode(path)) in unmade
            if not is_unmade or not scope.applies():
                raise
            with scope.own():
                empty = os.path.join(scope.run_folder, "empty")
                os.makedirs(empty, exist_ok=True)
                return look(empty)

    guarded.__name__ = look.__name__
    return guarded


def replace_references(real: dict[int, tuple[Any, Any]]) -> None:
    """In the modules themselves, and wherever else they are kept: `from os import remove`, `_open = open`."""
    for place in gc.get_referrers(*[function for function, _ in real.values()]):
        # A class's dictionary must not be changed past the class.
        if type(place) is dict and "__module__" not in place:
            for key, value in list(place.items()):
                if id(value) in real:
                    place[key] = real[id(value)][1]


def harmless_only(scope: Any, owner: Any, name: str, paths: int, unmade: set[str]) -> Callable[..., Any]:
    real = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not scope.applies() or (args and all(scope.is_harmless(path) for path in args[:paths])):
            return real(*args, **kwargs)
        scope.blocked(f"{owner.__name__}.{name}", " ".join(str(arg) for arg in args[:paths]))
        path = args[0] if args else kwargs.get("name", kwargs.get("path"))
        if name in MAKE_FOLDERS and path is not None:
            unmade.add(os.path.abspath(os.fsdecode(path)))
        return args[1] if paths == 2 and len(args) > 1 else None

    guarded.__name__ = name
    return guarded
