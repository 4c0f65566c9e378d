# SPDX-License-Identifier: Apache-2.0
"""A bounded store of samples that never evicts, shared by the processes of a job on one node.

It has a table (one row per sample, memory that all its processes map) and a file without a name per tier:
memory for `ram`, an unlinked file on a disk for `disk`. So nothing of it outlives its last process, however
that ends; `sharing.py` says how processes come by each other's files.

A sample:  ABSENT --put: a place reserved, bytes written, row published--> HELD
           HELD --discard: it was damaged; or memory ran short--> ABSENT

A place is given out once and never again: a reader finds there what its row named, or bytes that fail their
checksum, and then takes the sample from its source. Bytes are written without the lock, for a place that was
reserved is the writer's own; if memory was given back meanwhile, the row is not published and the writer
frees its place itself. Descriptors are closed only when no call uses them: a number that is used again may be
anybody's file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.cache.limits import MemoryWatch, Tier, Watcher
from feedrate.cache.persistent import add_row, drop_oldest, load_rows, measure_others, open_kept
from feedrate.cache.results import TierStats
from feedrate.cache.sharing import (
    Descriptors,
    close_all,
    join,
    make_file,
    name_job,
    publish,
    punch_hole,
    take_over,
)
from feedrate.cache.table import MOST_TIERS, Located, Rows, Table, is_table, make_row, make_table
from feedrate.cache.views import nobody_looks
from feedrate.errors import UsageError
from feedrate.files.atomic import write_all
from feedrate.files.lock import lock_fd, unlock_fd
from feedrate.kernel import U8

_ALIGNMENT_BYTES = 64
_DISK_LEFT_FREE = 0.02  # of the file system: the disk is not ours alone


class OpenedCache:
    """A cache's files, open in this process.

    Attributes:
        paths: the files of the tiers, by names that hold in this process while the cache is open.
    """

    def __init__(self, name: str, cache: SampleCache, parent: OpenedCache | None = None) -> None:
        """`parent`: what a fork inherited."""
        self.process = os.getpid()
        self._samples, self._keep_bytes = cache.samples, cache.keep_bytes
        self._tiers, self._watch = cache.tiers, cache.watch
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._users = 0
        self.is_closed = False
        self._watcher: Watcher | None = None
        if parent is None:
            self._descriptors = join(name, self._make_files, self._is_ours)
        else:
            own = {what: take_over(number) for what, number in parent._descriptors.items()}
            self._descriptors = publish(name, own)
        self.table = Table(self._descriptors["table"], cache.samples)
        self._ram = next((number for number, tier in enumerate(cache.tiers) if tier.kind == "ram"), None)
        self._kept = _find_kept(cache.tiers)
        self._others_bytes: int | None = None
        top = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
        self.paths = tuple(f"{top}/{self._descriptors[str(tier)]}" for tier in range(len(cache.tiers)))

    def _make_files(self) -> Descriptors:
        made = {"table": make_table(self._samples)}
        try:
            for number, tier in enumerate(self._tiers):
                if tier.keep is None:
                    made[str(number)] = make_file(tier)
                else:
                    self._open_kept(made, number, tier)
        except BaseException:
            close_all(made)
            raise
        return made

    def _open_kept(self, made: Descriptors, number: int, tier: Tier) -> None:
        assert tier.folder is not None
        assert tier.keep is not None
        files, is_mine = open_kept(tier.folder, tier.keep)
        made |= {str(number): files["data"], "rows": files["rows"], "lock": files["lock"]}
        table = Table(made["table"], self._samples)
        rows = load_rows(files, self._samples, number)
        if len(rows):
            table.publish(rows)
        elif is_mine:  # what lies there is of no use to anybody
            os.ftruncate(files["data"], 0)
        counts, end = table.tiers[number], os.fstat(files["data"]).st_size
        counts["next"] = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        counts["reserved"] = int(rows["length"].sum())
        counts["is_full"] = 0 if is_mine else 1  # another job adds to it now
        del counts
        table.close()

    def _is_ours(self, found: Descriptors) -> bool:
        names = {"table", *(str(number) for number in range(len(self._tiers)))}
        names |= set() if _find_kept(self._tiers) is None else {"rows", "lock"}
        return set(found) == names and is_table(found["table"], self._samples)

    def put(self, number: int, views: Sequence[memoryview], source_bytes: int, mark: int) -> bool:
        with self._using():
            if self.table.holds(number):
                return True
            self._start_watcher()
            for tier in range(len(self._tiers)):
                if self._put(tier, number, views, source_bytes, mark):
                    if self._kept is not None and tier != self._kept:
                        self._put(self._kept, number, views, source_bytes, mark, is_for_later=True)
                    return True
            return False

    def _put(
        self,
        tier: int,
        number: int,
        views: Sequence[memoryview],
        source_bytes: int,
        mark: int,
        *,
        is_for_later: bool = False,
    ) -> bool:
        """`is_for_later`: the sample is nearer already; this is for the next job."""
        size = sum(view.nbytes for view in views)
        while not self._has_room(tier, size):
            if not self._make_room(tier, size):
                return False
        reserved = self._reserve(tier, size)
        if reserved is None:
            return False
        offset, shrinks = reserved
        try:
            at = offset
            for view in views:
                write_all(self._descriptors[str(tier)], view, at)
                at += view.nbytes
        except OSError:  # the disk is full, or broken: it takes nothing more
            with self._locked():
                self.table.tiers["is_full"][tier] = 1
            self._free(tier, offset, size)
            return False
        if self._tiers[tier].kind == "disk" and hasattr(os, "posix_fadvise"):
            # Begin to write at once: pages that wait for it count as the job's memory and cannot be dropped.
            os.posix_fadvise(self._descriptors[str(tier)], offset, size, os.POSIX_FADV_DONTNEED)
        crc32c = 0
        for view in views:
            crc32c = kernel.crc32c(view, crc32c)
        head = views[0].nbytes if len(views) > 1 else 0
        row = make_row(
            number, tier, offset, (head, size), source_bytes=source_bytes, mark=mark, crc32c=crc32c
        )
        with self._locked():
            is_late = tier == self._ram and int(self.table.totals["shrinks"][0]) != shrinks
            is_new = is_for_later or (not is_late and not self.table.holds(number))
            if is_new and not is_for_later:
                self.table.publish(row)
            if is_new and tier == self._kept:
                add_row(self._descriptors["rows"], row)
        if not is_new:
            self._free(tier, offset, size)
        return not is_late

    def has_room(self, size: int) -> bool:
        """Say whether a `put` of so many bytes would find room: a look, no promise."""
        return any(self._has_room(tier, size) for tier in range(len(self._tiers)))

    def _has_room(self, tier: int, size: int) -> bool:
        limit, counts = self._limit(tier), self.table.tiers[tier]
        if counts["is_full"] or (limit is not None and int(counts["reserved"]) + size > limit):
            return False
        if self._tiers[tier].kind == "ram":
            cached = int(self.table.tiers["source_bytes"].sum())
            keep = 0 if limit is not None else max(0, self._keep_bytes - cached)
            return self._watch.may_take(size, keep)
        room = os.fstatvfs(self._descriptors[str(tier)])
        return room.f_bavail * room.f_frsize - size >= room.f_blocks * room.f_frsize * _DISK_LEFT_FREE

    def _limit(self, tier: int) -> int | None:
        """Return what a tier may hold; what is kept for later jobs shares it with other caches there."""
        limit, folder, keep = self._tiers[tier].limit_bytes, self._tiers[tier].folder, self._tiers[tier].keep
        if limit is None or folder is None or keep is None:
            return limit
        if self._others_bytes is None:
            self._others_bytes = measure_others(folder, keep)
        return limit - self._others_bytes

    def _make_room(self, tier: int, size: int) -> bool:
        """Delete a cache of an earlier job that nobody uses; False: there is none, or it would not help."""
        limit, folder, keep = self._tiers[tier].limit_bytes, self._tiers[tier].folder, self._tiers[tier].keep
        if folder is None or keep is None or self.table.tiers["is_full"][tier]:
            return False
        held = int(self.table.tiers["reserved"][tier])
        if (limit is not None and held + size > limit) or not drop_oldest(folder, keep):
            return False
        self._others_bytes = None
        return True

    def _reserve(self, tier: int, size: int) -> tuple[int, int] | None:
        """Return a place, and how often memory had been given back by then; None: the tier is full."""
        with self._locked():
            limit, counts = self._limit(tier), self.table.tiers[tier]
            if limit is not None and int(counts["reserved"]) + size > limit:
                return None
            offset = int(counts["next"])
            counts["next"] = offset + -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            counts["reserved"] += size
            if tier == self._ram:
                self._watch.take(size)
            return offset, int(self.table.totals["shrinks"][0])

    def _free(self, tier: int, offset: int, size: int) -> None:
        """Give a place back to the system; nobody is given it again."""
        with self._locked():
            self.table.tiers["reserved"][tier] -= size
        punch_hole(self._descriptors[str(tier)], offset, size)

    def locate(self, numbers: kernel.I64) -> Located:
        """Return where samples are: which bytes of which of `paths`."""
        return self.table.locate(numbers)

    def read(self, row: Rows) -> memoryview | None:
        """Return the bytes of a located row, checked, as a copy that is the caller's; None: it is gone."""
        data = self._read(row)
        if data is None:
            self.discard(row)
        return data

    def _read(self, row: Rows) -> memoryview | None:
        with self._using():
            data, offset, done = np.empty(int(row["length"]), np.uint8).data, int(row["offset"]), 0
            try:
                while done < len(data):
                    got = os.preadv(self._descriptors[str(row["tier"])], [data[done:]], offset + done)
                    if not got:
                        return None
                    done += got
            except OSError:
                return None
            return data if kernel.crc32c(data) == int(row["crc32c"]) else None

    def discard(self, row: Rows) -> bool:
        """Forget a sample whose bytes are not what its row (of `locate`) says; False: it was gone already."""
        with self._using(), self._locked():
            if not self.table.is_same(row):
                return False
            self.table.clear(np.atleast_1d(row))
            self.table.totals["damaged"][0] += 1
            return True

    def relieve(self) -> int:
        """Give memory back if the job runs short of it; returns how much. A thread does this by itself."""
        with self._using():
            if self._ram is None or not self.table.tiers["held"][self._ram] or not self._watch.must_return():
                return 0
            with self._locked():
                # Another process may just have done it.
                wanted = self._watch.must_return()
                return self._shrink(self._ram, wanted) if wanted else 0

    def _shrink(self, tier: int, wanted_bytes: int) -> int:
        rows = self.table.select(tier)[::-1]
        sizes = np.cumsum(rows["length"])
        gone = rows[: int(np.searchsorted(sizes, wanted_bytes)) + 1]
        if not len(gone):
            return 0
        start = int(gone["offset"][-1])
        freed = self._give_back(tier, gone, start, int(self.table.tiers["next"][tier]))
        if not freed:  # somebody looks at some of them: one by one, then
            for row in rows:
                if freed >= wanted_bytes:
                    break
                start = int(row["offset"])
                freed += self._give_back(tier, np.atleast_1d(row), start, start + int(row["length"]))
        if freed:
            self.table.totals["shrinks"][0] += 1  # who is just writing a sample must not publish it
            self.table.totals["returned_bytes"][0] += freed
            self.table.tiers["reserved"][tier] -= freed
        return freed

    def _give_back(self, tier: int, rows: Rows, start: int, stop: int) -> int:
        """Forget the samples in a range of a file and give that back; 0: a view shows some of it."""
        descriptor = self._descriptors[str(tier)]
        with nobody_looks(descriptor, start, stop - start) as is_free:
            if not is_free:
                return 0
            self.table.clear(rows)
            punch_hole(descriptor, start, stop - start)
        return int(rows["length"].sum())

    @property
    def damaged(self) -> int:
        """How many samples were no longer what was put here; they came from the source again."""
        return int(self.table.totals["damaged"][0])

    @property
    def returned_bytes(self) -> int:
        """How much memory was given back because the job ran short of it."""
        return int(self.table.totals["returned_bytes"][0])

    @property
    def counted(self) -> tuple[int, int]:
        """Hits and misses that were counted."""
        return int(self.table.totals["hits"][0]), int(self.table.totals["misses"][0])

    def count(self, *, hits: int, misses: int) -> None:
        """Add to what all processes count together."""
        with self._using(), self._locked():
            self.table.totals["hits"][0] += hits
            self.table.totals["misses"][0] += misses

    def tier_stats(self, numbers: kernel.I64 | None = None) -> tuple[TierStats, ...]:
        """Return what is in each tier: of some samples, or of all."""
        with self._using():
            located = None if numbers is None else self.table.locate(numbers)
            found = []
            for number, tier in enumerate(self._tiers):
                counts = self.table.tiers[number]
                samples, size, source = (int(counts[name]) for name in ("held", "bytes", "source_bytes"))
                if located is not None:
                    rows = located.rows[located.found & (located.rows["tier"] == number)]
                    samples, size = len(rows), int(rows["length"].sum())
                    source = int(rows["source_bytes"].sum())
                found.append(TierStats(tier.kind, samples, size, source, tier.limit_bytes))
            return tuple(found)

    def _start_watcher(self) -> None:
        if self._ram is not None and self._watcher is None:
            with self._lock:
                if self._watcher is None:
                    self._watcher = Watcher(self.relieve, self._watch)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            table = self._descriptors["table"]
            lock_fd(table)
            try:
                yield
            finally:
                unlock_fd(table)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        with self._idle:
            if self.is_closed:
                raise UsageError("this cache is closed; make a new one")
            self._users += 1
        try:
            yield
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Leave; the files go when no process has them open. May be called twice; a fork's does nothing."""
        if os.getpid() != self.process or self.is_closed:
            return
        if self._watcher is not None:
            self._watcher.stop()
        with self._idle:
            self.is_closed = True
            while self._users:
                self._idle.wait()
        if self._kept is not None:
            with contextlib.suppress(OSError):
                os.utime(self._descriptors["lock"])  # when it was last used
        self.table.close()
        close_all(self._descriptors)


