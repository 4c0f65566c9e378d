# SPDX-License-Identifier: Apache-2.0
"""How many images are below a folder, in seconds: counted where the time is enough, else estimated.

Folders are listed level by level, each level in random order and by several threads; names are read, no file
is asked for. What time leaves unlisted is as what was listed, within the error of such a sample. A single
folder too large to be listed tells by its own size how many names it may have, within a factor.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from feedrate.calls import map_in_time
from feedrate.errors import StorageError
from feedrate.figures import Figure
from feedrate.files.tree import FolderSample, sample_folder
from feedrate.format.fields import IMAGE_SUFFIXES
from feedrate.source.names import SPLIT_NAMES
from feedrate.units import format_count, format_seconds

AT_ONCE = 16
_ALONE_S = 0.3  # per level: folders listed one after the other, which tells how long all would take
_LATE_S = 0.7  # folders that are begun may end: else large ones would be missing more often
_LEAST_S = 0.2
_HANG_S = 10.0
_MOST_NAMES, _FEWEST_NAMES = 4096, 64  # that are kept, of all folders and of each
_OF_THE_DISK = "lost+found"  # at the top of a file system, for root alone
# Two standard errors, of few folders more: Student's distribution, by degrees of freedom.
_STUDENT = (12.7, 4.3, 3.2, 2.8, 2.6, 2.5, 2.4, 2.3)


class Total(NamedTuple):
    """A number that a sample tells: its variance, and the factor of its standard error."""

    value: float
    variance: float = 0.0
    student: float = 2.0

    def figure(self, least: float, note: str = "") -> Figure:
        half = self.student * math.sqrt(self.variance)
        value = max(self.value, least)
        return Figure(value, max(value - half, least), value + half, note=note)


def estimate_total(counts: Sequence[float], folders: Total, unsure: float = 0.0) -> Total:
    """Return what all folders of a level hold, from those that were listed.

    Args:
        folders: how many the level has, itself perhaps estimated.
        unsure: variance of the counts themselves, summed: of folders that were not listed to their end.
    """
    listed = len(counts)
    if not listed:
        return Total(0.0, folders.variance, folders.student)
    mean = math.fsum(counts) / listed
    missing = max(1 - listed / folders.value, 0.0) if folders.value else 0.0
    # Of a single folder nothing tells how much others differ: as much as it holds.
    spread = math.fsum((c - mean) ** 2 for c in counts) / (listed - 1) if listed > 1 else mean**2
    scale = folders.value / listed
    variance = folders.value**2 * missing * spread / listed + mean**2 * folders.variance + scale**2 * unsure
    freedom = max(listed - 1, 1)
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2 + 2.4 / freedom
    return Total(folders.value * mean, variance, max(student if missing else 2.0, folders.student))


def estimate_entries(found: FolderSample) -> Figure:
    """Return how many entries a folder has that was not listed to its end."""
    seen = found.entries
    if found.is_whole or not seen:
        return Figure.exactly(seen)
    # Blocks of names: densely filled by XFS, half to three quarters by ext4.
    dense = found.size_bytes / (found.name_bytes / seen + 12)
    is_told = dense > seen and not found.size_bytes % 512
    ends = (0.4, 0.75, 1.05) if is_told else (1.0, 2.0, 10.0)
    low, value, high = (max(end * (dense if is_told else seen), seen) for end in ends)
    return Figure(value, low, high)


@dataclass(slots=True)
class TreeCount:
    """What is below a folder.

    Attributes:
        images, others: files; `folders` counts the top as well.
        suffixes: of the images that were seen; `other_suffixes`: of other files.
        paths: of images, drawn at random; `other_paths`: of other files that were seen.
        list_s: what listing all of it takes, one folder after the other.
        parts: of a dataset whose parts have class folders each (`train`, `val`): their images.
        unlisted: folders that could not be listed, and why.
    """

    images: Figure
    others: Figure
    folders: Figure
    suffixes: Counter[str]
    other_suffixes: Counter[str]
    paths: list[str]
    other_paths: list[str]
    list_s: Figure
    is_whole: bool
    how: str
    unlisted: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Figure] = field(default_factory=dict)


def count_tree(root: str, *, seconds: float) -> TreeCount:
    """Count for at most so many seconds, and a moment.

    Raises:
        StorageError: the folder cannot be listed, or its file system does not answer.
    """
    began = time.monotonic()
    until = began + seconds

    def look(folder: tuple[str, tuple[tuple[int, int], ...]], late_s: float = _LATE_S) -> FolderSample:
        path, above = folder
        return sample_folder(path, IMAGE_SUFFIXES, keep=keep, until=until + late_s, above=above)

    keep = _MOST_NAMES
    top = look((root, ()), late_s=0.0)
    if top.error:
        raise StorageError(
            f"cannot list {root}: {top.error}", hint="let yourself read it: chmod u+rx, or ask who owns it"
        )
    if _OF_THE_DISK in top.folders:
        top.folders.remove(_OF_THE_DISK)
    levels = [_Level(Total(1), 1, [top], top.took_s)]
    while known := list(levels[-1].list_folders()):
        random.shuffle(known)
        keep = min(max(4 * _MOST_NAMES // len(known), _FEWEST_NAMES), _MOST_NAMES)
        waiting, listed = iter(known), list[FolderSample]()
        until = max(until, time.monotonic() + _LEAST_S)  # some folders of each level have to be seen
        alone_s = min(_ALONE_S, until - time.monotonic())
        listed += map_in_time(look, waiting, threads=1, seconds=alone_s, hang_s=_HANG_S)
        each_s = sum(one.took_s for one in listed) / max(len(listed), 1)
        for share in (0.5, 1.0):  # half of the time is for what is below, if there is anything
            left_s = max(until - time.monotonic(), 0.0) * share
            if share < 1 or not any(one.folders for one in listed):
                listed += map_in_time(look, waiting, threads=AT_ONCE, seconds=left_s, hang_s=_HANG_S)
        if not listed:
            raise StorageError(f"{known[0][0]} did not answer for {_HANG_S:.0f} s: its file system hangs")
        levels.append(_Level(levels[-1].estimate_folders(), len(known), listed, each_s))
    return _sum_up(root, levels, time.monotonic() - began)


class _Level:
    """Folders of one depth: how many there are, how many are known by name, and those that were listed."""

    def __init__(self, folders: Total, known: int, listed: list[FolderSample], each_s: float) -> None:
        self.each_s = each_s
        self.unlisted = {one.path: one.error for one in listed if one.error}
        self.listed = [one for one in listed if not one.error]
        # Folders that nobody may look into hold nothing that could be loaded.
        share = len(self.listed) / len(listed)
        self.folders = Total(folders.value * share, folders.variance * share**2, folders.student)
        self.is_whole = len(listed) == known and all(one.is_whole for one in self.listed)
        wholes = [estimate_entries(one) for one in self.listed]
        self.scales = [
            whole.value / max(one.entries, 1) for one, whole in zip(self.listed, wholes, strict=True)
        ]
        errors = [(whole.high - whole.low) / 4 for whole in wholes]
        self.unsure = math.fsum(error**2 for error in errors)

    def list_folders(self) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
        return ((os.path.join(one.path, name), one.above) for one in self.listed for name in one.folders)

    def estimate(self, counts: Sequence[int], unsure: float) -> Total:
        return estimate_total(
            [count * scale for count, scale in zip(counts, self.scales, strict=True)], self.folders, unsure
        )

    def estimate_folders(self) -> Total:
        return self.estimate([len(one.folders) for one in self.listed], 0.0)

    def estimate_files(self, *, wanted: bool) -> Total:
        counts = [(one.wanted if wanted else one.others).total() for one in self.listed]
        return self.estimate(counts, self.unsure if any(counts) else 0.0)


def _sum_up(root: str, levels: list[_Level], took_s: float) -> TreeCount:
    listed = [one for level in levels for one in level.listed]
    files = [(level, level.estimate_files(wanted=True)) for level in levels]
    others = [level.estimate_files(wanted=False) for level in levels]
    whole = all(level.is_whole for level in levels)
    images = _add([total for _, total in files])
    folders = _add([level.folders for level in levels])
    seen = sum(one.wanted.total() for one in listed)
    # What is listed one by one: the folders of a level alike; a single folder that was cut, by its entries.
    list_s = math.fsum(level.folders.value * level.each_s * _mean(level.scales) for level in levels)
    some = f"{format_count(len(listed), 'folder')} of about {folders.value:,.0f} listed"
    cut = [one for one in listed if not one.is_whole]
    every = f"all {len(listed):,} folders listed" if len(listed) > 1 else "the folder listed"
    how = every if whole else some
    if len(cut) == 1 and len(listed) == 1:
        how = f"{cut[0].entries:,} of about {images.value:,.0f} names in {root} read"
    elif cut:
        how += f", {len(cut)} of them not to the end"
    return TreeCount(
        images=images.figure(seen, how),
        others=_add(others).figure(sum(one.others.total() for one in listed), how),
        folders=folders.figure(len(listed), how),
        suffixes=sum((one.wanted for one in listed), Counter[str]()),
        other_suffixes=sum((one.others for one in listed), Counter[str]()),
        paths=_draw_paths(files),
        other_paths=[os.path.join(one.path, name) for one in listed for name in one.kept_others],
        list_s=Figure(list_s, list_s / 1.3, list_s * 1.3, note=how),
        is_whole=whole,
        how=f"{how} in {format_seconds(took_s)}",
        unlisted={path: why for level in levels for path, why in level.unlisted.items()},
        parts=_count_parts(root, levels, images.figure(seen, how)),
    )


def _count_parts(root: str, levels: Sequence[_Level], images: Figure) -> dict[str, Figure]:
    """Return the images of each part, where `feedrate pack` would make parts of these folders."""
    counts: dict[str, float] = {}
    for level in levels:
        each = level.folders.value / max(len(level.listed), 1)
        for one, scale in zip(level.listed, level.scales, strict=True):
            name = os.path.relpath(one.path, root).partition("/")[0]
            counts[name] = counts.get(name, 0.0) + one.wanted.total() * scale * each
    counts = {name: count for name, count in sorted(counts.items()) if count}
    has_classes = any(one.folders for level in levels[1:2] for one in level.listed)
    if len(counts) < 2 or not has_classes or any(name.lower() not in SPLIT_NAMES for name in counts):
        return {}
    whole = math.fsum(counts.values())
    return {name: images.scaled(count / whole) for name, count in counts.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 1.0


def _add(totals: Sequence[Total]) -> Total:
    parts = [total for total in totals if total.value]
    return Total(
        math.fsum(one.value for one in parts),
        math.fsum(one.variance for one in parts),
        max((one.student for one in parts if one.variance), default=2.0),
    )


def _draw_paths(files: Sequence[tuple[_Level, Total]]) -> list[str]:
    """Draw from the names that were kept, so that every image of the tree is drawn as likely as any other."""
    total = math.fsum(found.value for _, found in files)
    drawn: list[str] = []
    for level, found in files:
        weights = [one.wanted.total() * scale for one, scale in zip(level.listed, level.scales, strict=True)]
        wanted = round(_MOST_NAMES * found.value / total) if total else 0
        if found.value <= wanted and level.is_whole:
            drawn += [os.path.join(one.path, name) for one in level.listed for name in one.kept]
            continue
        names = [random.sample(one.kept, len(one.kept)) for one in level.listed]
        for number in random.choices(range(len(names)), weights, k=wanted):
            if not names[number]:  # to go on with the others would be unfair to this large one
                break
            drawn.append(os.path.join(level.listed[number].path, names[number].pop()))
    random.shuffle(drawn)
    return drawn
