# SPDX-License-Identifier: Apache-2.0
"""A file system that shows a folder as a slow server would: read-only, every request late, bytes at a rate.

Speaks the kernel's FUSE protocol itself, so that nothing has to be installed; needs root and /dev/fuse.
What a file's pages hold is forgotten when it is opened again, as on a network file system without a lease:
every epoch is read from the server, unless pages stay, as those of files do which a server knows to be
unchanged. Of files that are larger than what the page cache may keep, no page is kept at all, as of data that
is much larger than a job's memory: every read is one of the server.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4

# linux/fuse.h, protocol 7.31.
LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT = 25, 26, 27, 28, 29, 34, 36
DESTROY, BATCH_FORGET = 38, 42
IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
SILENT = (FORGET, BATCH_FORGET, INTERRUPT)
ASYNC_READ, PARALLEL_DIROPS = 1, 1 << 18
DIRECT_IO, KEEP_CACHE = 1, 2
BUFFER_BYTES = 1 << 20
KEPT_S = 3  # names and attributes are believed for so long, as NFS does


@dataclass(frozen=True)
class Slowness:
    """How late an answer is, in seconds: to names and opens, to reads; and bytes per second of all.

    `kept_bytes`: of larger files no page stays in the page cache. `pages_stay`: of others they do, also when
    the file is opened again.
    """

    meta_s: float
    read_s: float
    bytes_per_s: float
    kept_bytes: float = float("inf")
    pages_stay: bool = False


class SlowFolder:
    """Answers requests for the files below `source`."""

    def __init__(self, source: Path, slowness: Slowness) -> None:
        self.slowness = slowness
        self.paths = {1: str(source)}
        self.nodes = {str(source): 1}
        self.lock = threading.Lock()
        self.line_free_at = 0.0
        self.bytes_read = 0
        self.listings: dict[int, tuple[list[tuple[str, int]], Iterator[os.DirEntry[str]]]] = {}
        self.opened_folders = 0

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """Return the answer's body; raise OSError to answer with its errno."""
        if opcode == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 131072, ASYNC_READ | PARALLEL_DIROPS, 64, 48, 65536,
                               1, 32, 0, 0)  # fmt: skip
        if opcode == LOOKUP:
            time.sleep(self.slowness.meta_s)
            return self.look_up(os.path.join(self.paths[node], os.fsdecode(body.rstrip(b"\0"))))
        if opcode == GETATTR:
            time.sleep(self.slowness.meta_s)
            return struct.pack("<QII", KEPT_S, 0, 0) + self.attributes(self.paths[node])
        if opcode == OPEN:
            time.sleep(self.slowness.meta_s)
            file = os.open(self.paths[node], os.O_RDONLY)
            is_kept = os.fstat(file).st_size <= self.slowness.kept_bytes
            flags = (KEEP_CACHE if self.slowness.pages_stay else 0) if is_kept else DIRECT_IO
            return struct.pack("<QII", file, flags, 0)
        if opcode == OPENDIR:
            return struct.pack("<QII", self.open_folder(self.paths[node]), 0, 0)
        if opcode == READ:
            return self.read(*struct.unpack_from("<QQI", body))
        if opcode == READDIR:
            time.sleep(self.slowness.meta_s)
            return self.list(*struct.unpack_from("<QQI", body))
        if opcode == RELEASEDIR:
            self.listings.pop(struct.unpack_from("<Q", body)[0], None)
            return b""
        if opcode == RELEASE:
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if opcode == STATFS:
            return struct.pack("<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0)
        if opcode in (FLUSH, ACCESS, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not offered")

    def look_up(self, path: str) -> bytes:
        attributes = self.attributes(path)
        with self.lock:
            node = self.nodes.setdefault(path, len(self.nodes) + 1)
            self.paths[node] = path
        return struct.pack("<QQQQII", node, 0, KEPT_S, KEPT_S, 0, 0) + attributes

    def attributes(self, path: str) -> bytes:
        found = os.lstat(path)
        return ATTRIBUTES.pack(
            found.st_ino, found.st_size, found.st_blocks,
            int(found.st_atime), int(found.st_mtime), int(found.st_ctime), 0, 0, 0,
            found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def read(self, file: int, offset: int, size_bytes: int) -> bytes:
        data = os.pread(file, size_bytes, offset)
        now = time.monotonic()
        with self.lock:
            self.bytes_read += len(data)
            self.line_free_at = max(self.line_free_at, now) + len(data) / self.slowness.bytes_per_s
            ready_at = max(self.line_free_at, now + self.slowness.read_s)
        time.sleep(max(0.0, ready_at - time.monotonic()))
        return data

    def open_folder(self, path: str) -> int:
        """Return the number of a listing, which is made as it is read: a folder may hold a million files."""
        entries = os.scandir(path)
        with self.lock:
            self.opened_folders += 1
            self.listings[self.opened_folders] = [(".", 4), ("..", 4)], entries
            return self.opened_folders

    def list(self, folder: int, offset: int, size_bytes: int) -> bytes:
        names, coming = self.listings[folder]
        parts, left = [], size_bytes
        for number in itertools.count(offset):
            while number >= len(names) and (entry := next(coming, None)) is not None:
                names.append((entry.name, find_type(entry)))
            if number >= len(names):
                break
            name, kind = names[number]
            encoded = os.fsencode(name)
            part = struct.pack("<QQII", number + 2, number + 1, len(encoded), kind) + encoded
            part += b"\0" * (-len(part) % 8)
            left -= len(part)
            if left < 0:
                break
            parts.append(part)
        return b"".join(parts)


def find_type(entry: os.DirEntry[str]) -> int:
    """Return what a listing says of an entry, as the kernel numbers it."""
    if entry.is_symlink():
        return stat.S_IFLNK >> 12
    return (stat.S_IFDIR if entry.is_dir() else stat.S_IFREG) >> 12


def mount(source: Path, target: Path, slowness: Slowness, threads: int = 16) -> SlowFolder:
    """Mount and serve, in threads of this process; it ends with its namespace, or by umount."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV
    if LIBC.mount(b"slowfs", os.fsencode(target), b"fuse.slowfs", flags, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot mount a FUSE file system: {os.strerror(code)}")
    folder = SlowFolder(source, slowness)
    for _ in range(threads):
        threading.Thread(target=serve, args=(folder, device), daemon=True).start()
    return folder


def serve(folder: SlowFolder, device: int) -> None:
    while True:
        try:
            request = os.read(device, BUFFER_BYTES)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            return  # unmounted
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        try:
            body, code = folder.answer(opcode, node, request[IN_HEADER.size :]), 0
        except OSError as error:
            body, code = b"", -(error.errno or errno.EIO)
        if opcode in SILENT:
            continue
        try:
            os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(body), code, unique) + body)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the request was interrupted: nobody waits for the answer
                return
