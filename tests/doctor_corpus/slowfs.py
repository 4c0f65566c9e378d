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
import os
import stat
import struct
import threading
import time
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
            return struct.pack("<QII", 0, 0, 0)
        if opcode == READ:
            return self.read(*struct.unpack_from("<QQI", body))
        if opcode == READDIR:
            _, offset, size_bytes = struct.unpack_from("<QQI", body)
            time.sleep(self.slowness.meta_s)
            return self.list(self.paths[node], offset, size_bytes)
        if opcode == RELEASE:
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if opcode == STATFS:
            return struct.pack("<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0)
        if opcode in (FLUSH, RELEASEDIR, ACCESS, DESTROY):
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

    def list(self, path: str, offset: int, size_bytes: int) -> bytes:
        names = [".", "..", *sorted(os.listdir(path))]
        answer = b""
        for number, name in enumerate(names[offset:], offset + 1):
            encoded = os.fsencode(name)
            kind = stat.S_IFMT(os.lstat(os.path.join(path, name)).st_mode) >> 12
            entry = struct.pack("<QQII", number + 1, number, len(encoded), kind) + encoded
            entry += b"\0" * (-len(entry) % 8)
            if len(answer) + len(entry) > size_bytes:
                break
            answer += entry
        return answer


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
