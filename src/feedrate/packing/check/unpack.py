# SPDX-License-Identifier: Apache-2.0
"""`feedrate unpack`: pack -> the original files, bit for bit, under their original paths.

Files are written below one folder and nowhere else, whatever their paths say and whatever is there already:
every folder on the way is opened by name relative to the one above it, and never through a symbolic link, so
that a link which somebody plants between a check and a write leads nowhere.

A file is written under a temporary name, made durable with others, and then gets its own: a power cut
leaves whole files. While a pack is unpacked the folder holds a locked marker, `.unpacking-DIGEST`; one that
nobody holds tells the next run that its predecessor was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np

from feedrate import kernel
from feedrate.errors import AlreadyExists, FeedrateError, PackError, UsageError
from feedrate.files.atomic import (
    explain_write_error,
    is_temporary,
    sync_file_system,
    sync_files,
    sync_folder,
    temporary_name,
    writing,
)
from feedrate.files.lock import lock_fd
from feedrate.files.tree import remove_files
from feedrate.format.containers import FILES
from feedrate.format.fields import Coding, Field, Kind, restored_path
from feedrate.format.index import Part, parse_part
from feedrate.format.manifest import Shard, digest_manifest, file_path, plain_name, read_manifest
from feedrate.format.raw import dump_raw, npy_header, parse_stored
from feedrate.packing.recode import describe_pixels
from feedrate.packing.results import UnpackResult
from feedrate.packing.tables import find_tables
from feedrate.packing.workers import advance, run_tasks
from feedrate.progress import Tick
from feedrate.units import printable, shell_quote

_MOST_FOLDERS = 200
_LONGEST_PATH = 4096  # as Linux has it; no real file has a longer one
# Files that are made durable together: one sync of a file system costs as much as a few files' own.
_GROUP_FILES, _GROUP_BYTES = 1024, 256 << 20


def check_path(path: bytes) -> None:
    """Refuse a path that is not plainly below the folder it will be written to.

    Raises:
        PackError: it is absolute, goes up, or is no path at all.
    """
    if len(path) > _LONGEST_PATH:
        raise PackError(f"the pack holds a path of {len(path)} bytes: refused")
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise PackError(
            f"the pack holds the path '{printable(path)}', which leads out of the folder: refused"
        )


class _Unnamed(NamedTuple):
    """A whole file that waits for its name until it is durable."""

    folder_fd: int
    temporary: str
    name: bytes
    path: bytes
    device: int


class Tree:
    """The folder that is written to. Keeps the folders it has opened until it is closed.

    Args:
        label: the beginning of temporary names.
        repairs: an interrupted run wrote here: a file that holds nothing but bytes of the right one and zeros
            in the place of the others is replaced.

    Attributes:
        kept: how many files were there already.
    """

    def __init__(self, root: Path, label: str = "unpacking", *, repairs: bool = False) -> None:
        self.root, self.kept = root, 0
        self._label, self._repairs = label, repairs
        self._folders: dict[bytes, int] = {}
        self._unnamed: list[_Unnamed] = []
        self._unnamed_bytes = 0

    def __enter__(self) -> Tree:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._folders[b""] = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise explain_write_error(error, self.root) from error
        return self

    def __exit__(self, error: object, *_: object) -> None:
        try:
            if error is None:
                self._give_names()
        finally:
            for one in self._unnamed:
                with contextlib.suppress(OSError):
                    os.unlink(one.temporary, dir_fd=one.folder_fd)
            for fd in self._folders.values():
                os.close(fd)
            self._folders.clear()

    def write(self, path: bytes, data: bytes) -> None:
        """Write a file, which gets its name by the time that this tree is closed; one that is there is kept.

        Raises:
            PackError: the path leads out of the folder, or a symbolic link stands in the way.
            AlreadyExists: a file with other bytes, or a folder, has that name.
            StorageError: the disk said no.
        """
        check_path(path)
        folder, _, name = path.rpartition(b"/")
        with writing(self.root / os.fsdecode(path), len(data)):
            fd = self._open_folder(folder)
            if self._is_there(fd, name, path, data):
                self.kept += 1
                return
            self._create(fd, name, path, data)
        if len(self._unnamed) >= _GROUP_FILES or self._unnamed_bytes >= _GROUP_BYTES:
            self._give_names()

    def _give_names(self) -> None:
        """Make what was written since the last time durable, then give it its names."""
        devices: dict[int, list[Path]] = {}  # a folder on the way may be where another disk is mounted
        for one in self._unnamed:
            path = Path(f"/proc/self/fd/{one.folder_fd}/{one.temporary}")
            devices.setdefault(one.device, []).append(path)
        with writing(self.root / os.fsdecode(self._unnamed[0].path if self._unnamed else b"")):
            for paths in devices.values():
                sync_files(paths)
        while self._unnamed:
            one = self._unnamed[-1]
            with writing(self.root / os.fsdecode(one.path)):
                self._give_name(one)
            self._unnamed.pop()
        self._unnamed_bytes = 0

    def _open_folder(self, folder: bytes) -> int:
        if folder in self._folders:
            return self._folders[folder]
        above, _, name = folder.rpartition(b"/")
        parent = self._open_folder(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise PackError(
                    f"'{printable(folder)}' in {self.root} is a link or a file, not a folder: refused"
                ) from error
            raise
        if len(self._folders) >= _MOST_FOLDERS:
            self._give_names()
            for other in [f for f in self._folders if f and f != above]:
                os.close(self._folders.pop(other))
        self._folders[folder] = fd
        return fd

    def _is_there(self, folder_fd: int, name: bytes, path: bytes, data: bytes) -> bool:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PackError(f"'{printable(path)}' in {self.root} is a symbolic link: refused") from error
            raise
        try:
            info = os.fstat(fd)
            there = None
            if stat.S_ISREG(info.st_mode) and info.st_size <= len(data):
                with open(fd, "rb", closefd=False) as file:
                    there = file.read(len(data) + 1)
        finally:
            os.close(fd)
        if there == data:
            return True
        if self._repairs and there is not None and _is_remnant(there, data):
            os.unlink(name, dir_fd=folder_fd)
            return False
        raise AlreadyExists(
            f"'{printable(path)}' is already in {self.root}, with other bytes",
            hint="unpack into a new folder",
        )

    def _create(self, folder_fd: int, name: bytes, path: bytes, data: bytes) -> None:
        temporary = temporary_name(self._label)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o666, dir_fd=folder_fd), "wb") as file:
                file.write(data)
                device = os.fstat(file.fileno()).st_dev
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder_fd)
            raise
        self._unnamed.append(_Unnamed(folder_fd, temporary, name, path, device))
        self._unnamed_bytes += len(data)

    def _give_name(self, one: _Unnamed) -> None:
        folders = {"src_dir_fd": one.folder_fd, "dst_dir_fd": one.folder_fd}
        try:
            # A link, not a rename: it fails when somebody made a file of this name in the meantime.
            os.link(one.temporary, one.name, **folders, follow_symlinks=False)
        except FileExistsError:
            with open(f"/proc/self/fd/{one.folder_fd}/{one.temporary}", "rb") as file:
                self.kept += self._is_there(one.folder_fd, one.name, one.path, file.read())
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                raise
            os.rename(one.temporary, one.name, **folders)
            return
        os.unlink(one.temporary, dir_fd=one.folder_fd)


def _is_remnant(there: bytes, data: bytes) -> bool:
    """Return whether a file is what a power cut leaves of another: none of its bytes is anybody else's."""
    found = np.frombuffer(there, np.uint8)
    return bool(np.all((found == 0) | (found == np.frombuffer(data, np.uint8, len(there)))))


