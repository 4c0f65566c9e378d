# SPDX-License-Identifier: Apache-2.0
"""Which of a user's copies on scratch should go: those named, expired, never finished, or over a limit.

Whether one may go is decided by `eviction` alone. The clock decides only what is tried, and in which order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from feedrate.cache.entry_folder import delete_entries, is_home
from feedrate.cache.persistent import delete_cache
from feedrate.errors import FeedrateError, StorageError, UsageError
from feedrate.files.atomic import free_bytes, is_temporary
from feedrate.files.lock import Gone, is_locked
from feedrate.files.permissions import find_distrust
from feedrate.files.tree import opened_folder, read_small, walk
from feedrate.machine.describe import find_node
from feedrate.remote.addresses import is_url
from feedrate.scratch.contents import read_contents
from feedrate.scratch.copy import GATE, MARKER
from feedrate.scratch.eviction import Kept, SourceUnseen, evict, is_leaving, remove_unmade
from feedrate.scratch.folder import owner_of, user_folder
from feedrate.scratch.listing import forget, list_caches, list_copies, recall
from feedrate.scratch.marker import Marker
from feedrate.scratch.results import CacheInfo, CopyInfo, Leftover, Verdict
from feedrate.units import format_bytes, parse_bytes

# A cache does not say how long it should stay: as long as copies of which nothing else was said.
_KEEP_CACHES_S = 7 * 86400.0
# To read so much may take longer than people wait without a word.
_LONG_BYTES = 2 << 30


@contextlib.contextmanager
def opened_home(scratch: Path) -> Iterator[int | None]:
    """Yield a descriptor of this user's folder on a scratch folder; None: there is none.

    Raises:
        StorageError: it is a link, or another user could have filled it.
    """
    home = scratch / user_folder()
    with contextlib.ExitStack() as stack:
        try:
            top = stack.enter_context(opened_folder(os.path.realpath(scratch)))
            fd = stack.enter_context(opened_folder(home.name, top))
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise StorageError(f"cannot look into {home}: {error.strerror}") from error
        if find_distrust(os.fstat(fd)):
            raise StorageError(
                f"{home} belongs to somebody else, or others may write to it: nothing is deleted there"
            )
        yield fd


@dataclass(slots=True)
class Cleared:
    """What happened to a user's copies on one scratch folder."""

    removed: list[Verdict] = field(default_factory=list)
    kept: list[Verdict] = field(default_factory=list)
    restored: list[Verdict] = field(default_factory=list)
    used_bytes: int = 0


