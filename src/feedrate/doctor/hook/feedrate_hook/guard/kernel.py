# SPDX-License-Identifier: Apache-2.0
"""The last two lines of the guard, for what gets past the replaced functions.

An audit hook and, where the kernel has it, Landlock, which also holds writers that are not Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

# Events that write, remove, start or send something; the number of arguments that are paths.
PATH_EVENTS = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.mkdir": 1,
    "shutil.copyfile": 2,
    "shutil.copymode": 2,
    "shutil.copystat": 2,
    "shutil.copytree": 2,
    "shutil.move": 2,
    "shutil.rmtree": 1,
    "shutil.make_archive": 1,
    "shutil.unpack_archive": 2,
}
LEAVING_EVENTS = frozenset(
    (
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
        "socket.connect",
        "sqlite3.connect",
        "ftplib.connect",
        "smtplib.connect",
        "urllib.Request",
    )
)
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


def put_up_landlock(allowed_folders: list[str]) -> bool:
    """Let this thread, and what it starts, write and remove files in these folders only. False: not possible.

    Making folders and sockets stays allowed: they hold nothing. Nobody can take the restriction back.
    """
    if sys.platform != "linux" or platform.machine() == "alpha":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    access = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_REG
    access |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", access)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        for folder in allowed_folders:
            if not os.path.isdir(folder):
                continue
            descriptor = os.open(folder, getattr(os, "O_PATH", 0o10000000) | os.O_CLOEXEC)
            try:
                rule = PATH_BENEATH.pack(access, descriptor)
                if libc.syscall(ADD_RULE, ruleset, 1, rule, ctypes.c_uint32(0)) != 0:
                    return False
            finally:
                os.close(descriptor)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)
