# SPDX-License-Identifier: Apache-2.0
"""Class folders, and one flat folder of images, in the order of torchvision's ImageFolder.

The names of two folders are held at a time, one of them read ahead (and the names of the folders inside one
class), never all files. Folders behind a URL are walked as those of this machine are.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from feedrate.calls import one_ahead
from feedrate.errors import NotFound, SourceError, StorageError, suggest_path
from feedrate.format.fields import IMAGE_SUFFIXES, Field, Kind, file_suffix, has_image_suffix
from feedrate.format.index import ByteStrings
from feedrate.kernel import I64, U8, Entry, FolderList, list_folder
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, is_url
from feedrate.source.names import SPLIT_NAMES
from feedrate.source.record import FileRange, ImageFiles, Reader, Record, Value, describe_others, image_fields
from feedrate.units import format_count, printable, shell_quote

BLOCK_FILES = 1 << 14  # whole chunks of a listing
_OF_THE_DISK = b"lost+found"  # at the top of a file system, for root alone
Above = frozenset[tuple[int, int]]  # the folders that one is in, by device and inode
Folder = tuple[bytes, Above]  # its path


def open_folders(root: str) -> ImageFolders | SplitFolders:
    """Return the reader of a folder: of classes, of images, or of parts that have classes in them."""
    _, top = next(walk(root).folders())
    names = [os.path.basename(os.fsdecode(path)) for path, _ in top.folders if path != _OF_THE_DISK]
    splits = [name for name in names if name.lower() in SPLIT_NAMES]
    if not splits or (top.kinds == Entry.WANTED).any():
        return ImageFolders(root)
    parts: dict[str, list[str]] = {}
    for name in sorted(splits):
        _, inside = next(walk(os.path.join(root, name)).folders())
        parts[name] = [printable(path) for path, _ in inside.folders]
    # Folders without images, as of annotations, are neither parts nor classes.
    others = [name for name in names if name not in splits and has_images(os.path.join(root, name))]
    if others:
        _refuse_beside(root, parts, others[0])
        return ImageFolders(root)
    # Images straight in train/ and test/: then these are the classes, odd as their names are.
    return SplitFolders(root, parts) if any(parts.values()) else ImageFolders(root)


def _refuse_beside(root: str, parts: dict[str, list[str]], other: str) -> None:
    """Refuse parts of a dataset beside a folder that is none: as classes, they would be wrong labels.

    A class may be called 'train', so it takes two such folders with the same class folders in both.
    """
    counts = Counter(name for classes in parts.values() for name in classes)
    if any(count > 1 for count in counts.values()):
        raise SourceError(
            f"{root} holds the parts of a dataset ({', '.join(parts)}), and '{other}' beside them, "
            "which has images, too",
            hint=f"move '{other}' elsewhere, or pack each part by itself: "
            f"feedrate pack {shell_quote(os.path.join(root, next(iter(parts))))} PACK",
        )


def has_images(folder: str) -> bool:
    """Return whether there is an image in a folder, at any depth."""
    return any((inside.kinds == Entry.WANTED).any() for _, inside in walk(folder).folders())


def _cut_blocks(indices: I64) -> Iterator[I64]:
    """Cut a large folder into blocks, none of them short: what is held at a time must not grow."""
    first = 0
    while first < len(indices):
        is_last = len(indices) - first < 2 * BLOCK_FILES
        stop = len(indices) if is_last else first + BLOCK_FILES
        yield indices[first:stop]
        first = stop


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
        images = loose_images = 0
        for folder, inside in self._walk.folders():
            for block in self._sort_out(folder, inside, others):
                images += 1 if isinstance(block, Rejection) else len(block)
                if isinstance(block, ImageFiles):
                    if not folder:
                        first_loose = first_loose or block.paths[0]
                        loose_images += len(block)
                    elif loose_images:
                        raise self._refuse_loose(first_loose, loose_images)
                yield block
        self.ignored = dict(sorted(others.items()))
        self._refuse_unlisted()
        if not images:
            raise SourceError(f"no images in {self.root}", hint=describe_others(others))

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
            for some in _cut_blocks(chosen):
                paths = inside.names.take(some, before=start)
                yield ImageFiles(paths, inside.sizes[some], inside.times_ns[some], self._number_of(folder))
            if index < len(is_image):
                path, size_bytes = start + inside.names[index], int(inside.sizes[index])
                reason = self._walk.explain(path, int(inside.kinds[index]), size_bytes)
                yield Rejection(printable(path), "image", reason or "cannot be read", "unreadable")
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

    def class_name(self, label: int) -> str:
        return printable(self._classes[label])

    def fields(self) -> tuple[Field, ...]:
        return image_fields(map(printable, self._classes))


class SplitFolders(Reader):
    """The parts of a dataset, like train and test, with class folders in each: a field `split` says which.

    All parts share one list of classes. They are read one after the other, each as `ImageFolders` does.

    Raises, when iterated:
        SourceError: a part has no class folders, where others have.
    """

    def __init__(self, root: str, parts: dict[str, list[str]]) -> None:
        self.root = root
        self.ignored: dict[str, int] = {}
        self._parts = parts
        names = sorted({name for classes in parts.values() for name in classes})
        self._classes = {name: number for number, name in enumerate(names)}

    def __iter__(self) -> Iterator[Record | Rejection]:
        ignored: Counter[str] = Counter()
        for number, part in enumerate(self._parts):
            reader = ImageFolders(os.path.join(self.root, part))
            for sample in reader:
                yield self._place(sample, part, number, reader)
            ignored.update(reader.ignored)
        self.ignored = dict(sorted(ignored.items()))

    def _place(
        self, sample: Record | Rejection, part: str, number: int, reader: ImageFolders
    ) -> Record | Rejection:
        if isinstance(sample, Rejection):
            return replace(sample, path=f"{part}/{sample.path}")
        start = os.fsencode(part) + b"/"
        if "label" not in sample.values:
            raise SourceError(
                f"{reader.root} has images without a class folder, as '{printable(sample.name)}'; other parts"
                f" of {self.root} have class folders",
                hint=f"pack it by itself: feedrate pack {shell_quote(reader.root)} PACK-{part}",
            )
        image, label = sample.values["image"], sample.values["label"]
        assert isinstance(image, FileRange)
        assert isinstance(label, int)
        values: dict[str, Value] = {
            "image": image._replace(path=start + image.path, file=start + image.file),
            "label": self._classes[reader.class_name(label)],
            "split": number,
        }
        return Record(start + sample.name, values)

    def fields(self) -> tuple[Field, ...]:
        split = Field("split", Kind.NUMBER, dtype="int64", classes=tuple(self._parts))
        return *image_fields(self._classes), split


def walk(root: str) -> Walk:
    """Return the files of a folder, or of an address."""
    return RemoteWalk(root) if is_url(root) else Walk(root)


class Found(NamedTuple):
    """A file, also behind a symbolic link; `odd` says why it cannot be read, if it cannot."""

    path: bytes  # relative to the top
    size_bytes: int = 0
    mtime_ns: int = 0
    odd: str | None = None


class Inside(NamedTuple):
    """What a folder holds, by name. `kinds` are of `kernel.Entry`; folders are not among the files."""

    names: ByteStrings
    sizes: I64
    times_ns: I64
    kinds: U8
    folders: list[Folder]


class Walk:
    """Iterate over a folder's files: by class (the first part of the path), then by folder, then by name.

    Hidden files and folders are left out. Symbolic links are followed, except where they lead back to a
    folder above them. `unlisted` names, after the iteration, the folders that could not be listed, and why.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        try:
            top = os.stat(root)
        except OSError as error:
            raise NotFound(f"no dataset at {root} ({error.strerror})", hint=suggest_path(root)) from None
        if not stat.S_ISDIR(top.st_mode):
            raise NotFound(
                f"{root} is a file; a dataset is a folder",
                hint="is it a table? feedrate pack FOLDER PACK --labels TABLE",
            )
        self._above = frozenset({(top.st_dev, top.st_ino)})

    def __iter__(self) -> Iterator[Found]:
        for folder, inside in self.folders():
            start = folder + b"/" if folder else b""
            facts = zip(
                inside.names,
                inside.sizes.tolist(),
                inside.times_ns.tolist(),
                inside.kinds.tolist(),
                strict=True,
            )
            for name, size_bytes, time_ns, kind in facts:
                odd = self.explain(start + name, kind, size_bytes)
                yield Found(start + name, 0, 0, odd) if odd else Found(start + name, size_bytes, time_ns)

    def folders(self) -> Iterator[tuple[bytes, Inside]]:
        """Iterate folder by folder; paths are relative to the top."""
        self.unlisted = {}
        top = self._look(b"", self._above)
        yield b"", top
        for folder, inside in self._look_ahead(top.folders):
            yield folder, inside
            yield from self._below(inside)

    def explain(self, path: bytes, kind: int, size_bytes: int) -> str | None:
        """Return why a file cannot be read; None: it can."""
        if kind == Entry.ODD:
            return "is not a regular file"
        if kind != Entry.UNKNOWN:
            return None
        if size_bytes == errno.ENOENT and os.path.islink(os.path.join(os.fsencode(self.root), path)):
            return "is a link to nothing"
        return f"cannot be read: {os.strerror(size_bytes)}"

    def _below(self, inside: Inside) -> Iterator[tuple[bytes, Inside]]:
        # torchvision sorts folders by their whole path, so 'a-b' comes before 'a/b': all are needed first.
        waiting, deeper = inside.folders, []
        while waiting:
            at = waiting.pop()
            deeper.append(at)
            waiting += self._look(*at).folders
        yield from self._look_ahead(sorted(deeper, key=lambda one: one[0]))

    def _look_ahead(self, folders: Sequence[Folder]) -> Iterator[tuple[bytes, Inside]]:
        """Look into folders one after the other; into the next one while somebody uses what was found."""
        found = one_ahead(partial(self._look, *folder) for folder in folders)
        for (path, _), inside in zip(folders, found, strict=True):
            yield path, inside

    def _look(self, folder: bytes, above: Above) -> Inside:
        try:
            found = list_folder(os.path.join(os.fsencode(self.root), folder), sorted(IMAGE_SUFFIXES))
        except OSError as error:
            if not folder:
                raise StorageError(f"cannot list {self.root}: {error.strerror}") from error
            self.unlisted[folder] = f"folder cannot be listed: {error.strerror}"
            nothing = np.zeros(0, np.int64)
            return Inside(ByteStrings.of([]), nothing, nothing, np.zeros(0, np.uint8), [])
        return self._divide(folder, found, above)

    def _divide(self, folder: bytes, found: FolderList, above: Above) -> Inside:
        names = ByteStrings(found.names, found.starts)
        is_folder = found.kinds == Entry.FOLDER
        if not is_folder.any():
            return Inside(names, found.sizes, found.times_ns, found.kinds, [])
        folders = []
        for index in np.flatnonzero(is_folder).tolist():
            path = os.path.join(folder, names[index])
            try:
                info = os.stat(os.path.join(os.fsencode(self.root), path))
            except OSError as error:
                self.unlisted[path] = f"folder cannot be listed: {error.strerror}"
                continue
            if (info.st_dev, info.st_ino) not in above:
                folders.append((path, above | {(info.st_dev, info.st_ino)}))
        files = ~is_folder
        return Inside(
            names.take(files), found.sizes[files], found.times_ns[files], found.kinds[files], folders
        )


class RemoteWalk(Walk):
    """The same files in the same order as `Walk`, behind a URL."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        self._above = frozenset()
        self._place = Place(root)

    def _look(self, folder: bytes, above: Above) -> Inside:
        found = [one for one in self._place.list(folder) if not one[0].startswith(b".")]
        found.sort(key=lambda one: one[0])
        files = [(name, file) for name, file in found if file is not None]
        kinds = [Entry.WANTED if has_image_suffix(name) else Entry.OTHER for name, _ in files]
        return Inside(
            ByteStrings.of([name for name, _ in files]),
            np.array([file.size_bytes for _, file in files], np.int64),
            np.array([file.mtime_ns for _, file in files], np.int64),
            np.array(kinds, np.uint8),
            [(os.path.join(folder, name), above) for name, file in found if file is None],
        )
