# SPDX-License-Identifier: Apache-2.0
"""Whom the guard holds back: user code of this process, but not the doctor's own, nor the run folder."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Iterator
from typing import Any

HOOK_FOLDER = os.path.dirname(os.path.abspath(__file__))
HARMLESS_FOLDERS = (
    "/dev/",
    "/proc/",
    "/sys/",
)  # devices, shared memory, the kernel: nothing of it outlives the run


class Scope:
    """Answers "does the guard apply to this call?" and writes down, once per place, what it held back."""

    def __init__(self, book: Any) -> None:
        self._book = book
        self._pid = os.getpid()
        self._local = threading.local()
        self._seen: set[tuple[str, str]] = set()
        self.run_folder = os.path.realpath(book.run)
        self.own_threads: set[int] = set()
        self.main_threads = {threading.main_thread().ident, threading.get_ident()}

    def applies(self) -> bool:
        return (
            os.getpid() == self._pid
            and not getattr(self._local, "depth", 0)
            and threading.get_ident() not in self.own_threads
            and not is_pinning()
        )

    def is_child(self) -> bool:
        return os.getpid() != self._pid

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

    def is_harmless(self, path: Any) -> bool:
        """Writing there leaves nothing of the run behind: the run folder, devices, pipes."""
        try:
            if isinstance(path, int):
                if not stat.S_ISREG(os.fstat(path).st_mode):
                    return True
                path = os.readlink(f"/proc/self/fd/{path}")
                if path.endswith(" (deleted)"):
                    return True  # nobody else can see it
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
            place = user_place()
            if (what, place) in self._seen or len(self._seen) > 200:
                return
            self._seen.add((what, place))
            self._book.fact("blocked", what=f"{what} {target}".rstrip() + f" ({place})")


def is_pinning() -> bool:
    """The thread of a loader that receives batches from its workers, over sockets."""
    target = getattr(threading.current_thread(), "_target", None)
    return getattr(target, "__name__", "") == "_pin_memory_loop"


def user_place() -> str:
    """file:line of the innermost frame of the user's code."""
    libraries = tuple(
        {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")} | {"<", HOOK_FOLDER}
    )
    frame = sys._getframe(1)
    outermost = frame
    while frame is not None:
        outermost = frame
        name = frame.f_code.co_filename
        if not name.startswith(libraries) and os.sep + "site-packages" + os.sep not in name:
            break
        frame = frame.f_back  # type: ignore[assignment]
    found = frame or outermost
    return f"{found.f_code.co_filename}:{found.f_lineno}"
