# SPDX-License-Identifier: Apache-2.0
"""To whom the guard applies: user code of this process and its workers, but not the doctor's own code."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

from ..session import session
from ..wrapping import caller

HARMLESS_FOLDERS = ("/dev/", "/proc/", "/sys/")  # nothing of these outlives the run


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
        return not (self.is_own() or threading.get_ident() in self.own_threads or is_pinning())

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


def is_pinning() -> bool:
    """The thread of a loader that receives batches from its workers, over sockets."""
    target = getattr(threading.current_thread(), "_target", None)
    return getattr(target, "__name__", "") == "_pin_memory_loop"
