# SPDX-License-Identifier: Apache-2.0
"""The file system and the disk under a path, their room and speed, and where there is scratch."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.machine.results import MEMORY_KINDS, ScratchRate, Storage

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
    # On tmpfs and the like the pages stay: reading them says nothing of a disk.
    os.lseek(descriptor, 0, os.SEEK_SET)
    buffer = bytearray(_BLOCK_BYTES)
    began, back = time.perf_counter(), 0
    while (got := os.readv(descriptor, [buffer])) > 0 and time.perf_counter() - began < seconds:
        back += got
    read_s = time.perf_counter() - began
    return ScratchRate(written, written / write_s, back / read_s if back else None)


_KEEP_SIZE = 1


@dataclass(frozen=True, slots=True)
class Room:
    """Room for this user on the file system of a folder; `free_files`: None: it has no such limit."""

    free_bytes: int
    free_files: int | None


def measure_room(folder: str | os.PathLike[str]) -> Room:
    """Ask the file system.

    Raises:
        OSError: the folder is not there, or may not be looked at.
    """
    stats = os.statvfs(folder)
    return Room(stats.f_bavail * stats.f_frsize, stats.f_favail if stats.f_files else None)


def try_to_reserve(folder: str | os.PathLike[str], size_bytes: int) -> OSError | None:
    """Reserve room for a moment, and return why that fails; None: it does not, or cannot be tried.

    Free room is not always this user's: quotas, of users, groups and projects alike, show only so. The
    file has no name, so that nothing is left behind however this ends. Not for file systems in memory.
    """
    try:
        reserve = ctypes.CDLL(None, use_errno=True).fallocate64
    except (AttributeError, OSError, TypeError):
        return None
    reserve.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        # Never by way of posix_fallocate, which writes zeros where a file system cannot reserve.
        if reserve(file.fileno(), _KEEP_SIZE, 0, max(size_bytes, 1)) == 0:
            return None
        number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_NETWORK = {
    "nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "ceph", "gpfs", "beegfs", "afs", "9p", "glusterfs",
    "panfs", "pvfs2", "orangefs", "wekafs", "gfs2", "ocfs2", "fhgfs", "dvs", "vast",
}  # fmt: skip
# FUSE serves remote stores far more often than local ones; these are the local ones.
_LOCAL_FUSE = {
    "fuseblk", "fuse.ntfs-3g", "fuse.exfat", "fuse.squashfuse", "fuse.squashfuse_ll", "fuse.fuse-overlayfs",
    "fuse.unionfs", "fuse.mergerfs", "fuse.encfs", "fuse.gocryptfs", "fuse.bindfs", "fuse.lxcfs",
    "fuse.archivemount", "fuse.ratarmount", "fuse.portal",
}  # fmt: skip
_VIRTUAL_DISK = re.compile(r"^(vd|xvd)[a-z]+")
# Variables of schedulers and sites for a job's or a node's own disk; FEEDRATE_SCRATCH is for administrators.
_SCRATCH_NAMES = (
    "FEEDRATE_SCRATCH", "SLURM_TMPDIR", "SLURM_JOB_TMP", "SLURM_JOB_TMPDIR", "SCRATCH_LOCAL", "LOCAL_SCRATCH",
    "LOCALSCRATCH", "L_SCRATCH", "PBS_JOBFS", "TMPDIR",
)  # fmt: skip
_SCRATCH = (
    "/scr", "/scratch", "/local_scratch", "/localscratch", "/local/scratch", "/local", "/mnt/scratch",
    "/mnt/local", "/ssd", "/nvme",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `device`: "MAJOR:MINOR"."""

    mount_point: str
    kind: str
    source: str
    device: str


