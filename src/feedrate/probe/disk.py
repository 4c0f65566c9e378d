# SPDX-License-Identifier: Apache-2.0
"""How fast is a scratch folder?"""

from __future__ import annotations

import os
import tempfile
import time

from feedrate.errors import StorageError
from feedrate.results.machine import ScratchRate

_BLOCK_BYTES = 1 << 20
_SCRATCH_BYTES = 64 << 20


def measure_scratch(
    folder: str | os.PathLike[str], *, size_bytes: int = _SCRATCH_BYTES, seconds: float = 2.0
) -> ScratchRate:
    """Write a file of at most `size_bytes` for at most about `seconds`, and read it back from the disk.

    The file has no name, so that nothing is left behind however this ends.

    Raises:
        StorageError: the folder cannot be written to, or has no room.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return _measure_file(file.fileno(), size_bytes, seconds)
    except OSError as error:
        raise StorageError(
            f"cannot measure {os.fspath(folder)}: {error.strerror or error}",
            hint="name a folder on a local disk that you may write to: --scratch DIR",
        ) from error


def _measure_file(descriptor: int, size_bytes: int, seconds: float) -> ScratchRate:
    room = os.fstatvfs(descriptor)
    size_bytes = min(size_bytes, room.f_bavail * room.f_frsize // 4)
    block = os.urandom(_BLOCK_BYTES)  # a file system that compresses must not look fast
    began, written = time.perf_counter(), 0
    while written < size_bytes and time.perf_counter() - began < seconds:
        written += os.write(descriptor, block[: size_bytes - written])
    os.fsync(descriptor)
    write_s = time.perf_counter() - began
    if not written:
        raise OSError(28, "no room left")
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    # On tmpfs and the like the pages stay: what is then read says nothing of a disk.
    os.lseek(descriptor, 0, os.SEEK_SET)
    buffer = bytearray(_BLOCK_BYTES)
    began, back = time.perf_counter(), 0
    while (got := os.readv(descriptor, [buffer])) > 0 and time.perf_counter() - began < seconds:
        back += got
    read_s = time.perf_counter() - began
    return ScratchRate(written, written / write_s, back / read_s if back else None)
