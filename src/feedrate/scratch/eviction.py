# SPDX-License-Identifier: Apache-2.0
"""Delete a copy, but only if that loses nothing.

    looked at      it carries our marker, holds nothing that we did not put there, no other copy was made of
                   it, and its source was seen, and read, unchanged
    out of reach   under its gate, with no lease and no writer: renamed, so that nobody takes it into use
    looked again   all that still holds; else the copy gets its name back
    deleted        data first and the marker last: what a killed evictor leaves is known by it, and is deleted
                   in the same way by the next, or gets its name back

Bytes are read in the first look; in the second, no file may have been written to since. That look is not for
the time that has passed. A source may be the copy itself, reached by a link, a mount or a server; and of two
copies that are each other's source two evictors would else delete both.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from feedrate.files.atomic import is_temporary
from feedrate.files.lock import Gone, Lock, take_lock
from feedrate.files.tree import opened_folder, read_small, remove_known, walk
from feedrate.machine.process import find_openers
from feedrate.remote.addresses import is_url
from feedrate.scratch.copy import DATA, GATE, LEASES, MARKER, USED, WRITER
from feedrate.scratch.marker import BadMarker, CopiedFile, Marker, live_leases, load_marker
from feedrate.scratch.source_check import NotAsCopied, Sight, checksum_file, compare_bytes, stat_source

_LEAVING = re.compile(r"\.gone-(?P<name>.+)-[0-9]+-[0-9a-f]{8}")


class Kept(Exception):
    """Why a copy was not deleted: a clause that ends a sentence. `is_back`: it had been half way out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.is_back = False


class SourceUnseen(Kept):
    """The source is the only reason: this may be the only copy left."""


def is_leaving(name: str) -> bool:
    """Return whether a folder was on its way out when its evictor ended."""
    return _LEAVING.fullmatch(name) is not None


def evict(
    home_fd: int,
    name: str,
    *,
    sources: Collection[str] = (),
    instead: Marker | None = None,
    even_if_the_source_is_gone: bool = False,
    is_trial: bool = False,
) -> None:
    """Delete the copy of that name in a user's folder on scratch.

    Args:
        instead: what is believed where its marker is damaged.
        home_fd: that folder (`clearing.opened_home`).
        sources: what known copies were made of: none of that is ever deleted.
        even_if_the_source_is_gone: it may be the only copy, and the user has said so. All else still holds.
        is_trial: look only, and delete nothing.

    Raises:
        Kept: it must stay.
        Gone: it is not there any more.
    """
    with _opened(home_fd, name) as fd:
        # By the descriptor: what stands under the name may be another folder a moment later.
        folder = Path(f"/proc/self/fd/{fd}")
        if is_leaving(name) and _is_done(fd):
            with _take(folder / GATE, "somebody is deleting it"):
                if not is_trial:
                    _delete_rest(home_fd, name, fd)
            return
        text = _read_marker(fd)
        marker = _load_marker(text, instead, is_blind=even_if_the_source_is_gone)
        _check_sources(folder, [*sources] if marker is None else [marker.address, *sources])
        # What is out of reach already needs one look only.
        is_out = is_leaving(name) and not is_trial
        _check_users(folder)  # before the source is read, which may take minutes; again when nobody can come
        seen = None if is_out else _look(folder, fd, marker, is_blind=even_if_the_source_is_gone)
        with (
            _take(folder / GATE, "somebody is just taking it into use"),
            _take(folder / WRITER, "it is being copied right now"),
        ):
            if not os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=home_fd, follow_symlinks=False)):
                raise Gone
            _check_users(folder)
            if is_trial:
                return
            if _read_marker(fd) != text:
                raise Kept("it was just taken into use")
            aside = name if is_leaving(name) else _set_aside(home_fd, name)
            try:
                _check_change(seen, _look(folder, fd, marker, is_blind=even_if_the_source_is_gone, read=seen))
            except BaseException as error:
                is_back = _restore(home_fd, aside) and is_leaving(name)
                if isinstance(error, Kept):
                    error.is_back = is_back
                raise
            _delete_data(fd, marker)
            _delete_rest(home_fd, aside, fd)


@contextlib.contextmanager
def _opened(home_fd: int, name: str) -> Iterator[int]:
    """Yield the folder of a copy; what its disk raises in the block is why it stays, or that it is gone."""
    try:
        with opened_folder(name, home_fd) as fd:
            yield fd
    except FileNotFoundError:
        raise Gone from None
    except OSError as error:
        raise Kept(f"it cannot be deleted: {error.strerror or error}") from error


def remove_unmade(home_fd: int, name: str) -> None:
    """Delete what is left of a copy whose maker ended before it was made: it holds no data.

    Raises:
        Kept: it holds something, cannot be deleted, or its maker lives.
        Gone: it is not there any more.
    """
    with (
        _opened(home_fd, name) as fd,
        _take(Path(f"/proc/self/fd/{fd}") / GATE, "it is being made right now"),
    ):
        _delete_rest(home_fd, name, fd)


def _read_marker(fd: int) -> bytes:
    try:
        return read_small(MARKER, fd)
    except FileNotFoundError:
        raise Kept("it carries no marker of feedrate") from None


def _load_marker(text: bytes, instead: Marker | None, *, is_blind: bool) -> Marker | None:
    """Return what a marker says; None: it is damaged, and the user has said that the copy is not needed."""
    try:
        return load_marker(text)
    except BadMarker as error:
        if not error.is_damaged:
            raise Kept(f"its {MARKER} {error}") from None
        if instead is None and not is_blind:
            raise SourceUnseen(f"its {MARKER} {error}, so nobody knows what it was copied from") from None
        return instead


