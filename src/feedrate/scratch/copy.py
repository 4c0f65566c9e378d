# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch: one per source and node, shared by all processes of a user, and with root's.

    SCRATCH/feedrate-UID/NAME-DIGEST12/
        copy.json     the marker (marker.py); there before anything else is
        data/         what the user gets; a file has its final name only when it is whole, checked and
                      fsynced, until then it is .NAME.part, which grows from its beginning
        gate          locked for a moment, to add a lease or to delete the copy
        writer        locked by the one process that copies now, and says which; others wait, and take over
                      when it dies
        leases/       a locked file per process that uses the copy
        used          its time: when a lease was taken or given back last

A copy is made aside and renamed, so its folder is never half made; its gate is held meanwhile, by which the
folder of a maker that was killed is known. Folders are believed only if they belong
to this user or to root and no other user may write to them: what is there will be trained on. What is looked
at is what is read: files are reached by the descriptor of the folder that was checked (folder.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from feedrate.errors import FeedrateError, StorageError
from feedrate.files.atomic import (
    atomic_write,
    explain_write_error,
    shown,
    sync_files,
    temporary_name,
    writing,
)
from feedrate.files.lock import Gone, Lock, make_lock, take_lock
from feedrate.files.permissions import ROOT, anchor, open_trusted
from feedrate.remote.retry import log
from feedrate.scratch.folder import make_user_folder, owner_of, user_folder
from feedrate.scratch.marker import (
    BadMarker,
    Lease,
    Marker,
    add_lease,
    check_marker,
    describe_maker,
    dump_marker,
    load_marker,
    note_holder,
    read_holder,
)
from feedrate.scratch.results import LeaseInfo
from feedrate.units import shell_quote

MARKER, DATA, GATE, WRITER, LEASES, USED = "copy.json", "data", "gate", "writer", "leases", "used"


def make_copy(folder: Path, marker: Marker) -> None:
    """Make an empty copy; harmless where another process is quicker, to make it or to clear it away."""
    aside = folder.parent / temporary_name(folder.name)
    folder_mode, file_mode = modes(marker.is_public)
    try:
        try:
            aside.mkdir(0o700)
            with make_lock(aside / GATE):
                (aside / GATE).chmod(file_mode)
                _make_parts(aside, marker.is_public)
                with atomic_write(aside / MARKER) as file:
                    os.fchmod(file.fileno(), file_mode)
                    file.write(dump_marker(marker))
                aside.chmod(folder_mode)
                os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return
        if isinstance(error, FileNotFoundError) and folder.parent.is_dir():
            return  # it was cleared away before its gate was held
        raise explain_write_error(error, folder) from error


def _make_parts(folder: Path, is_public: bool) -> None:
    """Make the folders and locks of a copy that are not there."""
    folder_mode, file_mode = modes(is_public)
    # Users of a copy of root's put their leases there.
    is_open = is_public and os.getuid() == ROOT
    for path in (folder / DATA, folder / LEASES):
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
            path.chmod(0o1777 if is_open and path.name == LEASES else folder_mode)
    for path in (folder / GATE, folder / WRITER, folder / USED):
        with contextlib.suppress(FileExistsError):
            path.touch(0o600, exist_ok=False)
            path.chmod(0o666 if is_open and path.name == USED else file_mode)


def modes(is_public: bool) -> tuple[int, int]:
    """Return the modes of folders and files."""
    return (0o755, 0o644) if is_public else (0o700, 0o600)


def read_marker(folder: Path) -> Marker:
    """Return what the marker of a copy says.

    Raises:
        Gone: there is no copy.
        BadMarker: there is one, and its marker cannot be used.
    """
    path = folder / MARKER
    try:
        return load_marker(path.read_bytes())
    except FileNotFoundError:
        if not folder.exists():
            raise Gone from None
        raise BadMarker(f"{shown(folder)} has no {MARKER}", hint=_hint(folder)) from None
    except BadMarker as error:
        bad = BadMarker(f"{shown(path)} {error}", hint=_hint(folder))
        bad.is_damaged = error.is_damaged
        raise bad from None
    except OSError as error:
        raise BadMarker(f"cannot read {shown(path)}: {error.strerror}", hint=_hint(folder)) from error


def _hint(folder: Path) -> str:
    return f"delete the copy: feedrate scratch rm {shell_quote(shown(folder))}"


class Copy:
    """A copy on scratch. `create` and `open` give one. What is in it may change any time: be ready for a file
    that is gone.

    Attributes:
        folder: where it is, for people and for other programs.
        at: the same folder by the descriptor that was checked, for this process while this object lives.
    """

    def __init__(self, folder: Path, marker: Marker, fd: int | None = None) -> None:
        self.folder = self.at = folder
        if fd is not None:
            self.at = anchor(fd, folder)
            weakref.finalize(self, os.close, fd).atexit = False
        self.marker = marker
        self.is_repaired = False  # its marker was damaged: files that have landed must be read before use
        self.files = {file.name: file for file in marker.files}
        self._top = str(self.data)

    @property
    def data(self) -> Path:
        """Return where this process reads and writes files."""
        return self.at / DATA

    @property
    def path(self) -> Path:
        """Return what the user gets: the folder with the files, or the only file."""
        return self.folder / DATA / self.marker.entry

    @property
    def is_ours(self) -> bool:
        """Return whether this user may write to it; root's copies can be used, not finished."""
        return self.folder.parent.name == user_folder()

    @classmethod
    def open(cls, folder: Path, instead: Marker | None = None) -> Copy:
        """Open a copy that is there. `instead`: what is believed where its marker is damaged.

        Raises:
            Gone: there is none.
            BadMarker: its marker is damaged, or of another version.
            StorageError: it is not to be trusted.
        """
        home = open_trusted(folder.parent)
        try:
            fd = open_trusted(folder, home)
        finally:
            os.close(home)
        try:
            marker = read_marker(anchor(fd, folder))
        except BaseException as error:
            if instead is None or not isinstance(error, BadMarker) or not error.is_damaged:
                os.close(fd)
                raise
            marker = instead
        copy = cls(folder, marker, fd)
        if copy.is_ours:
            # Somebody may have deleted some by hand; the copy can then be used and finished all the same.
            with contextlib.suppress(OSError):
                _make_parts(copy.at, marker.is_public)
        os.close(open_trusted(folder / DATA, fd))
        return copy

    @classmethod
    def find(cls, scratch: Path, marker: Marker) -> Copy | None:
        """Return the copy of what the marker describes: this user's, or a finished one of root's.

        A marker of this user's that is damaged is written anew: what it said is known from the source.

        Raises:
            BadMarker: a marker of this user's is of no use, and cannot be written anew.
            StorageError: what is there is not to be trusted.
        """
        for uid in dict.fromkeys((os.getuid(), ROOT)):
            folder = scratch / user_folder(uid) / marker.folder_name
            try:
                copy = cls.open(folder)
                check_marker(copy.marker, marker, folder)
            except Gone:
                continue
            except BadMarker as error:
                if uid != os.getuid():
                    continue
                copy = cls._repair_marker(folder, marker, error)
            except StorageError:
                if uid == os.getuid():
                    raise
                continue
            if copy.is_ours or copy.is_complete():
                return copy
        return None

    @classmethod
    def _repair_marker(cls, folder: Path, marker: Marker, error: BadMarker) -> Copy:
        if not error.is_damaged:
            raise error
        made = dataclasses.replace(marker, created=time.time(), made_by=describe_maker())
        copy = cls.open(folder, instead=made)
        try:
            copy.update(made)
        except (Gone, OSError):
            raise error from None
        copy.is_repaired = True
        log.warning("%s; it was written anew from the source, %s", error, marker.address)
        return copy

    @classmethod
    def create(cls, scratch: Path, marker: Marker) -> Copy:
        """Return what `find` does; make an empty copy where there is none.

        Raises:
            StorageError: it cannot be made, or what is there is not to be trusted.
        """
        while True:
            copy = cls.find(scratch, marker)
            if copy is not None:
                return copy
            home = make_user_folder(scratch, is_public=marker.is_public)
            try:
                made = dataclasses.replace(marker, created=time.time(), made_by=describe_maker())
                make_copy(anchor(home, scratch / user_folder()) / marker.folder_name, made)
            finally:
                os.close(home)

    def has_landed(self, name: str) -> bool:
        """Return whether a file is whole and in place."""
        try:
            return os.stat(self._text(name)).st_size == self.files[name].size_bytes
        except OSError:
            return False

    def find_available(self, name: str) -> tuple[Path, int]:
        """Return a path, and how many bytes from its beginning are there: a file on its way grows in order.

        The file can land between this and opening it: then ask again.
        """
        if self.has_landed(name):
            return self.data / name, self.files[name].size_bytes
        part = self.part(name)
        try:
            return part, min(part.stat().st_size, self.files[name].size_bytes)
        except OSError:
            return part, 0

    def is_complete(self) -> bool:
        return all(self.has_landed(name) for name in self.files)

    def part(self, name: str) -> Path:
        """Return where a file is while it is on its way."""
        return Path(self._text(part_name(name)))

    def _text(self, name: str) -> str:
        """Return a path as text: making a `Path` costs as much as opening the file."""
        return f"{self._top}/{name}"

    def open_part(self, name: str) -> int:
        """Open the part of a file, to be continued where it ends. Only for who holds the writer's lock."""
        part = self._text(part_name(name))
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(part, flags, 0o600)
        except FileNotFoundError:
            self._make_folders(Path(part).parent, modes(self.marker.is_public)[0])
            return os.open(part, flags, 0o600)

    def _make_folders(self, folder: Path, mode: int) -> None:
        if not self.data.is_dir():
            raise Gone
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            one.mkdir(0o700, exist_ok=True)
            one.chmod(mode)

    def land(self, name: str, fd: int) -> None:
        """Give a part, open as `fd`, its final name: it is whole and checked. Only for the writer."""
        self.set_attributes(name, fd)
        os.fsync(fd)
        self._rename(name)

    def _rename(self, name: str) -> None:
        os.rename(self._text(part_name(name)), self._text(name))

    def set_attributes(self, name: str, fd: int) -> None:
        """Give a part the mode and the time that it will have."""
        os.fchmod(fd, modes(self.marker.is_public)[1])
        if self.files[name].mtime_ns:
            os.utime(fd, ns=(self.files[name].mtime_ns, self.files[name].mtime_ns))

    def land_together(self, names: Sequence[str]) -> None:
        """Give parts that are whole, checked and have their modes their final names once all are durable."""
        sync_files([self.part(name) for name in names])
        for name in names:
            self._rename(name)

    def take_gate(self) -> Lock:
        """Hold the gate: no lease is added and the copy is not deleted meanwhile. Hold it shortly.

        Raises:
            Gone: it was deleted.
        """
        lock = self._take(GATE, wait=True)
        assert lock is not None
        return lock

    def take_writer(self) -> Lock | None:
        """Become the process that copies; None: another one is.

        Raises:
            Gone: it was deleted.
        """
        writer = self._take(WRITER, wait=False)
        if writer is not None:
            note_holder(self.at / WRITER)
        return writer

    def read_writer(self) -> LeaseInfo:
        """Return the process that copies, or the last one that did."""
        return read_holder(self.at / WRITER)

    def _take(self, name: str, *, wait: bool) -> Lock | None:
        # Who deletes a copy renames it first; killed, it leaves locks that nobody holds.
        self._check_name()
        with writing(self.at / name):
            lock = take_lock(self.at / name, wait=wait)
        if lock is not None:
            try:
                self._check_name()
            except BaseException:
                lock.release()
                raise
        return lock

    def _check_name(self) -> None:
        try:
            there = os.stat(f"{self.at}/../{self.folder.name}", follow_symlinks=False)
            has_its_name = os.path.samestat(os.stat(self.at), there)
        except OSError:
            has_its_name = False
        if not has_its_name:
            raise Gone

    def lease(self) -> Lease:
        """Take a lease: the copy stays until it is released, or this process ends.

        Raises:
            Gone: it was deleted.
        """
        with self.take_gate():
            is_public = self.marker.is_public
            return add_lease(self.at / LEASES, self.at / USED, is_public=is_public, holder=self)

    def reload(self) -> None:
        """Read the marker again: another process may have written checksums down since it was opened."""
        with contextlib.suppress(BadMarker, Gone):
            self.marker = read_marker(self.at)
            self.files = {file.name: file for file in self.marker.files}

    def update(self, marker: Marker) -> None:
        """Write another marker: checksums that are known now, a longer time to keep. Only for its owner."""
        with self.take_gate(), atomic_write(self.at / MARKER) as file:
            os.fchmod(file.fileno(), modes(self.marker.is_public)[1])
            file.write(dump_marker(marker))
        self.marker, self.files = marker, {file.name: file for file in marker.files}


def part_name(name: str) -> str:
    """Return what a file is called while it is on its way; no other file of a copy begins with a dot."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.part"


class Held:
    """What a path on scratch leads to, by descriptor: `path`. No lease where none could be taken, as on
    a disk that is read-only."""

    def __init__(self, copy: Copy, below: str, lease: Lease | None) -> None:
        self._copy = copy
        self.path = copy.data / below
        self.lease = lease

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()


def hold(path: str | os.PathLike[str]) -> Held | None:
    """Take a lease on the copy that a path is in; None: it is in no copy of this user's or of root's.

    Raises:
        StorageError: it is where such a copy would, and another user could have put it there.
    """
    for way in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        parts = Path(way).parts
        for i in range(len(parts) - 1, 2, -1):
            folder = Path(*parts[:i])
            if parts[i] == DATA and owner_of(folder.parent) in (os.getuid(), ROOT):
                return _hold(folder, "/".join(parts[i + 1 :]))
    return None


def _hold(folder: Path, below: str) -> Held | None:
    try:
        if not (folder / MARKER).exists():  # no copy, if no other user had a hand in it
            os.close(open_trusted(folder.parent))
            return None
        copy = Copy.open(folder, instead=Marker("files", "", "", ()))  # a lease needs no more
    except (Gone, BadMarker):
        return None
    try:
        return Held(copy, below, copy.lease())
    except (Gone, FeedrateError, OSError):
        return Held(copy, below, None)