@contextlib.contextmanager
def _marked(target: Path, label: str) -> Iterator[bool]:
    """Hold the marker of a run in its folder; yields whether a run of the same pack was killed there.

    Raises:
        AlreadyExists: another process unpacks the same pack into the same folder.
        StorageError: the disk said no.
    """
    marker = target / f".{label}"
    is_new_folder = not target.exists()
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    with writing(marker):
        fd = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        was_killed = _take_marker(fd, target)
    except BaseException:
        os.close(fd)
        raise
    try:
        with writing(marker):
            os.pwrite(fd, b"a killed 'feedrate unpack' left this; the same command goes on\n", 0)
            os.fsync(fd)
            sync_folder(target)
        if was_killed:
            _remove_temporaries(target, label)
        yield was_killed
        with writing(target / "."):
            sync_file_system(target)
        was_killed = False
    except BaseException:
        if not was_killed:
            # Workers that died have left files that nobody will name.
            _remove_temporaries(target, label)
        raise
    finally:
        if not was_killed:
            with contextlib.suppress(OSError):
                marker.unlink()
        os.close(fd)
        if is_new_folder:
            with contextlib.suppress(OSError):
                target.rmdir()  # nothing was written


def _take_marker(fd: int, target: Path) -> bool:
    """Lock an opened marker; return whether a run that was killed left it."""
    try:
        is_free = lock_fd(fd, wait=False)
    except OSError:
        return False  # no locks here: nobody can tell a killed run from a living one
    if not is_free:
        raise AlreadyExists(
            f"another 'feedrate unpack' is writing to {target} right now",
            hint="wait for it, or unpack into another folder",
        )
    return os.fstat(fd).st_size > 0


