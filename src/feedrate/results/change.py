# SPDX-License-Identifier: Apache-2.0
"""What `append`, `add-column`, `split`, `merge`, and `index` of a pack that is there return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.results.progress import Rejection


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """`feedrate add-column`.

    Attributes:
        defaults: samples that the table has no value for, and that got the default.
        unused: rows of the table that are about no sample of the pack.
        class_counts: of a column of classes: how many samples each has.
        replaced: there was a column or field of this name before.
    """

    pack: str
    table: str
    name: str
    kind: str
    dtype: str | None
    samples: int
    defaults: int
    unused: int
    class_counts: Mapping[str, int]
    size_bytes: int
    replaced: bool


@dataclass(frozen=True, slots=True)
class ClassShare:
    """Where whole groups leave a split least even: a class's share of a part, and of all samples.

    `absent`: part -> how many classes have no sample in it; only parts that lack some.
    """

    part: str
    name: str
    share: float
    share_of_all: float
    absent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """`feedrate split`.

    Attributes:
        parts: name -> samples in it.
        groups: name -> groups in it; empty: samples were split one by one.
        class_counts: name -> class -> samples, where the pack has labels that are classes.
        least_even: of groups that were stratified; None: they were not.
    """

    pack: str
    name: str
    samples: int
    parts: Mapping[str, int]
    groups: Mapping[str, int]
    class_counts: Mapping[str, Mapping[str, int]]
    size_bytes: int
    replaced: bool
    least_even: ClassShare | None = None


@dataclass(frozen=True, slots=True)
class MergedPack:
    """One of the packs that were merged: `linked` or, where that cannot be, referred to by its path."""

    pack: str
    samples: int
    shards: int
    prefix: str
    linked: bool


@dataclass(frozen=True, slots=True)
class MergeResult:
    """`feedrate merge`.

    Attributes:
        size_bytes: of the shards and their index; `new_bytes` of them were written.
        unassigned: columns of classes that not all of the packs had, such as a split.
    """

    target: str
    packs: tuple[MergedPack, ...]
    samples: int
    classes: int | None
    shards: int
    size_bytes: int
    new_bytes: int
    unassigned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendResult:
    """`feedrate append`.

    Attributes:
        skipped: files that the pack has already, and that were to be passed over.
        new_classes: names that came to the class list, at its end.
        rejected: left out, each with its reason; also in rejected.jsonl, where samples were added.
        unassigned: columns in which the new samples have no value yet, such as a split.
    """

    source: str
    pack: str
    samples: int
    added: int
    skipped: int
    shards: int
    size_bytes: int
    seconds: float
    new_classes: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    unassigned: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesResult:
    """`feedrate index PACK --entries N`.

    Attributes:
        entries: bytes of JPEG data from one entry point to the next.
        entries_before: what its parts had before; none where it has no shards.
        changed_parts: how many of the index's `parts` were written anew.
        shard_bytes: what holds the samples.
        old_parts: index parts that were replaced, now or earlier, and are still there.
        removed_parts: such parts that were deleted.
    """

    pack: str
    entries: int
    entries_before: tuple[int, ...]
    samples: int
    parts: int
    changed_parts: int
    index_bytes: int
    index_bytes_before: int
    shard_bytes: int
    old_parts: tuple[str, ...]
    removed_parts: tuple[str, ...]
    seconds: float
