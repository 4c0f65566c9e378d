# SPDX-License-Identifier: Apache-2.0
"""A folder for files that a measurement writes, below one that is not ours; it goes away however this ends.

A process that is killed leaves it behind, under a name that says what it is, with a lock that ended with the
process: by that the next run knows what it may remove.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from feedrate.files.atomic import explain_write_error, writing
from feedrate.files.lock import lock_fd, locked_if_free
from feedrate.machine.describe import find_node

_LOCK = "in-use.lock"


@contextlib.contextmanager
def own_folder(folder: str | Path, name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """Make a folder for our files, and remove it at the end, with all that is in it.

    Args:
        name: how its name begins, and the names of those that killed runs left, which are removed first.

    Raises:
        StorageError: it cannot be made.
    """
    folder = Path(folder)
    prefix = f"{name}{quote(find_node(), safe='')}-"
    remove_leftovers(folder, prefix, say)
    try:
        inside = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    except OSError as error:
        raise explain_write_error(error, folder / name) from error
    try:
        with writing(inside / "lock"):
            descriptor = os.open(inside / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # no locks here: then nobody removes what is left behind
                lock_fd(descriptor, wait=False)
                # Now that it is locked: who finds the name free may be sure that its run has ended.
                os.rename(inside / "lock", inside / _LOCK)
            yield inside
        finally:
            with _no_interrupt():
                shutil.rmtree(inside, ignore_errors=True)
                os.close(descriptor)
    finally:
        with _no_interrupt():
            shutil.rmtree(inside, ignore_errors=True)  # NFS keeps what was open, until it is closed


def remove_leftovers(folder: Path, prefix: str, say: Callable[[str], None]) -> None:
    """Remove folders of runs of this user on this node that were killed."""
    for path in sorted(folder.glob(f"{glob.escape(prefix)}*")):
        try:
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
        except FileNotFoundError:  # another run has just ended
            continue
        with locked_if_free(path / _LOCK) as is_free:
            if is_free:
                say(f"removing {path}, which a run that was killed left behind")
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Pass over a second Ctrl-C until the files are gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