class Clearing:
    """One scratch folder, about to be cleared; copies are those of its moment.

    Args:
        is_trial: only say what would be done.
        now: seconds since 1970.
        say: told what will take a while.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        is_trial: bool = False,
        now: float | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scratch, self._say = scratch, say
        self.now = time.time() if now is None else now
        self.result = Cleared()
        self._is_trial = is_trial
        self.everybodys = list_copies(scratch)
        self._sources = {copy.folder: copy.source for copy in self.everybodys if copy.source}
        here = [copy for copy in recall() if copy.node == find_node()]
        self._noted = {copy.folder: copy.source for copy in here}
        self._more_sources = [copy.source for copy in here if copy.folder not in self._sources]
        self.copies = sorted(filter(is_mine, self.everybodys), key=lambda copy: copy.used)
        self.caches = list_caches(scratch)
        self.result.used_bytes = sum(map(size_on_disk, self.copies))

    def remove(self, copies: Iterable[CopyInfo], *, even_if_the_source_is_gone: bool = False) -> None:
        """Delete copies that the user has named."""
        for copy in copies:
            self._try(copy, "you asked for it", even_if_the_source_is_gone)

    def remove_caches(self, caches: Iterable[CacheInfo], why: str = "you asked for it") -> None:
        """Delete caches. They have no source that must be there: what they hold can be made anew."""
        for cache in caches:
            place = Path(cache.path)
            delete = delete_entries if is_home(place) else delete_cache
            objection = delete(place, is_trial=self._is_trial)
            verdict = Verdict(cache.path, "", cache.size_bytes, objection or why)
            (self.result.kept if objection else self.result.removed).append(verdict)

    def remove_idle(self) -> None:
        """Delete copies that have expired, or that nobody finishes, and what killed processes left behind."""
        self._remove_leftovers()
        idle = [cache for cache in self.caches if self.now - cache.used > _KEEP_CACHES_S and not cache.users]
        self.remove_caches(idle, "no job has used this cache for 7 days")
        for copy in list(self.copies):
            if copy.is_being_written:
                continue
            if copy.problem:
                self._try(copy, copy.problem)
            elif not copy.is_complete:
                self._try(copy, "it was never finished, and nobody is copying")
            elif copy.keep_s is not None and self.now - copy.used > copy.keep_s:
                self._try(copy, "it has not been used for longer than it was to be kept")

    def remove_oldest(self, limit_bytes: int) -> None:
        """Delete copies, the longest unused first, until what is left takes no more than this."""
        for copy in list(self.copies):
            if self.result.used_bytes <= limit_bytes:
                return
            if not any(copy.folder == kept.path for kept in self.result.kept):
                self._try(copy, "the limit is reached, and it has been unused for the longest time")

    def _try(self, copy: CopyInfo, why: str, even_if_the_source_is_gone: bool = False) -> None:
        size_bytes = size_on_disk(copy)
        sources = [source for folder, source in self._sources.items() if folder != copy.folder]
        if size_bytes >= _LONG_BYTES and not (
            is_url(copy.source) or copy.leases or even_if_the_source_is_gone
        ):
            self._say(f"reading {copy.source}, {format_bytes(size_bytes)}, to be sure that its copy may go")
        try:
            with opened_home(self.scratch) as home:
                if home is None:
                    return
                evict(
                    home,
                    os.path.basename(copy.folder),
                    sources=[*sources, *self._more_sources],
                    instead=self._find_source(copy) if copy.problem else None,
                    even_if_the_source_is_gone=even_if_the_source_is_gone,
                    is_trial=self._is_trial,
                )
        except Gone:
            pass
        except StorageError as error:  # another user has the name of this user's folder
            self.result.kept.append(Verdict(copy.folder, copy.source, size_bytes, str(error)))
            return
        except Kept as kept:
            is_only_copy = isinstance(kept, SourceUnseen)
            words = f"its source was not found as it was: {kept}" if is_only_copy else str(kept)
            self.result.kept.append(Verdict(copy.folder, copy.source, size_bytes, words, is_only_copy))
            return
        else:
            self.result.removed.append(Verdict(copy.folder, copy.source, size_bytes, why))
        self.copies.remove(copy)
        self.result.used_bytes -= size_bytes
        if not self._is_trial:
            self._sources.pop(copy.folder, None)
            forget(find_node(), copy.folder)

    def _find_source(self, copy: CopyInfo) -> Marker | None:
        """Return what a damaged marker should say, if its source is found: by the user's notes, or
        by what can still be read. A source that is as it was gives the copy the name that it has."""
        for source in (self._noted.get(copy.folder), guess_source(Path(copy.folder))):
            with contextlib.suppress(FeedrateError, OSError):
                marker = read_contents(source).marker if source else None
                if marker is not None and marker.folder_name == os.path.basename(copy.folder):
                    return marker
        return None

    def _remove_leftovers(self) -> None:
        for leftover in list_leftovers(self.scratch):
            name = os.path.basename(leftover.path)
            verdict = Verdict(leftover.path, "", leftover.size_bytes, leftover.what)
            try:
                with opened_home(self.scratch) as home:
                    if home is None:
                        continue
                    if is_leaving(name):
                        sources = [*self._sources.values(), *self._more_sources]
                        evict(home, name, sources=sources, is_trial=self._is_trial)
                    elif not self._is_trial:
                        remove_unmade(home, name)
                self.result.removed.append(verdict)
            except Gone:
                continue
            except Kept as kept:
                verdict = Verdict(leftover.path, "", leftover.size_bytes, str(kept))
                (self.result.restored if kept.is_back else self.result.kept).append(verdict)


def guess_source(folder: Path) -> str:
    """Return the path of a source that a damaged marker still names; "": none."""
    with contextlib.suppress(OSError, ValueError), opened_folder(str(folder)) as fd:
        text = read_small(MARKER, fd)
        found = [re.search(rb'"%s":("(?:[^"\\]|\\.)*")' % name, text) for name in (b"source", b"entry")]
        source, entry = ("" if one is None else str(json.loads(one[1])) for one in found)
        return "" if is_url(source) or not source.startswith("/") else os.path.join(source, entry)
    return ""


def list_leftovers(scratch: Path) -> list[Leftover]:
    """Return what killed processes of this user left of copies that they made or deleted."""
    found: list[Leftover] = []
    # Whoever has taken this user's name must not keep others' copies from being listed and deleted.
    with contextlib.suppress(StorageError), opened_home(scratch) as home:
        for name in sorted(os.listdir(home)) if home is not None else ():
            what = "a copy that was being deleted" if is_leaving(name) else ""
            with contextlib.suppress(OSError), opened_folder(name, home) as fd:
                if is_temporary(name) and not is_locked(Path(f"/proc/self/fd/{fd}") / GATE):
                    what = "a copy that was being made"
                if what:
                    size_bytes = sum(info.st_size for _, info in walk(fd))
                    found.append(Leftover(str(scratch / user_folder() / name), what, size_bytes))
    return found


def is_mine(copy: CopyInfo) -> bool:
    """Return whether a copy is in this user's folder, where alone something is ever deleted."""
    return owner_of(Path(copy.folder).parent) == os.getuid()


def size_on_disk(copy: CopyInfo) -> int:
    return copy.landed_bytes + copy.partial_bytes


def find_limit(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how much a user's copies on one scratch folder may take, by the environment; None: no limit."""
    text = environ.get("FEEDRATE_SCRATCH_LIMIT", "").strip()
    if not text:
        return None
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"FEEDRATE_SCRATCH_LIMIT: {error}", hint=error.hint) from None


def make_room(
    scratch: Path,
    size_bytes: int,
    *,
    limit_bytes: int | None = None,
    spare: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Cleared:
    """Delete what need not stay, before a copy of that size is made.

    Only where there is no room for it: copies that expired or that nobody finishes; and, where a limit is
    set, the longest unused ones, until the new one fits under it. `spare`: the folder of the copy that is
    about to be finished, of which `size_bytes` are missing.
    """
    if limit_bytes is None and free_bytes(scratch) >= size_bytes:
        return Cleared()
    clearing = Clearing(scratch, say=say)
    clearing.copies = [copy for copy in clearing.copies if copy.folder != spare]
    in_use = sum(size_on_disk(copy) for copy in clearing.copies if copy.leases or copy.is_being_written)
    if limit_bytes is not None and in_use + size_bytes > limit_bytes:
        return clearing.result  # it cannot be kept: nothing is deleted in vain
    is_over = limit_bytes is not None and clearing.result.used_bytes + size_bytes > limit_bytes
    if is_over or free_bytes(scratch) < size_bytes:
        clearing.remove_idle()
    if limit_bytes is not None:
        clearing.remove_oldest(max(limit_bytes - size_bytes, 0))
    return clearing.result