def _remove_temporaries(target: Path, label: str) -> None:
    remove_files(target, lambda name: name.startswith(f".{label}.") and is_temporary(name))


@dataclass(frozen=True, slots=True)
class ShardUnpack:
    pack: str
    target: str
    shard: Shard
    fields: tuple[Field, ...]
    label: str
    repairs: bool

    def tree(self) -> Tree:
        return Tree(Path(self.target), self.label, repairs=self.repairs)


@dataclass(frozen=True, slots=True)
class Written:
    files: int = 0
    kept: int = 0
    size_bytes: int = 0


def unpack(
    pack: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    workers: int | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
) -> UnpackResult:
    """Restore the files of a pack in `target`. Files that are already there with the same bytes are kept.

    Raises:
        NotFound: there is no pack.
        PackError: a checksum fails, or the pack names a path outside of `target`.
        AlreadyExists: a file is there with other bytes; nothing is overwritten.
        StorageError: the disk is full or failed.
    """
    begin = time.monotonic()
    manifest = read_manifest(pack)
    loose = next((s for s in manifest.shards if s.container == FILES), None)
    if loose is not None:
        where = os.path.normpath(Path(pack) / loose.folder / loose.name)
        raise UsageError(f"{pack} is an index of the files in {where}: they are not packed")
    for shard in manifest.shards:
        file_path(pack, shard)  # refuses what is not on this machine
    inner, outer = os.path.realpath(target), os.path.realpath(pack)
    if os.path.commonpath([inner, outer]) == outer:
        raise UsageError(f"{target} lies inside the pack", hint="name a folder outside of it")
    if os.path.exists(inner) and not os.path.isdir(inner):
        raise AlreadyExists(f"{target} is a file", hint="name a folder to unpack into, new or there already")
    total_bytes = manifest.shard_bytes

    def report(samples: int, size_bytes: int) -> None:
        watch(Tick("unpacking", samples, manifest.samples, size_bytes, total_bytes))

    report(0, 0)
    label = f"unpacking-{digest_manifest(manifest)[:12]}"
    with _marked(Path(inner), label) as repairs:
        tasks = [ShardUnpack(outer, inner, s, manifest.fields, label, repairs) for s in manifest.shards]
        with Tree(Path(inner), label, repairs=repairs) as tree:
            tables = [_unpack_table(Path(pack), tree, table) for table in find_tables(manifest)]
        written = [Written(len(tables), tree.kept, sum(tables))]
        written += run_tasks(unpack_shard, tasks, workers=workers, size_bytes=total_bytes, watch=report)
    return UnpackResult(
        pack=str(pack),
        target=str(target),
        files=sum(w.files for w in written),
        kept=sum(w.kept for w in written),
        size_bytes=sum(w.size_bytes for w in written),
        seconds=time.monotonic() - begin,
        pixels=describe_pixels(manifest.settings),
        is_mapped="map" in manifest.settings,
    )


