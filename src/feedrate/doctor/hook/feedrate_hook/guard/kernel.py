# SPDX-License-Identifier: Apache-2.0
"""What Python and Linux themselves tell and refuse: open files, mappings, an audit hook and Landlock.

The last two stop what gets past the replaced functions; Landlock also stops writers that are not Python.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

# Mapped for writing by every reader of an LMDB: it holds no data.
HARMLESS_MAPPINGS = ("lock.mdb", "-lock")
MAP_PRIVATE, MAP_FIXED, MAP_NORESERVE = 0x02, 0x10, 0x4000


class Mapping:
    """A file that is mapped shared and writable: a part of memory, and where it begins in the file."""

    def __init__(self, path: str, start: int, end: int, offset: int, protection: int, inode: int) -> None:
        self.path = path
        self._start, self._end, self._offset = start, end, offset
        self._protection = protection
        self._inode = inode

    def can_be_private(self) -> bool:
        """Where all memory must be reserved, a mapping could be lost by the attempt."""
        try:
            with open("/proc/sys/vm/overcommit_memory", encoding="ascii") as setting:
                if setting.read().strip() == "2":
                    return False
            os.close(self._open())
        except OSError:
            return False
        return True

    def make_private(self) -> None:
        """From now on each page that is written to is a copy, at the same address."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        descriptor = self._open()
        flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE
        size = self._end - self._start
        made = libc.mmap(self._start, size, self._protection, flags, descriptor, self._offset)
        os.close(descriptor)
        if made != self._start:
            raise OSError(ctypes.get_errno(), "cannot be mapped privately", self.path)

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(descriptor).st_ino != self._inode:
            os.close(descriptor)
            raise OSError(f"{self.path} is another file by now")
        return descriptor


def writable_mappings() -> list[Mapping]:
    """Files that are mapped shared and writable."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s" and fields[5].startswith("/"):
                addresses, permissions, offset, _device, inode, path = fields
                if not path.endswith((" (deleted)", *HARMLESS_MAPPINGS)) and os.path.isfile(path):
                    start, end = (int(word, 16) for word in addresses.split("-"))
                    protection = sum(1 << n for n, letter in enumerate("rwx") if permissions[n] == letter)
                    found.append(Mapping(path, start, end, int(offset, 16), protection, int(inode)))
    return found


# Events that write, remove, start or send something; the number of arguments that are paths.
PATH_EVENTS = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.truncate", "os.mkdir", "shutil.rmtree"), 1),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink", "shutil.copyfile", "shutil.copymode"), 2),
    **dict.fromkeys(("shutil.copystat", "shutil.copytree", "shutil.move", "shutil.unpack_archive"), 2),
    "shutil.make_archive": 1,
}
LEAVING_EVENTS = frozenset((
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn",
    "socket.connect", "sqlite3.connect", "ftplib.connect", "smtplib.connect", "urllib.Request",
))  # fmt: skip
FORKS = ("os.fork", "os.forkpty")
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# They read the device's state; loops that print it every few steps call them.
HARMLESS_PROGRAMS = frozenset(("nvidia-smi", "rocm-smi"))


def add_audit_hook(scope: Any, end: Callable[[str], None]) -> None:
    """From now on, what writes ends the process; in datasets and in threads beside the loop it fails."""

    def hook(event: str, args: Any) -> None:
        if event == "open":
            if not args[2] & WRITING_FLAGS or scope.is_harmless(args[0]):
                return
        elif event in PATH_EVENTS:
            if all(scope.is_harmless(path) for path in args[: PATH_EVENTS[event]]):
                return
        elif event in LEAVING_EVENTS:
            if event == "sqlite3.connect" and args[0] == ":memory:":
                return
            if scope.is_loading() or is_harmless_program(event, args):
                return
        else:
            return
        if not scope.applies():
            return
        target = str(args[0]) if args else ""
        scope.blocked(event, target)
        if scope.in_user_loop() and not scope.is_loading():
            end("another process was to be started" if event in FORKS else f"{event} {target}".rstrip())
        raise PermissionError(errno.EACCES, f"feedrate doctor: nothing may be written any more: {event}")

    sys.addaudithook(hook)


def is_harmless_program(event: str, args: Any) -> bool:
    """subprocess.Popen, and what it calls underneath, of a program that only shows the device's state."""
    if event not in ("subprocess.Popen", "os.posix_spawn"):
        return False
    words = args[1] if isinstance(args[1], (list, tuple)) and args[1] else str(args[1]).split()
    return bool(words) and os.path.basename(os.fsdecode(words[0])) in HARMLESS_PROGRAMS


# Landlock (linux/landlock.h). The numbers of the calls are the same on all machines but old alpha.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_REG = 1 << 1, 1 << 4, 1 << 5, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14  # of version 2 and 3
PATH_BENEATH = struct.Struct("=Qi")  # allowed access, folder
PR_SET_NO_NEW_PRIVS = 38


def put_up_landlock(allowed_folders: list[str]) -> None:
    """Let this thread, and its children, write and remove files in these folders only, where Linux can do so.

    Making folders and sockets stays allowed: they hold nothing. Nobody can take the restriction back.
    """
    if sys.platform != "linux" or platform.machine() == "alpha":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return
    access = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_REG
    access |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", access)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return
    try:
        for folder in allowed_folders:
            if not os.path.isdir(folder):
                continue
            descriptor = os.open(folder, getattr(os, "O_PATH", 0o10000000) | os.O_CLOEXEC)
            try:
                rule = PATH_BENEATH.pack(access, descriptor)
                if libc.syscall(ADD_RULE, ruleset, 1, rule, ctypes.c_uint32(0)) != 0:
                    return
            finally:
                os.close(descriptor)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def writable_files(scope: Any) -> list[tuple[int, str]]:
    """Descriptors that can write to a file which will still be there tomorrow."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            path = os.readlink(f"/proc/self/fd/{name}")
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        can_write = flags & os.O_ACCMODE != os.O_RDONLY and not flags & getattr(os, "O_PATH", 0)
        if is_regular and can_write and not path.endswith(" (deleted)") and not scope.is_harmless(path):
            found.append((descriptor, path))
    return found


def has_magic(descriptor: int, magic: bytes) -> bool:
    try:
        # Opened anew: the descriptor may be for writing only, and its position is the user's.
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False