def _check_sources(folder: Path, sources: Collection[str]) -> None:
    here = os.path.realpath(folder)
    for source in sources:
        if is_url(source):
            continue
        there = os.path.realpath(source)
        if there == here or there.startswith(here + "/"):
            raise Kept(f"{source} lies in it, which a copy was made of")
        if here.startswith(there.rstrip("/") + "/"):
            raise Kept(f"it lies in {source}, which a copy was made of")


def _look(
    folder: Path, fd: int, marker: Marker | None, *, is_blind: bool, read: Sight | None = None
) -> Sight:
    """Return what the source is like; Kept: what is copied from it here is not safe there, or is more.

    `read`: what it was like when its bytes were compared.
    """
    ours = _check_strangers(folder, fd, marker)
    if is_blind or marker is None or _is_done(fd):
        return {}  # nothing that could be lost, or the user has said so
    try:
        seen = stat_source(marker)
        compare_bytes(marker, seen, folder / DATA, ours, read)
    except NotAsCopied as error:
        raise SourceUnseen(str(error)) from None
    return seen


def _check_change(before: Sight | None, now: Sight) -> None:
    if before is not None and before != now:
        raise SourceUnseen("its source changed while it was looked at")


def _check_strangers(folder: Path, fd: int, marker: Marker | None) -> set[tuple[int, int]]:
    """Return device and inode of all files of a copy; Kept: one of them is not of our making any more."""
    files = {} if marker is None else {file.name: file for file in marker.files}
    ours = set()
    for path, info in walk(fd):
        is_ours = _is_known(path, files) or (marker is None and path.startswith(f"{DATA}/"))
        if not stat.S_ISREG(info.st_mode) or not is_ours:
            damaged = f"its {MARKER} is damaged, and " if marker is None else ""
            raise Kept(f"{damaged}it holds {path}, which feedrate did not put there")
        file = files.get(path.removeprefix(f"{DATA}/")) if path.startswith(f"{DATA}/") else None
        if file is not None and not _is_unchanged(folder, path, info, file):
            raise Kept(f"its {path} was changed after it was copied")
        ours.add((info.st_dev, info.st_ino))
    return ours


def _is_unchanged(folder: Path, path: str, info: os.stat_result, file: CopiedFile) -> bool:
    if info.st_size != file.size_bytes:
        return False
    # A file lands with its source's time; a file system that keeps only whole seconds needs a closer look.
    if not file.mtime_ns or info.st_mtime_ns == file.mtime_ns:
        return True
    return file.crc32c is not None and checksum_file(folder / path) == file.crc32c


def _is_known(path: str, names: Collection[str]) -> bool:
    top, _, rest = path.partition("/")
    if not rest:
        return top in (MARKER, GATE, WRITER, USED) or is_temporary(top)
    if top != DATA:
        return top == LEASES
    folder, slash, base = rest.rpartition("/")
    is_part = base.startswith(".") and base.endswith(".part")
    return rest in names or (is_part and folder + slash + base[1:].removesuffix(".part") in names)


def _take(path: Path, why: str) -> Lock:
    """Hold a lock of a copy. We never wait: who holds one uses the copy."""
    try:
        lock = take_lock(path, wait=False)
    except Gone:
        # Somebody has deleted the file by hand.
        path.touch(0o600)
        lock = take_lock(path, wait=False)
    if lock is None:
        raise Kept(why)
    return lock


def _check_users(folder: Path) -> None:
    users = live_leases(folder / LEASES)
    if users:
        first = users[0]
        job = f" (job {first.job})" if first.job else ""
        others = f" and {len(users) - 1} more" if len(users) > 1 else ""
        raise Kept(f"it is in use: process {first.pid} of {first.user or 'another user'}{job}{others}")
    # Programs that know nothing of leases were given its path by `feedrate stage`.
    opener = next(find_openers(os.path.join(os.path.realpath(folder), DATA)), None)
    if opener is not None:
        raise Kept(f"it is in use: process {opener} has files of it open")


def _set_aside(home_fd: int, name: str) -> str:
    aside = f".gone-{name}-{os.getpid()}-{secrets.token_hex(4)}"
    os.rename(name, aside, src_dir_fd=home_fd, dst_dir_fd=home_fd)
    return aside


def _restore(home_fd: int, aside: str) -> bool:
    """Give a copy its name back, unless another one has it by now."""
    match = _LEAVING.fullmatch(aside)
    assert match is not None
    try:
        os.rename(aside, match["name"], src_dir_fd=home_fd, dst_dir_fd=home_fd)
    except OSError:
        return False
    return True


def _delete_data(fd: int, marker: Marker | None) -> None:
    names = set() if marker is None else {file.name for file in marker.files}
    with contextlib.suppress(FileNotFoundError), opened_folder(DATA, fd) as data:
        left = remove_known(data, lambda path: marker is None or _is_known(f"{DATA}/{path}", names))
        if left:
            raise Kept(f"it holds {DATA}/{left[0]}, which cannot be deleted")


def _is_done(fd: int) -> bool:
    """Return whether nothing but empty folders and files of ours are left: no byte of data."""
    return all(_is_known(path, ()) for path, _ in walk(fd))


def _delete_rest(home_fd: int, name: str, fd: int) -> None:
    """Delete a copy that holds no data. The marker goes last but one: it says whose the rest is."""
    left = remove_known(fd, lambda path: path not in (MARKER, GATE) and _is_known(path, ()))
    left = [path for path in left if path not in (MARKER, GATE)]
    if left:
        raise Kept(f"it holds {left[0]}, which feedrate did not put there")
    for last in (MARKER, GATE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=fd)
    os.rmdir(name, dir_fd=home_fd)
