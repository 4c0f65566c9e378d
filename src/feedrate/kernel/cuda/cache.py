# SPDX-License-Identifier: Apache-2.0
"""What NVRTC made, kept in the user's cache folder, so that only the first run of a version compiles.

    $XDG_CACHE_HOME/feedrate/cuda/KEY     else ~/.cache/feedrate/cuda/KEY

A file is a magic, a SHA-256 of key and code, the code. That is machine code which the GPU will run, so a file
is read only if nobody but this user can have written it; folder and files are checked by their descriptors.
Files are written aside and renamed: any number of processes may read and write at once, without a lock, which
home folders on NFS often do not have. Whatever fails here costs a compilation, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from feedrate.kernel.cuda.nvrtc import Nvrtc

_MAGIC = b"feedrate cuda 1\n"
_DIGEST_BYTES = 32
_LARGEST_BYTES = 256 * 2**20  # code of ours is far below a hundredth of it
# Of a process that was killed. One that is still written may go as well: its writer has the code in memory.
_LEFTOVER_S = 3600
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nobody waits for a FIFO's other end
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger("feedrate")


def find_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the cache's folder, which need not be there; None: this user has no home."""
    cache = environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(cache):  # the standard has relative ones ignored
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "feedrate", "cuda") if os.path.isabs(cache) else None


def make_key(source: str, architecture: str, options: Sequence[str], version: tuple[int, int]) -> str:
    """Return the name of what is made of a source: another one for all that could change the result."""
    parts = [source, architecture, "{}.{}".format(*version), *options]
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


class CodeCache:
    """The compiled code in one folder; without one, or with one that cannot be used, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def compile(self, nvrtc: Nvrtc, source: str, architecture: str, options: Sequence[str] = ()) -> bytes:
        """Return what NVRTC makes of a source, from the folder where it is there.

        Raises:
            GpuError: the source does not compile.
        """
        key = make_key(source, architecture, options, nvrtc.version)
        code = self.read(key)
        if code is None:
            code = nvrtc.compile(source, architecture, options)
            self.write(key, code)
        return code

    def read(self, key: str) -> bytes | None:
        """Return the code; None: it is not there, is damaged, or somebody else may have written it."""
        with contextlib.suppress(OSError), self._open_folder() as folder:
            if folder is None:
                return None
            fd = os.open(key, _READ, dir_fd=folder)
            with open(fd, "rb") as file:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or not _is_private(info) or info.st_size > _LARGEST_BYTES:
                    return None
                content = file.read(_LARGEST_BYTES)
            start = len(_MAGIC) + _DIGEST_BYTES
            if content[:start] == _head(key, content[start:]):
                return content[start:]
        return None

    def write(self, key: str, code: bytes) -> None:
        """Keep the code; nothing happens where that is not possible."""
        with contextlib.suppress(OSError), self._open_folder() as folder:
            if folder is None:
                return
            _remove_leftovers(folder)
            temporary = f".{key}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
            fd = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
            try:
                # Not fsynced: what a power cut leaves half written does not pass its checksum.
                with open(fd, "wb") as file:
                    file.write(_head(key, code))
                    file.write(code)
                os.replace(temporary, key, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """Yield a descriptor of the folder, made if need be; None: others may have filled it."""
        if self.folder is None:
            yield None
            return
        with contextlib.suppress(OSError):  # read-only, or full: it may be there all the same
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(self.folder, _FOLDER)
        try:
            is_private = _is_private(os.fstat(fd))
            if not is_private:
                log.info("%s is not used: others may write to it, or own it", self.folder)
            yield fd if is_private else None
        finally:
            os.close(fd)


def _head(key: str, code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()


def _is_private(info: os.stat_result) -> bool:
    """Return whether nobody but this user can have written it; access lists show in the group's bits."""
    return info.st_uid == os.getuid() and not info.st_mode & _OTHERS_MAY_WRITE


def _remove_leftovers(folder: int) -> None:
    oldest = time.time() - _LEFTOVER_S
    for name in os.listdir(folder):
        if name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest:
                    os.unlink(name, dir_fd=folder)
