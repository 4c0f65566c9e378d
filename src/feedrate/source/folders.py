# SPDX-License-Identifier: Apache-2.0
"""Class folders, and one flat folder of images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import numpy as np

from feedrate.errors import SourceError, StorageError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import file_suffix, has_image_suffix, printable
from feedrate.kernel import I64, Entry
from feedrate.results.progress import Rejection
from feedrate.source.record import ImageFiles, Reader, Record, describe_others
from feedrate.source.remote import walk
from feedrate.source.walk import Inside
from feedrate.units import format_count, typed

STRETCH_FILES = 1 << 14  # whole chunks of a listing
_OF_THE_DISK = b"lost+found"  # at the top of a file system, for root alone
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"))


class ImageFolders(Reader):
    """A folder per class, its images at any depth; or images in one folder, which then have no label.

    Samples come in torchvision's order, so that their numbers are ImageFolder's indices.

    Raises, when iterated:
        SourceError: it holds no images, or not in a way that can be packed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.ignored: dict[str, int] = {}
        self._walk = walk(root)
        self._classes: list[bytes] = []

    def __iter__(self) -> Iterator[Record | Rejection]:
        for block in self.blocks():
            if isinstance(block, ImageFiles):
                yield from block.records()
            else:
                yield block

    def blocks(self) -> Iterator[Record | Rejection | ImageFiles]:
        self._classes = []
        others: Counter[str] = Counter()
        first_loose = b""
        images = loose_images = deep_images = 0
        for folder, inside in self._walk.folders():
            for block in self._sort_out(folder, inside, others):
                images += 1 if isinstance(block, Rejection) else len(block)
                if isinstance(block, ImageFiles):
                    if not folder:
                        first_loose = first_loose or block.paths[0]
                        loose_images += len(block)
                    elif loose_images:
                        raise self._refuse_loose(first_loose, loose_images)
                    deep_images += b"/" in folder
                yield block
        self.ignored = dict(sorted(others.items()))
        self._refuse_unlisted()
        if not images:
            raise SourceError(f"no images in {self.root}", hint=describe_others(others))
        if deep_images:
            self._refuse_splits()

    def _sort_out(
        self, folder: bytes, inside: Inside, others: Counter[str]
    ) -> Iterator[Rejection | ImageFiles]:
        start = folder + b"/" if folder else b""
        is_image = inside.kinds == Entry.WANTED
        odd = []
        for index in np.flatnonzero(~is_image).tolist():
            name, kind = inside.names[index], int(inside.kinds[index])
            if kind == Entry.OTHER:
                others[file_suffix(name)] += 1
            elif has_image_suffix(name):
                odd.append(index)
        # What cannot be read stands between those that can, since it counts where samples are numbered.
        first = 0
        for index in [*odd, len(is_image)]:
            chosen = np.flatnonzero(is_image[first:index]) + first
            for some in _stretches(chosen):
                paths = inside.names.take(some, before=start)
                yield ImageFiles(paths, inside.sizes[some], inside.times_ns[some], self._number_of(folder))
            if index < len(is_image):
                path, size_bytes = start + inside.names[index], int(inside.sizes[index])
                reason = self._walk.explain(path, int(inside.kinds[index]), size_bytes)
                yield Rejection(printable(path), "image", reason or "cannot be read")
            first = index + 1

    def _number_of(self, folder: bytes) -> int | None:
        """Return the label of a folder with images: folders come sorted, so the next class is a new one."""
        name = folder.partition(b"/")[0]
        if not name:
            return None
        if not self._classes or self._classes[-1] != name:
            self._classes.append(name)
        return len(self._classes) - 1

    def _refuse_unlisted(self) -> None:
        """A folder that nobody may look into may be a class: a dataset comes whole or not at all."""
        unlisted = {path: why for path, why in self._walk.unlisted.items() if path != _OF_THE_DISK}
        if unlisted:
            first = min(unlisted)
            more = f", and {format_count(len(unlisted) - 1, 'other folder')}" if len(unlisted) > 1 else ""
            raise StorageError(
                f"{os.path.join(self.root, printable(first))}: {unlisted[first]}{more}",
                hint="let yourself read it, or move it out of the dataset",
            )

    def _refuse_loose(self, first: bytes, count: int) -> SourceError:
        return SourceError(
            f"{self.root} has class folders, but {format_count(count, 'image')} beside them, "
            f"without a label: '{printable(first)}'",
            hint="move them into class folders, or give all labels in a table: --labels FILE",
        )

    def fields(self) -> tuple[Field, ...]:
        image = Field("image", Kind.IMAGE)
        if not self._classes:
            return (image,)
        classes = tuple(printable(folder) for folder in self._classes)
        return image, Field("label", Kind.NUMBER, dtype="int64", classes=classes)

    def _refuse_splits(self) -> None:
        names = [printable(folder) for folder in self._classes]
        if all(name.lower() in _SPLITS for name in names):
            first = os.path.join(self.root, names[0])
            raise SourceError(
                f"{self.root} holds the parts of a dataset ({', '.join(names)}), not classes",
                hint=f"pack each by itself: feedrate pack {typed(first)} PACK-{names[0]}",
            )


def _stretches(indices: I64) -> Iterator[I64]:
    """Cut a large folder into stretches, none of them short: what is held at a time must not grow."""
    first = 0
    while first < len(indices):
        is_last = len(indices) - first < 2 * STRETCH_FILES
        stop = len(indices) if is_last else first + STRETCH_FILES
        yield indices[first:stop]
        first = stop
