# SPDX-License-Identifier: Apache-2.0
"""Takes a child that makes samples for a proof apart from the script: their open files and shared memory.

A fork shares both. What a sample counts, caches or locks there is the script's, and may come from images that
differ from the bare run's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import mmap
import os
import resource
import stat
from collections.abc import Iterator

LARGEST = 64 << 20  # bytes of shared memory that are copied; more may only be read
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_KEPT = _ACCESS | os.O_APPEND | getattr(os, "O_DIRECT", 0)  # others (O_NOFOLLOW, O_TMPFILE) are of names
_SHARED, _UNNAMED, _DEVICES = "/dev/shm/", "/dev/zero", ("/dev/", "/proc/", "/sys/")
_GPU = "/dev/nvidia"
_MAP_FIXED = 0x10


def take_apart(ours: int) -> None:
    """Give this process files and memory of its own: it reads what the script has, and changes none of it.

    `ours`: a descriptor that stays. What is read from connections and pipes would be missed by the script.
    """
    # Who writes to memory that may only be read ends at once, and unheard.
    faulthandler.disable()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                mode = os.fstat(number).st_mode
                if stat.S_ISREG(mode):
                    _open_anew(number)
                elif (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)) and number != ours:
                    _put(os.open(os.devnull, os.O_RDWR), number)
    left = LARGEST
    for size, address in sorted(_list_shared()):
        left -= size
        _own_memory(address, size, is_copied=left >= 0)


def _open_anew(number: int) -> None:
    flags, offset = fcntl.fcntl(number, fcntl.F_GETFL), os.lseek(number, 0, os.SEEK_CUR)
    try:
        if flags & _ACCESS == os.O_WRONLY:
            raise PermissionError
        own = os.open(f"/proc/self/fd/{number}", flags & _KEPT)
        os.lseek(own, offset, os.SEEK_SET)
    except OSError:
        own = os.open(os.devnull, os.O_RDWR)  # rather a sample that fails than one of the script's
    _put(own, number)


def _put(own: int, number: int) -> None:
    os.dup2(own, number)
    os.close(own)


def _list_shared() -> Iterator[tuple[int, int]]:
    """Yield size and address of all memory that this process can write to and others see, but devices'."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    # A driver's pinned memory has no name, either, and a child may not even read it.
    kinds = (_SHARED,) if any(_GPU in line for line in lines) else (_SHARED, _UNNAMED)
    for line in lines:
        place, access, _, _, _, *name = line.split(maxsplit=5)
        path = name[0] if name else ""
        is_memory = path.startswith(kinds) or (path[:1] == "/" and not path.startswith(_DEVICES))
        if access.startswith("rw") and access[3] == "s" and is_memory:
            begin, end = (int(text, 16) for text in place.split("-"))
            yield end - begin, begin


def _own_memory(address: int, size: int, *, is_copied: bool) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not is_copied:
        libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ)
        return
    values = ctypes.string_at(address, size)
    libc.mmap.restype = ctypes.c_void_p
    made = libc.mmap(
        ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, ctypes.c_long(0),
    )  # fmt: skip
    if made == address:
        ctypes.memmove(address, values, size)
