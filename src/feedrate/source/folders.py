# SPDX-License-Identifier: Apache-2.0
"""Class folders, and one flat folder of images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import file_suffix, has_image_suffix, printable
from feedrate.results import Rejection
from feedrate.source.record import Reader, Record, Stored
from feedrate.source.remote import walk
from feedrate.units import format_count

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
        classes: list[bytes] = []
        self._classes = classes
        others: Counter[str] = Counter()
        loose: list[bytes] = []
        odd_images = deep_images = 0
        for found in self._walk:
            path = found.path
            if not has_image_suffix(path):
                others[file_suffix(path)] += found.odd is None
                continue
            if found.odd is not None:
                odd_images += 1
                yield Rejection(printable(path), "image", found.odd)
                continue
            image = Stored(path, found.size_bytes, path, 0, found.mtime_ns)
            folder, slash, below = path.partition(b"/")
            if not slash:
                loose.append(path)
                yield Record(path, {"image": image})
                continue
            if loose:
                raise SourceError(
                    f"{self.root} has class folders, but {format_count(len(loose), 'image')} beside them, "
                    f"without a label: '{printable(loose[0])}'",
                    hint="move them into class folders, or give all labels in a table: --labels FILE",
                )
            if not classes or classes[-1] != folder:
                classes.append(folder)
            deep_images += b"/" in below
            # Folders come sorted, so the number of a class is known when its first image is.
            yield Record(path, {"image": image, "label": len(classes) - 1})
        self.ignored = dict(sorted((+others).items()))
        if not loose and not classes and not odd_images:
            raise SourceError(f"no images in {self.root}", hint=_what_is_there(others))
        if deep_images:
            self._refuse_splits()
        for folder, reason in sorted(self._walk.unlisted.items()):
            yield Rejection(printable(folder), "image", reason)

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
                hint=f"pack each by itself: feedrate pack {first} PACK-{names[0]}",
            )


def _what_is_there(others: Counter[str]) -> str:
    if not others:
        return "it holds no files at all"
    counts = ", ".join(f"{count:,} with {suffix or 'no suffix'}" for suffix, count in others.most_common(4))
    return f"it holds other files: {counts}"