def unpack_shard(task: ShardUnpack) -> Written:
    """Restore the files of one shard; picklable, for any executor."""
    folder = Path(task.pack)
    try:
        index = task.shard.index
        data = file_path(folder, index).read_bytes()
        # Original paths stand in the index alone: a changed byte there would give a file another name.
        if kernel.crc32c(data) != index.crc32c:
            raise PackError(f"{index.name} is damaged: checksum", hint=_verify_hint(task.pack))
        part = parse_part(data, task.fields, name=index.name)
        for field in task.fields:
            for path in filter(None, part.variable.get(f"{field.name}.path", ())):
                check_path(path)
        with open(file_path(folder, task.shard), "rb") as shard, task.tree() as tree:
            written = _restore_samples(task, part, shard.fileno(), tree)
        return replace(written, kept=tree.kept)
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise PackError(
            f"cannot read {task.shard.name}: {error.strerror}", hint=_verify_hint(task.pack)
        ) from error


def _restore_samples(task: ShardUnpack, part: Part, fd: int, tree: Tree) -> Written:
    files = size_bytes = 0
    prefix = f"{task.shard.prefix}/".encode() if task.shard.prefix else b""
    size_on_disk = os.fstat(fd).st_size
    fields = [f for f in task.fields if f"{f.name}.path" in part.variable]
    for number, row in enumerate(part.rows):
        sample_bytes = 0
        for field in fields:
            name = field.name
            path = part.variable[f"{name}.path"][number]
            if not path:
                continue  # a value from the table, which comes back as a whole
            path = prefix + path
            offset, length = int(row[f"{name}.offset"]), int(row[f"{name}.length"])
            if length < 0 or not 0 <= offset <= size_on_disk - length:
                raise PackError(
                    f"'{printable(path)}' has no place in {task.shard.name}", hint=_verify_hint(task.pack)
                )
            data = kernel.read_at(fd, length, offset)
            if len(data) != length or kernel.crc32c(data) != row[f"{name}.crc32c"]:
                raise PackError(
                    f"'{printable(path)}' is damaged in {task.shard.name} at byte {offset}: checksum",
                    hint=_verify_hint(task.pack),
                )
            data = _restore_file(field, data, part, number)
            tree.write(restored_path(field, path, data), data)
            files, sample_bytes = files + 1, sample_bytes + length
        size_bytes += sample_bytes
        advance(1, sample_bytes)
    return Written(files, size_bytes=size_bytes)


def _restore_file(field: Field, data: bytes, part: Part, number: int) -> bytes:
    """Return a file as it was packed: an array that was stored without its header gets it back."""
    if field.coding is not Coding.RAW:
        return data
    if field.kind is Kind.ARRAY:
        return npy_header(np.dtype(field.dtype).str, field.shape or ()) + data
    return dump_raw(parse_stored(data, part.variable[f"{field.name}.entries"][number]))


def _unpack_table(pack: Path, tree: Tree, table: Mapping[str, Any]) -> int:
    try:
        path, data = unquote_to_bytes(table["path"]), _read_table(pack, table)
    except (TypeError, KeyError, AttributeError, OSError, ValueError) as error:
        raise PackError(
            f"the pack's table of labels cannot be restored: {error}", hint=_verify_hint(str(pack))
        ) from error
    tree.write(path, data)
    return len(data)


def _read_table(pack: Path, table: Mapping[str, Any]) -> bytes:
    with open(os.open(pack / plain_name(table["name"]), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        data = file.read()
    if f"{kernel.crc32c(data):08x}" != table["crc32c"]:
        raise ValueError("checksum")
    return data


def _verify_hint(pack: str) -> str:
    return f"feedrate verify {shell_quote(pack)}"
