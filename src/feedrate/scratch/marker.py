# SPDX-License-Identifier: Apache-2.0
"""What says that a folder on scratch is a copy of ours, of what, and who uses it: copy.json, and leases.

A copy is in use as long as some process holds a lease. A lease is a file that its process holds locked: it
lives while the lock is held, whatever the clock says, and ends however the process ends. A lease is added,
and a copy is deleted, only under the copy's gate.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from feedrate import documents
from feedrate.documents import Stored
from feedrate.errors import StorageError
from feedrate.files.atomic import explain_write_error, writing
from feedrate.files.lock import LOOK, is_locked, lock_fd
from feedrate.files.permissions import user_name
from feedrate.machine.describe import find_node
from feedrate.remote.addresses import Place
from feedrate.scratch.results import LeaseInfo
from feedrate.units import shell_quote

FORMAT = "feedrate-copy"
VERSION = 1

Kind = Literal["pack", "files"]
# The last entry: of all bytes before it. Markers of earlier versions have none.
_CHECK = re.compile(rb',"check":"([0-9a-f]{8})"}\n')


class BadMarker(StorageError):
    """A copy.json that says nothing of use. `is_damaged`: False: it is whole, and of another version."""

    is_damaged = True


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a copy.

    Attributes:
        name: where it is under data/.
        size_bytes, crc32c: of the copy's file; the checksum: None: not known before it was read.
        mtime_ns: the source file's time of change; 0: the source does not tell.
        origin: where it is under the source, if not under the same name ("../other/shard-00000.tar"); "":
            nowhere: it was made for the copy.
    """

    name: str
    size_bytes: int
    crc32c: int | None = None
    mtime_ns: int = 0
    origin: str | None = None

    @property
    def source_name(self) -> str:
        """Return where it is under the source; "": nowhere."""
        return self.name if self.origin is None else self.origin


def check_name(name: object) -> str:
    """Refuse a name that could reach out of the copy's folder, or be taken for a file on its way."""
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise ValueError(f"{name!r} is not the name of a file")
    return str(name)


def _digest(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"{text!r} is not a digest")
    return text


def _dump_file(file: CopiedFile) -> list[Any]:
    """Return a list, not a mapping: a folder may have a million files."""
    crc32c = None if file.crc32c is None else f"{file.crc32c:08x}"
    whole = [file.name, file.size_bytes, crc32c, file.mtime_ns]
    return whole if file.origin is None else [*whole, file.origin]


def _load_file(document: Sequence[Any]) -> CopiedFile:
    name, size_bytes, crc32c, mtime_ns, *origin = document
    for number in (size_bytes, mtime_ns):
        if not isinstance(number, int) or isinstance(number, bool) or not -(2**63) <= number < 2**63:
            raise ValueError(f"{number!r} is not a whole number")
    if size_bytes < 0 or (origin and not isinstance(origin[0], str)):
        raise ValueError(f"{document!r} is not a file")
    return CopiedFile(
        name=check_name(name),
        size_bytes=size_bytes,
        crc32c=None if crc32c is None else int(crc32c, 16),
        mtime_ns=mtime_ns,
        origin=origin[0] if origin else None,
    )


_Digest = Annotated[str, Stored(_digest)]
_Files = Annotated[
    tuple[CopiedFile, ...],
    Stored(lambda files: tuple(map(_load_file, files)), dump=lambda files: [*map(_dump_file, files)]),
]
_Entry = Annotated[str, Stored(lambda name: check_name(name) if name else "")]


@dataclass(frozen=True, slots=True)
class Marker:
    """What copy.json says.

    Attributes:
        source: the folder or URL that `source_name` of files is relative to; a path is without links.
        digest: of the address and what it holds: 64 hexadecimal digits.
        entry: "": all of the source; else the name of the one file of it that was asked for.
        is_public: everybody may read the source, so everybody may read the copy.
        keep_s: how long it stays when nobody uses it; None: until it is deleted.
        made_by: user, uid, node, job, command; for people.
    """

    kind: Kind
    source: str
    digest: _Digest
    files: _Files
    entry: _Entry = ""
    is_public: bool = False
    keep_s: float | None = None
    created: float = 0.0
    made_by: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def address(self) -> str:
        """Return what was asked for, as the user would call it."""
        return Place(self.source).address(os.fsencode(self.entry))

    @property
    def folder_name(self) -> str:
        """Return NAME-DIGEST12: the source's last part, made harmless, so that people know it again."""
        last = self.entry or self.source.split("::")[0].rstrip("/").rpartition("/")[2]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", last).lstrip(".-")[:80]
        return f"{plain or 'data'}-{self.digest[:12]}"


def dump_marker(marker: Marker) -> bytes:
    document = documents.dump(marker)
    files = document.pop("files")
    document = {"format": FORMAT, "version": VERSION, **document, "bytes": marker.size_bytes, "files": files}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()[:-1]
    return text + b',"check":"%08x"}\n' % zlib.crc32(text)


