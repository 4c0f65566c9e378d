# SPDX-License-Identifier: Apache-2.0
"""Which folder of this node is scratch, is there room, and where in it are a user's copies?

They are in SCRATCH/feedrate-UID, directly in scratch: in a folder between the two, its owner could put
something else in the place of others' copies. It is opened once and looked at by its descriptor, and what is
below it is reached by that descriptor: whoever can rename folders above it changes nothing of what is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import FeedrateError, NotFound, StorageError, suggest_path
from feedrate.files.atomic import say_reason, writing
from feedrate.files.lock import Gone
from feedrate.files.permissions import open_trusted
from feedrate.machine.disk import describe_storage, is_scratch, list_scratch, measure_room, try_to_reserve
from feedrate.machine.memory import MemoryGauge
from feedrate.units import format_bytes, format_count

_NAME = re.compile(r"feedrate-([0-9]+)")


def user_folder(uid: int | None = None) -> str:
    """Return the name that the folder of a user's copies has on any scratch; None: this user's."""
    return f"feedrate-{os.getuid() if uid is None else uid}"


def owner_of(folder: Path) -> int | None:
    """Return whose copies a folder is for, by its name; None: it is for no copies."""
    match = _NAME.fullmatch(folder.name)
    return None if match is None else int(match[1])


def list_user_folders(scratch: Path) -> Iterator[Path]:
    """Yield the folders on scratch that hold copies, of all users."""
    yield from (folder for folder in list_folders(scratch) if owner_of(folder) is not None)


def make_user_folder(scratch: Path, *, is_public: bool) -> int:
    """Return a descriptor of this user's folder, made if need be; private, until a copy in it is public.

    Raises:
        StorageError: it cannot be made, or the name is taken by another user.
    """
    folder = scratch / user_folder()
    with writing(folder), contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        fd = open_trusted(folder)
    except Gone:
        raise StorageError(f"{folder} was deleted just when it was made", hint="try again") from None
    try:
        with writing(folder):
            if is_public and stat.S_IMODE(os.fstat(fd).st_mode) & 0o055 != 0o055:
                os.fchmod(fd, 0o755)
    except BaseException:
        os.close(fd)
        raise
    return fd


def list_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted; none where it cannot be listed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names if (folder / name).is_dir())


# Left free: a disk that is filled to the brim is slow, and another user's.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder on a disk of this node.

    Attributes:
        why: who says so: "$SLURM_TMPDIR", "you named it".
        kind: of its file system: "ext4", "xfs", "tmpfs".
    """

    path: Path
    why: str
    kind: str = ""
    is_memory: bool = False


def find_scratch(
    wish: str | os.PathLike[str] | None = None,
    *,
    allow_network: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Scratch:
    """Return the scratch folder that was wished for, or, for None and "auto", the best of this node.

    Args:
        allow_network: take also a file system that other machines serve.

    Raises:
        NotFound: there is none, or nothing of that name.
        StorageError: it cannot be written to, or is not a disk of this node.
    """
    if wish is not None and os.fspath(wish) != "auto":
        return _check_wish(Path(wish), allow_network=allow_network)
    tried = []
    for folder, why in list_scratch(environ):
        if is_scratch(folder):
            storage = describe_storage(folder)
            return Scratch(Path(os.path.realpath(folder)), why, storage.kind)
        if os.path.isdir(folder):
            tried.append(f"{folder} {_say_unfit(folder)}")
        elif why.startswith("$"):
            tried.append(f"{why} names {folder}, which is not there")
    found = f"; {'; '.join(tried)}" if tried else ""
    raise NotFound(
        "no scratch disk found on this node: neither $SLURM_TMPDIR and its like nor /scr, /scratch, /local"
        + found,
        hint="name a folder on a local disk that you may write to: --scratch DIR",
    )


def _check_wish(folder: Path, *, allow_network: bool) -> Scratch:
    if not folder.exists():
        if not folder.parent.is_dir():
            raise NotFound(f"no scratch folder at {folder}", hint=suggest_path(folder))
        try:
            folder.mkdir()
        except OSError as error:
            raise StorageError(f"cannot make the scratch folder {folder}: {error.strerror}") from error
    if not folder.is_dir():
        raise StorageError(
            f"{folder} is a file; scratch must be a folder", hint="name another: --scratch DIR"
        )
    storage = describe_storage(folder)
    if storage.is_network and not allow_network:
        raise StorageError(
            f"{folder} lies on {storage.kind}, which another machine serves: a copy there is no nearer",
            hint="name a local disk: --scratch DIR; or insist: --allow-network",
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(
            f"cannot write to the scratch folder {folder}: {say_reason(error, folder)}",
            hint="name another one: --scratch DIR",
        ) from error
    return Scratch(Path(os.path.realpath(folder)), "you named it", storage.kind, storage.is_memory)


def _say_unfit(folder: str) -> str:
    storage = describe_storage(folder)
    if storage.is_network:
        return f"is {storage.kind}, which another machine serves"
    if storage.is_memory:
        return f"is memory ({storage.kind})"
    return "cannot be written to"


def check_room(scratch: Scratch, size_bytes: int, files: int) -> None:
    """Refuse what will not fit: bytes, files, quota, and where scratch is memory, the job's memory.

    Raises:
        StorageError: it does not fit; says what is missing.
    """
    path = scratch.path
    try:
        room = measure_room(path)
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}") from error
    # On a small disk, what is left over would be the larger part of it.
    spare = min(_SPARE_BYTES, room.free_bytes // 50)
    needed = f"the copy needs {format_bytes(size_bytes)} on {path}"
    if size_bytes > room.free_bytes - spare:
        raise _no_room(f"{needed}, which has {format_bytes(room.free_bytes)} free")
    if room.free_files is not None and files > room.free_files:
        raise _no_room(
            f"the copy needs {format_count(files, 'file')} on {path}, which takes {room.free_files:,} more",
            hint="pack them into a few: feedrate pack SOURCE PACK; then stage that",
        )
    if scratch.is_memory:
        memory = MemoryGauge().measure()
        limit, free = format_bytes(memory.limit_bytes), format_bytes(memory.free_bytes)
        if size_bytes > memory.limit_bytes // 2:
            raise _no_room(f"{needed}, which is memory, and this job may use {limit} in all")
        if size_bytes > memory.free_bytes - spare:
            raise _no_room(
                f"{needed}, which is memory, and of the {limit} that this job may use {free} are free"
            )
        return
    try:
        refusal = try_to_reserve(path, size_bytes)
    except OSError as error:
        raise StorageError(f"cannot write to {path}: {error.strerror}") from error
    if refusal is not None and refusal.errno == errno.EDQUOT:
        raise _no_room(f"{needed}, and your quota there does not allow it")
    if refusal is not None and refusal.errno == errno.ENOSPC:
        raise _no_room(f"{needed}, and so much cannot be had there")


def _no_room(message: str, hint: str = "") -> FeedrateError:
    make_room = "make room (feedrate scratch ls, feedrate scratch gc), or name another folder: --scratch DIR"
    return StorageError(message, hint=hint or make_room)
