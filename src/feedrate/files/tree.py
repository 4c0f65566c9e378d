# SPDX-License-Identifier: Apache-2.0
"""Walk through folders, and delete what is in them.

By path, as the files of a dataset are listed; or by descriptor: never through a link, never into another
mount. What a path names can change between two calls; what a descriptor holds cannot.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from feedrate.errors import StorageError
from feedrate.units import printable

_AT_ONCE, _GROUP = 8, 64
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(name: str, dir_fd: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a folder that is no link.

    Raises:
        OSError: it is a link, a file, or not there.
    """
    fd = os.open(name, FOLDER, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_small(name: str, dir_fd: int, largest_bytes: int = 2**30) -> bytes:
    """Return the content of a plain file that is no link.

    Raises:
        OSError: it is anything else, or not there.
    """
    # Without O_NONBLOCK a pipe of that name would hold us up.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is not a plain file")
        return file.read(largest_bytes)


def walk_paths(
    top: bytes, *, enters_links: bool, below: bytes = b"", above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield path and entry of all below a folder but folders, sorted; hidden folders are not entered.

    Args:
        enters_links: go into folders that are links, too.

    Raises:
        StorageError: a folder cannot be listed, or is a link to one that it is in.
    """
    folder = os.path.join(top, below) if below else top
    folders = []
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.name.startswith(b".") or not entry.is_dir(follow_symlinks=enters_links):
                yield path, entry
            else:
                info = entry.stat()
                folders.append((path, (info.st_dev, info.st_ino)))
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot list {printable(folder)}: {error.strerror}") from error
    for path, identity in folders:
        if identity in above:
            raise StorageError(f"{printable(os.path.join(top, path))} is a link to a folder that it lies in")
        yield from walk_paths(top, enters_links=enters_links, below=path, above=(*above, identity))


def remove_files(top: str | os.PathLike[str], is_ours: Callable[[str], bool]) -> None:
    """Remove files below a folder by their names, as far as that is possible; links are not followed."""
    for _, _, names, fd in os.fwalk(top):
        for name in filter(is_ours, names):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=fd)


def ask_ahead(entries: Sequence[os.DirEntry[bytes]]) -> None:
    """Ask for sizes and times of many files at a time, since a server takes its time for each.

    An entry remembers what it was told. One that could not be told is asked again by who needs to know.
    """

    def ask(some: Sequence[os.DirEntry[bytes]]) -> None:
        for entry in some:
            with contextlib.suppress(OSError):
                entry.stat()

    _do_in_groups(ask, entries)


def _do_in_groups(function: Callable[[Any], None], items: Sequence[Any]) -> None:
    """Hand items to threads, many at a time; few are done here."""
    if len(items) <= _GROUP:
        function(items)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to load, and packing needs the rest alone

    groups = [items[i : i + _GROUP] for i in range(0, len(items), _GROUP)]
    # The threads end before the caller can close a folder: its number may be another's then.
    with ThreadPoolExecutor(_AT_ONCE, "feedrate-files") as threads:
        list(threads.map(function, groups))


class FolderSample:
    """What was seen of a folder, without asking for any file: names are all that was read.

    Attributes:
        wanted, others: files by suffix, in lower case: those that were looked for, and all others.
        kept, kept_others: some names of both, drawn at random from all that were seen.
        folders: names of those in it, links included; `above`: the folders that it is in, and itself.
        is_whole: it was listed to its end; else `size_bytes` is what the folder itself takes.
        error: why it could not be listed.
    """

    def __init__(self, path: str, above: tuple[tuple[int, int], ...] = ()) -> None:
        self.path, self.above = path, above
        self.wanted: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.kept: list[str] = []
        self.kept_others: list[str] = []
        self.folders: list[str] = []
        self.entries = self.name_bytes = self.size_bytes = 0
        self.is_whole, self.took_s, self.error = False, 0.0, ""


_LOOK_EVERY = 64  # entries; a look at the clock costs as much as one of them
_MOST_SUFFIXES = 200
_LONGEST_SUFFIX = 12


def sample_folder(
    path: str, suffixes: frozenset[str], *, keep: int, until: float, above: tuple[tuple[int, int], ...] = ()
) -> FolderSample:
    """Look into a folder until the clock (`time.monotonic`) says `until`; hidden names are left out.

    A folder that is a link to one above it counts as empty.
    """
    began, found = time.monotonic(), FolderSample(path, above)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        found.error = error.strerror or "cannot be opened"
        return found
    try:
        info = os.fstat(fd)
        found.size_bytes, identity = info.st_size, (info.st_dev, info.st_ino)
        found.above = (*above, identity)
        if identity not in above:
            _look_through(fd, found, suffixes, keep, until)
        else:
            found.is_whole = True
    except OSError as error:
        found.error = error.strerror or "cannot be listed"
    finally:
        os.close(fd)
    found.took_s = time.monotonic() - began
    return found


def _look_through(fd: int, found: FolderSample, suffixes: frozenset[str], keep: int, until: float) -> None:
    counts = {True: 0, False: 0}
    with os.scandir(fd) as entries:
        for entry in entries:
            if found.entries and not found.entries % _LOOK_EVERY and time.monotonic() >= until:
                return
            name = entry.name
            found.entries += 1
            found.name_bytes += len(name)
            if name.startswith("."):
                continue
            dot = name.rfind(".")
            suffix = name[dot:].lower() if dot > 0 and len(name) - dot <= _LONGEST_SUFFIX else ""
            is_wanted = suffix in suffixes
            # A file system that does not tell what an entry is would be asked for each: images are files.
            if not is_wanted and _is_folder(entry):
                found.folders.append(name)
                continue
            kinds, names = (found.wanted, found.kept) if is_wanted else (found.others, found.kept_others)
            kinds[suffix if suffix in kinds or len(kinds) < _MOST_SUFFIXES else ""] += 1
            counts[is_wanted] = seen = counts[is_wanted] + 1
            if seen <= keep:
                names.append(name)
            elif (number := int(random.random() * seen)) < keep:
                names[number] = name
    found.is_whole = True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def measure_files(folder: str | os.PathLike[str], prefix: str = "") -> dict[str, int]:
    """Return the sizes of all files below a folder, by their path in it; what cannot be read is left out."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                sizes |= measure_files(entry.path, f"{prefix}{entry.name}/")
            else:
                with contextlib.suppress(OSError):
                    sizes[prefix + entry.name] = entry.stat().st_size
    return sizes


def walk(fd: int, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield all below a folder but folders: path and facts; also a folder that must not be looked into."""
    mount = _find_mount(fd)
    for name in sorted(os.listdir(fd)):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                yield prefix + name, info
                continue
            with opened_folder(name, fd) as inner:
                if _find_mount(inner) == mount:
                    yield from walk(inner, f"{prefix}{name}/")
                else:
                    yield prefix + name, info
        except FileNotFoundError:
            continue  # another user deletes it


def remove_known(fd: int, is_ours: Callable[[str], bool], prefix: str = "") -> list[str]:
    """Delete the plain files below a folder that `is_ours` claims by their path, and folders that are empty
    then; return what is left."""
    mount = _find_mount(fd)
    left, files = [], []
    for name in sorted(os.listdir(fd)):
        path = prefix + name
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                with opened_folder(name, fd) as inner:
                    is_same_mount = _find_mount(inner) == mount
                    below = remove_known(inner, is_ours, path + "/") if is_same_mount else [path]
                if not below:
                    os.rmdir(name, dir_fd=fd)
                left += below
            elif stat.S_ISREG(info.st_mode) and is_ours(path):
                files.append(name)
            else:
                left.append(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return left + [prefix + name for name in _unlink_all(fd, files)]


def _unlink_all(fd: int, names: list[str]) -> list[str]:
    """Delete files; return those that stay. Disks that wait with each file can wait for many at once."""
    left: list[str] = []

    def unlink(group: list[str]) -> None:
        for name in group:
            try:
                os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError:
                left.append(name)

    _do_in_groups(unlink, names)
    return sorted(left)


def _find_mount(fd: int) -> tuple[int, str]:
    """Return what tells mounts apart: a folder that is mounted in two places has one device."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            found = re.search(r"^mnt_id:\s*(\d+)", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return os.fstat(fd).st_dev, found.group(1) if found else ""