def load_marker(text: bytes) -> Marker:
    """Parse copy.json.

    Raises:
        BadMarker: it is damaged, or of another version.
    """
    check = _CHECK.search(text, max(len(text) - 32, 0))
    if check is not None and (
        check.end() != len(text) or int(check[1], 16) != zlib.crc32(text[: check.start()])
    ):
        raise BadMarker("is damaged: its checksum is not that of its bytes")
    try:
        document = json.loads(text)
        version, is_ours = document["version"], document["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMarker(f"is damaged: {type(error).__name__} {error}") from None
    if not is_ours or version != VERSION:
        other = BadMarker(f"is of version {version!r}; this feedrate knows version {VERSION}")
        other.is_damaged = not is_ours
        raise other
    try:
        return documents.load(Marker, document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadMarker(f"is damaged: {type(error).__name__} {error}") from None


def check_marker(found: Marker, told: Marker, folder: Path) -> None:
    """Refuse the marker in a copy's folder that says something else than its source tells now.

    Raises:
        BadMarker: it does.
    """
    if found.digest != told.digest:
        bad = BadMarker(
            f"{folder} is a copy of something else: {found.address}",
            hint=f"delete it: feedrate scratch rm {shell_quote(folder)}",
        )
        bad.is_damaged = False
        raise bad
    # The digest does not cover all of it: a pack's times may change, and tables may come to be beside it.
    files, is_pack = {file.name: file for file in found.files}, told.kind == "pack"
    same = [
        _is_same(files.get(file.name), file) for file in told.files if file.crc32c is not None or not is_pack
    ]
    if (found.kind, found.source, found.entry) != (told.kind, told.source, told.entry) or not all(same):
        raise BadMarker(f"{folder}/copy.json is damaged: it does not say what its source holds")


def _is_same(found: CopiedFile | None, told: CopiedFile) -> bool:
    if found is None or (found.size_bytes, found.source_name) != (told.size_bytes, told.source_name):
        return False
    return found.mtime_ns == told.mtime_ns if told.crc32c is None else found.crc32c == told.crc32c


def describe_maker() -> dict[str, Any]:
    """Return who this process is, for people who find what it left."""
    return {
        "user": user_name(os.getuid()),
        "uid": os.getuid(),
        "node": find_node(),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "pid": os.getpid(),
    }


_LARGEST_BYTES = 64 * 1024
_numbers = itertools.count()


class Lease:
    """This process uses a copy, until `release` or its end. Children made by fork share it.

    `holder`: what its paths need to lead anywhere, kept as long as the lease.
    """

    def __init__(self, path: Path, fd: int, used: Path, holder: object = None) -> None:
        self.path = path
        self._holder = holder
        self._fd: int | None = fd
        self._used = used
        self._process = os.getpid()

    def release(self) -> None:
        """End it. May be called twice."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._process == os.getpid():
            touch(self._used)
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def add_lease(folder: Path, used: Path, *, is_public: bool, holder: object = None) -> Lease:
    """Add a lease to those in `folder`. Only for who holds the copy's gate."""
    remove_stale(folder)
    while True:
        path = folder / f"{os.getpid()}-{next(_numbers)}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # of a process that had our number, here or in another container
            continue
        except OSError as error:
            raise explain_write_error(error, path) from error
        break
    try:
        with writing(path):
            lock_fd(fd)
            os.fchmod(fd, 0o644 if is_public else 0o600)
        note_holder(path)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    touch(used)
    return Lease(path, fd, used, holder)


def note_holder(path: Path) -> None:
    """Write into a file that this process holds locked who that is, and since when.

    A full disk takes the file, and no text: the lock decides, the text is for people.
    """
    about = {**describe_maker(), "command": " ".join(sys.argv)[:500], "since": time.time()}
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(about))


def live_leases(folder: Path) -> tuple[LeaseInfo, ...]:
    """Return who uses a copy now; one whose lease cannot be looked at counts as a user."""
    return tuple(read_holder(path) for path in _files(folder) if is_locked(path))


def remove_stale(folder: Path) -> None:
    """Remove the leases of processes that have ended. Only for who holds the copy's gate."""
    for path in _files(folder):
        if not is_locked(path):
            with contextlib.suppress(OSError):
                path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names)


def read_holder(path: Path) -> LeaseInfo:
    """Return who holds a file; its `pid` is 0 where nobody wrote that down."""
    try:
        fd = os.open(path, LOOK)
        with open(fd, "rb") as file:
            return documents.load(LeaseInfo, json.loads(file.read(_LARGEST_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pid = path.name.split("-")[0]
        return LeaseInfo(int(pid) if pid.isdigit() else 0, "", "", "", "", 0.0)


def touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # of a copy of root's that takes no notice of others
        os.utime(path)
