# SPDX-License-Identifier: Apache-2.0
"""What `stage` and `scratch` return: copies on scratch, who uses them, and how one came there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A process that uses a copy now, as it described itself. `since`: seconds since 1970."""

    pid: int
    user: str
    node: str
    job: str  # of the scheduler; "": none
    command: str
    since: float


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """One copy on scratch at one moment.

    Attributes:
        path: what a loader is given.
        folder: what holds the copy, its marker and its leases.
        kind: "pack" or "files".
        landed_files, landed_bytes: of `files` and `size_bytes`: what is whole and in place.
        partial_bytes: of files that are still on their way.
        created, used: seconds since 1970; `used`: when a lease was taken or given back last.
        keep_s: how long it stays when nobody uses it; None: until it is deleted.
        is_being_written: a process copies into it now.
        is_trusted: this user may read it as if it were the source.
        problem: why nothing else is known of it; "": no problem.
    """

    path: str
    folder: str
    source: str
    kind: str
    owner: str
    uid: int
    files: int
    size_bytes: int
    landed_files: int
    landed_bytes: int
    partial_bytes: int
    created: float
    used: float
    keep_s: float | None
    leases: tuple[LeaseInfo, ...]
    is_being_written: bool
    is_trusted: bool
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        return not self.problem and self.landed_files == self.files


@dataclass(frozen=True, slots=True)
class StageResult:
    """`feedrate stage`, and `feedrate.stage` in Python, where it can be given as a path.

    Attributes:
        path: the copy: what to give to a loader.
        scratch, why: the folder that was chosen, and why that one.
        copied_files, copied_bytes: brought by this process; the rest was there, or another user brought it.
        resumed_bytes: of files that an earlier, interrupted run had begun.
        is_joined: another process was copying, and this one waited for it.
        is_public: all users of the node may read it, as they may read the source.
    """

    source: str
    path: str
    kind: str
    node: str
    scratch: str
    why: str
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    resumed_bytes: int
    is_joined: bool
    is_public: bool
    keep_s: float | None
    seconds: float

    def __fspath__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """What the registry in the home folder knows of a copy; `keep_s`: None: until it is deleted."""

    node: str
    scratch: str
    folder: str
    path: str
    source: str
    size_bytes: int
    created: float
    keep_s: float | None


@dataclass(frozen=True, slots=True)
class Everywhere:
    """`feedrate scratch ls --everywhere`. `node`: this one, where all was looked for just now."""

    node: str
    copies: tuple[StagedCopy, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a process that ended left on scratch, and `gc` takes away. `what`: in words."""

    path: str
    what: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What `feedrate.cached(..., key=...)` keeps for the next job, or `feedrate run` for the next run.

    Attributes:
        samples: those of which something is kept.
        size_bytes: what it takes on the disk.
        used: when a job opened it last, in seconds since 1970.
        users: processes that have it open now.
        is_being_filled: one of them adds samples.
    """

    path: str
    size_bytes: int
    samples: int
    used: float
    users: tuple[int, ...]
    is_being_filled: bool


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """One scratch folder of this node: copies of all users; caches and leftovers of this one."""

    scratch: str
    why: str
    copies: tuple[CopyInfo, ...]
    leftovers: tuple[Leftover, ...]
    free_bytes: int
    caches: tuple[CacheInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ScratchListing:
    """`feedrate scratch ls`."""

    node: str
    folders: tuple[ScratchFolder, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened to a copy, a cache or a leftover, and why: a clause that ends a sentence.

    `is_only_copy`: its source was not found as it was, and that is all that speaks against deleting it.
    """

    path: str
    source: str
    size_bytes: int
    why: str
    is_only_copy: bool = False


@dataclass(frozen=True, slots=True)
class ClearResult:
    """`feedrate scratch rm` and `gc`.

    Attributes:
        removed: deleted; with `is_trial`, what would be.
        kept: asked for, expired, unfinished or over the limit, and yet not deleted.
        restored: half on their way out, when their source was found missing; back under their names.
        used_bytes: of this user's copies that are there now.
    """

    scratches: tuple[str, ...]
    removed: tuple[Verdict, ...]
    kept: tuple[Verdict, ...]
    restored: tuple[Verdict, ...]
    used_bytes: int
    limit_bytes: int | None
    is_trial: bool = False
