# SPDX-License-Identifier: Apache-2.0
"""The small files of a pack that is elsewhere, in a temporary folder: brought when they are first needed.

A folder is locked by its process; one whose process was killed is removed by the next that looks. Between its
making and its lock it looks like one of a killed process: whoever finds it gone then makes another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from feedrate import kernel
from feedrate.errors import PackError, StorageError
from feedrate.files.lock import lock_fd, locked_if_free
from feedrate.format.manifest import PackFile
from feedrate.remote.fetch import Piece, RangeReader, origin

PREFIX = "feedrate-index-"
LOCK, _UNLOCKED = "lock", ".lock"


class IndexFolder:
    """Parts of an index, each a file of this machine once `bring` was asked for it. Safe for any thread."""

    def __init__(self, source: str, reader: RangeReader) -> None:
        self._source, self._reader = source, reader
        sweep(tempfile.gettempdir())
        try:
            self.path, self._lock_fd = _make_locked()
        except OSError as error:
            raise StorageError(
                f"cannot make a temporary folder for the index: {error.strerror}", hint="set TMPDIR"
            ) from error
        self.close = weakref.finalize(self, _remove, self.path, self._lock_fd, os.getpid())
        self._busy = threading.Lock()
        self._there: set[Path] = set()
        # Where a part may be already, on scratch.
        self.find_copy: Callable[[PackFile], Path | None] = lambda _: None

    def locate(self, file: PackFile) -> Path:
        """Return where a part will be."""
        # Folders lead to other packs, whose parts may have the same names.
        prefix = hashlib.blake2b(file.folder.encode(), digest_size=6).hexdigest() + "-" if file.folder else ""
        return self.path / f"{prefix}{file.name}"

    def bring(self, files: Iterable[PackFile], *, again: bool = False) -> None:
        """See to it that parts are there. `again`: what is there is damaged.

        Raises:
            StorageError: the source cannot be read.
            PackError: what is there is not what pack.json describes.
        """
        files = list(files)
        if not again and all(self.locate(file) in self._there for file in files):
            return
        with self._busy:
            missing = [file for file in files if again or self.locate(file) not in self._there]
            missing = [file for file in missing if again or not self._link(file)]
            damaged = self._fetch(missing)
            # Once more: a proxy or a memory on the way may have damaged it.
            for file in self._fetch(damaged):
                raise PackError(
                    f"{self._source}: {file.name} is not what pack.json describes (checksum)",
                    hint="the pack at the source is damaged, or being changed",
                )
            self._there.update(self.locate(file) for file in missing)

    def _fetch(self, files: Sequence[PackFile]) -> list[PackFile]:
        """Bring files, and return those of which something else came."""
        damaged = []
        futures = [self._reader.read(Piece(origin(file), 0, file.size_bytes)) for file in files]
        for file, future in zip(files, futures, strict=True):
            data = future.result()
            if kernel.crc32c(data) == file.crc32c:
                self._write(file, data)
            else:
                damaged.append(file)
        return damaged

    def _link(self, file: PackFile) -> bool:
        """Use what is on scratch; it is checked row by row when it is read."""
        there = self.find_copy(file)
        if there is None:
            return False
        os.symlink(there, self.locate(file))
        self._there.add(self.locate(file))
        return True

    def _write(self, file: PackFile, data: bytes) -> None:
        path = self.locate(file)
        try:
            aside = path.with_name(f".{path.name}")
            aside.write_bytes(data)
            os.replace(aside, path)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}", hint="set TMPDIR to a folder with more room"
            ) from error


def sweep(folder: str) -> None:
    """Remove what processes left that were killed."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                if not name.startswith(PREFIX) or path.is_symlink() or path.stat().st_uid != os.getuid():
                    continue
                for lock in (LOCK, _UNLOCKED):
                    with locked_if_free(path / lock) as is_free:
                        if is_free:
                            shutil.rmtree(path, ignore_errors=True)
                path.rmdir()  # one that is not empty stays: it is in use


def _make_locked() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):  # swept, since it was not locked yet
            return folder, _lock(folder)


def _lock(folder: Path) -> int:
    # The file gets its name when it is locked: other processes remove a folder whose lock nobody holds.
    fd = os.open(folder / _UNLOCKED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock_fd(fd)
        os.rename(folder / _UNLOCKED, folder / LOCK)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(folder: Path, lock_fd: int, process: int) -> None:
    """In a forked child the folder is the parent's."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock_fd)