def describe_storage(
    path: str | os.PathLike[str],
    mountinfo: Path = Path("/proc/self/mountinfo"),
    sys_block: Path = Path("/sys/dev/block"),
) -> Storage:
    """Describe the storage under a path; a path that is not there counts as its nearest folder that is."""
    real = os.path.realpath(path)
    try:
        mount = find_mount(real, parse_mountinfo(mountinfo.read_text(errors="surrogateescape")))
    except OSError:
        mount = None
    if mount is None:
        return Storage(os.fspath(path), "", "unknown", "", False, False, False, None, None)
    is_fuse = mount.kind.startswith("fuse")
    disk = None if mount.kind in MEMORY_KINDS else find_disk(_device_number(real, mount), sys_block)
    return Storage(
        path=os.fspath(path),
        mount_point=mount.mount_point,
        kind=mount.kind,
        source=mount.source,
        is_network=is_network(mount.kind),
        is_fuse=is_fuse,
        is_memory=mount.kind in MEMORY_KINDS,
        rotational=None if disk is None else read_rotational(disk),
        device=None if disk is None else disk.name,
        is_virtual_disk=disk is not None and _VIRTUAL_DISK.match(disk.name) is not None,
    )


def is_network(kind: str) -> bool:
    """Return whether a file system's data comes over the network, as far as its name tells."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts in the order in which they were made; lines that make no sense are left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if separator and len(before) >= 5 and len(after) >= 2:
            mounts.append(Mount(_unescape(before[4]), after[0], _unescape(after[1]), before[2]))
    return mounts


def find_mount(real_path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path without links is on: the deepest, and of those the one made last."""
    points = [(mount.mount_point.rstrip("/"), mount) for mount in reversed(mounts)]
    above = [(len(point), mount) for point, mount in points if f"{real_path}/".startswith(f"{point}/")]
    return max(above, key=lambda one: one[0], default=(0, None))[1]


def _unescape(text: str) -> str:
    # Blanks and backslashes are written as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _device_number(path: str, mount: Mount) -> str:
    # btrfs and overlay give files other numbers than mountinfo shows; only one of the two leads to a disk.
    if not mount.device.startswith("0:"):
        return mount.device
    try:
        device = os.stat(path).st_dev
        device = device if os.major(device) else os.stat(mount.source).st_rdev
    except (OSError, ValueError):
        return mount.device
    return f"{os.major(device)}:{os.minor(device)}"


def find_disk(device: str, sys_block: Path = Path("/sys/dev/block")) -> Path | None:
    """Return the folder in /sys of the disk under "MAJOR:MINOR": below partitions and device-mapper."""
    try:
        folder = (sys_block / device).resolve(strict=True)
    except OSError:
        return None
    if (folder / "partition").exists():
        folder = folder.parent
    # A logical volume: all its disks count, and one of them answers (mixed ones are rare).
    below = sorted((folder / "slaves").glob("*"))
    if below:
        inner = below[0].resolve()
        return inner.parent if (inner / "partition").exists() else inner
    return folder if (folder / "queue").is_dir() else None


def read_rotational(disk: Path) -> bool | None:
    if _VIRTUAL_DISK.match(disk.name):
        return None
    try:
        text = (disk / "queue" / "rotational").read_text().strip()
    except OSError:
        return None
    return {"0": False, "1": True}.get(text)


def list_scratch(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """Yield folders that may be scratch, and the source: the scheduler or the site first, then custom."""
    for name in _SCRATCH_NAMES:
        folder = environ.get(name)
        # Plain /tmp, as most systems set it, is not scratch: it is often small, or memory.
        is_default = name == "TMPDIR" and os.path.normpath(folder or "") in ("/tmp", "/var/tmp")
        if folder and not is_default:
            yield folder, f"${name}"
    user = environ.get("USER", "")
    for folder in (*(f"{root}/{user}" for root in _SCRATCH if user), *_SCRATCH):
        yield folder, "a usual place for scratch"


def find_scratch(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return a folder on a local disk where the user may put data for a while; None: none found."""
    return next((Path(folder) for folder, _ in list_scratch(environ) if is_scratch(folder)), None)


def is_scratch(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder can be written to and is on a disk of this node."""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    storage = describe_storage(folder)
    if storage.is_network or storage.is_memory or storage.kind == "unknown":
        return False
    try:
        # A read-only mount passes os.access for root.
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
