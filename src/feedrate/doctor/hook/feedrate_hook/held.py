# SPDX-License-Identifier: Apache-2.0
"""Replaces what writes: files opened for writing lie in memory; removing, renaming, savers do nothing.

A script that keeps its last few checkpoints must not remove a good one because the new one was held back.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from . import memory_files, withheld

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
MAKE_FOLDERS = ("mkdir", "makedirs")
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


def replace_writers(scope: Any) -> None:
    """Replace everything known. The real functions still serve the doctor's own code."""
    guarded_open, guarded_os_open = memory_files.guard_opens(scope, io.open, os.open)
    new: list[tuple[Any, str, Any]] = [
        (builtins, "open", guarded_open),
        (io, "open", guarded_open),
        (os, "open", guarded_os_open),
    ]
    folders = HeldFolders(scope)
    for module, names in ((os, OS_NAMES), (shutil, SHUTIL_NAMES)):
        for name, paths in names.items():
            if hasattr(module, name):
                guarded = harmless_only(scope, module, name, paths)
                new.append((module, name, folders.made(guarded) if name in MAKE_FOLDERS else guarded))
    new += [(os, name, folders.listed(getattr(os, name))) for name in ("listdir", "scandir")]
    for name in PATH_NAMES:
        if hasattr(pathlib.Path, name):
            guarded = harmless_only(scope, pathlib.Path, name, 1)
            setattr(pathlib.Path, name, folders.made(guarded) if name in MAKE_FOLDERS else guarded)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10
    if getattr(accessor, "open", None) is io.open:
        accessor.open = staticmethod(guarded_open)  # type: ignore[union-attr]
    real = {id(getattr(module, name)): (getattr(module, name), guarded) for module, name, guarded in new}
    replace_references(real)
    memory_files.replace_descriptor_calls(scope)
    withheld.replace_savers(scope)
    # What is registered from now on belongs to the spoilt part of the run.
    register = atexit.register
    atexit.register = lambda function, *args, **kwargs: (  # type: ignore[assignment]
        function if scope.applies() else register(function, *args, **kwargs)
    )


class HeldFolders:
    """Folders that were not made. Who made one may look into it, and must not fail: it is empty."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._paths: set[str] = set()

    def made(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            result = make(*args, **kwargs)
            path = args[0] if args else kwargs.get("name", kwargs.get("path"))
            if path is not None and self._scope.applies():
                self._paths.add(os.path.abspath(os.fsdecode(path)))
            return result

        guarded.__name__ = make.__name__
        return guarded

    def listed(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any = ".") -> Any:
            try:
                return look(path)
            except FileNotFoundError:
                is_held = not isinstance(path, int) and os.path.abspath(os.fsdecode(path)) in self._paths
                if not is_held or not self._scope.applies():
                    raise
                with self._scope.own():
                    return look(self._empty())

        guarded.__name__ = look.__name__
        return guarded

    def _empty(self) -> str:
        folder = os.path.join(self._scope.run_folder, "empty")
        os.makedirs(folder, exist_ok=True)
        return folder


def replace_references(real: dict[int, tuple[Any, Any]]) -> None:
    """In the modules themselves, and wherever else they are kept: `from os import remove`, `_open = open`."""
    for place in gc.get_referrers(*[function for function, _ in real.values()]):
        # A class's dictionary must not be changed past the class.
        if type(place) is dict and "__module__" not in place:
            for key, value in list(place.items()):
                if id(value) in real:
                    place[key] = real[id(value)][1]


def harmless_only(scope: Any, owner: Any, name: str, paths: int) -> Callable[..., Any]:
    real = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not scope.applies() or (args and all(scope.is_harmless(path) for path in args[:paths])):
            return real(*args, **kwargs)
        scope.blocked(f"{owner.__name__}.{name}", " ".join(str(arg) for arg in args[:paths]))
        return args[1] if paths == 2 and len(args) > 1 else None

    guarded.__name__ = name
    return guarded