def _find_kept(tiers: Sequence[Tier]) -> int | None:
    return next((number for number, tier in enumerate(tiers) if tier.keep is not None), None)


Buffer = bytes | bytearray | memoryview | U8


class SampleCache:
    """Samples by number, 0 to `samples - 1`. Safe to use from any thread, and after a fork.

    Pickles as its arguments: another process of the job finds the same cache, while this one has it open.

    Args:
        key: what the samples are: caches of one job with one key and the same tiers are one cache.
        samples: how many there can be.
        tiers: near to far, as `parse_tiers` gives them; a sample goes to the first one that has room.
        keep_bytes: page cache that memory without a limit leaves alone: what the samples are made of, less
            that of those which are here.
    """

    def __init__(self, key: str, samples: int, tiers: Sequence[Tier], *, keep_bytes: int = 0) -> None:
        if not 1 <= len(tiers) <= MOST_TIERS or samples < 0:
            raise UsageError(f"a cache has 1 to {MOST_TIERS} tiers and 0 or more samples")
        self.key, self.samples, self.tiers, self.keep_bytes = key, samples, tuple(tiers), keep_bytes
        self.watch = MemoryWatch()
        self._lock = threading.Lock()
        self._opened: OpenedCache | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        _ = self.opened
        _CACHES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(SampleCache, keep_bytes=self.keep_bytes)
        return make, (self.key, self.samples, self.tiers)

    def put(self, number: int, *parts: Buffer, source_bytes: int = 0, mark: int = 0) -> bool:
        """Keep a sample; False: no tier has room for it.

        Args:
            parts: its bytes, one behind the other; the first of several is the head (see `Located`).
            source_bytes: how many bytes it was made of, for `tier_stats`.
            mark: a number of the owner's.
        """
        views = [memoryview(part).cast("B") for part in parts]  # type: ignore[arg-type]
        return self.opened.put(self._check(number), views, source_bytes, mark)

    def get(self, number: int) -> memoryview | None:
        """Return a sample's bytes, as `OpenedCache.read` does; None: it is not here."""
        opened = self.opened
        located = opened.locate(np.array([self._check(number)], np.int64))
        return opened.read(located.rows[0]) if located.found[0] else None

    def close(self) -> None:
        """Leave the cache: it goes with its last process. May be called twice."""
        if self._finalizer is not None:
            self._finalizer()

    def _check(self, number: int) -> int:
        if not 0 <= number < self.samples:
            raise IndexError(f"sample {number} of a cache that has {self.samples}")
        return int(number)

    @property
    def opened(self) -> OpenedCache:
        """What this process has open, where all else can be asked for; a fork opens it for itself."""
        opened, process = self._opened, os.getpid()
        if opened is not None and opened.is_closed:
            raise UsageError("this cache is closed; make a new one")
        if opened is not None and opened.process == process:
            return opened
        with self._lock:
            opened = self._opened
            if opened is None or opened.process != process:
                if self._finalizer is not None:
                    self._finalizer.detach()
                opened = OpenedCache(self._name(), self, opened)
                self._opened, self._finalizer = opened, weakref.finalize(self, opened.close)
            return opened

    def _name(self) -> str:
        words = repr((name_job(), self.key, self.samples, self.tiers))
        return hashlib.sha256(words.encode()).hexdigest()[:24]


_CACHES: weakref.WeakSet[SampleCache] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a fork: threads of the parent that held locks are not there to let go."""
    for cache in list(_CACHES):
        cache._lock, cache.watch = threading.Lock(), cache.watch.renew()


os.register_at_fork(after_in_child=_renew_locks)
