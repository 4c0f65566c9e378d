# SPDX-License-Identifier: Apache-2.0
"""Some images of a dataset as files, for measurements that cannot wait for all of it.

They are drawn at random from what can be listed in a given time, read by several threads at once (which is
what tells how fast their storage is), and written to class folders: one copy from which every loader reads.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feedrate.bench.results import Subset
from feedrate.errors import PackError, SourceError, StorageError, UsageError
from feedrate.files.atomic import free_bytes
from feedrate.format.fields import Coding, Kind
from feedrate.format.keys import file_suffix, has_image_suffix
from feedrate.format.manifest import FILE_NAME
from feedrate.machine.memory import measure_residency
from feedrate.progress import Rejection
from feedrate.source.record import ContainerValue, FileRange, Record
from feedrate.source.values import UnusableValue
from feedrate.units import format_bytes, shell_quote

_ROOM = 2.5  # the files, a pack of them, and what packing needs meanwhile
_LOOK_AT_CLOCK_EVERY = 64  # records


@dataclass(frozen=True, slots=True)
class SubsetOptions:
    """How much to take: what is reached first.

    Attributes:
        seconds: for listing, and again for reading.
        readers: threads that read at once.
    """

    images: int
    most_bytes: int
    seconds: float
    readers: int
    seed: int = 0


class _Chosen(NamedTuple):
    """An image that was drawn.

    Attributes:
        label: None: it has none.
        name: what it is called; its suffix is kept.
        file: that holds it, relative to the dataset.
        value: what its dataset finds it by.
    """

    label: str | None
    name: bytes
    file: bytes
    size_bytes: int
    value: Any


class _Opened(NamedTuple):
    """Some images of a dataset. `open` gives each thread a function that reads a value."""

    root: str
    chosen: list[_Chosen]
    listed: int
    is_whole: bool
    open: Callable[[], Callable[[Any], bytes]]


def take_subset(
    source: str, folder: Path, options: SubsetOptions, *, clock: Callable[[], float] = time.perf_counter
) -> Subset:
    """Copy some images of a dataset to `folder`/CLASS/NUMBER.SUFFIX.

    Args:
        source: a folder of images, a pack, archives: what `feedrate pack` takes.

    Raises:
        NotFound, SourceError, PackError: there is no dataset, or none of images.
        StorageError: it cannot be read, or there is no room for the copy.
    """
    folder.mkdir(parents=True)
    with _open(source, str(folder.parent), options, clock) as opened:
        chosen = _cut(opened.chosen, options.most_bytes)
        if not chosen:
            raise SourceError(f"no images in {source}")
        check_room(folder, sum(one.size_bytes for one in chosen))
        files = sorted({os.path.join(os.fsencode(opened.root), one.file) for one in chosen})
        cached = measure_residency([os.fsdecode(file) for file in files if os.path.isfile(file)])
        copy = _Copy(chosen, opened.open, folder, options, clock)
        copy.run()
    if not copy.images:
        raise SourceError(f"no image of {source} can be read: {copy.unusable}")
    has_labels = any(one.label is not None for one in chosen)
    return Subset(
        images=copy.images,
        labels=len(os.listdir(folder)) if has_labels else 0,
        size_bytes=copy.size_bytes,
        listed=opened.listed,
        is_whole_listing=opened.is_whole,
        readers=options.readers,
        read_images_per_s=copy.images * copy.threads / copy.read_s if copy.read_s else None,
        cached_share=cached,
    )


def check_room(folder: Path, size_bytes: int) -> None:
    """Refuse to begin what the folder for temporary files has no room for."""
    needed, free, where = _ROOM * size_bytes, free_bytes(folder), folder.parent.parent
    if free < needed:
        raise StorageError(
            f"the speed test needs {format_bytes(needed)}, {where} has {format_bytes(free)} free",
            hint="set TMPDIR to a folder with more room",
        )


@contextmanager
def _open(source: str, scratch: str, options: SubsetOptions, clock: Callable[[], float]) -> Iterator[_Opened]:
    if os.path.exists(os.path.join(source, FILE_NAME)):
        with _open_pack(source, options) as opened:
            yield opened
        return
    from feedrate.source.bytes import Bytes
    from feedrate.source.opening import open_reader

    reader = open_reader(source, scratch=scratch)
    deadline = clock() + options.seconds
    draw, chosen, listed, is_whole = random.Random(options.seed), list[_Chosen](), 0, True
    for record in reader:
        if isinstance(record, Rejection) or "image" not in record.values:
            continue
        # Each of those that were listed so far is as likely to be among the chosen as any other.
        at = listed if listed < options.images else draw.randrange(listed + 1)
        listed += 1
        if at < options.images:
            chosen[at : at + 1] = [_choose(record)]
        if listed % _LOOK_AT_CLOCK_EVERY == 0 and clock() > deadline:
            is_whole = False
            break

    def open_bytes() -> Callable[[Any], bytes]:
        read = Bytes(reader.root, scratch).read
        return lambda value: value if isinstance(value, bytes) else read(value)

    draw.shuffle(chosen)
    yield _Opened(reader.root, chosen, listed, is_whole, open_bytes)


def _choose(record: Record) -> _Chosen:
    value = record.values["image"]
    label = str(record.values["label"]) if "label" in record.values else None
    if isinstance(value, (FileRange, ContainerValue)):
        return _Chosen(label, value.path, value.file, value.size_bytes, value)
    data = value if isinstance(value, bytes) else str(value).encode()
    return _Chosen(label, record.name, b"", len(data), data)


@contextmanager
def _open_pack(source: str, options: SubsetOptions) -> Iterator[_Opened]:
    from feedrate.loader.packs import open_pack
    from feedrate.loader.samples import open_pack as open_samples
    from feedrate.loader.samples import pick
    from feedrate.remote.pack import RemotePack

    pack = open_pack(source)
    try:
        if isinstance(pack, RemotePack):
            raise UsageError(
                f"{source} names files that are not on this machine",
                hint=f"copy it here first: feedrate stage {shell_quote(source)}",
            )
        image, label = pack.manifest.field("image"), pack.manifest.field("label")
        if image is not None and image.coding is Coding.RAW:
            raise PackError(
                f"{source} holds raw pixels, and no files that DataLoader + Pillow could read",
                hint="give the folder that it was packed from",
            )
        with open_samples(pack, pick(len(pack), options.images, options.seed)) as samples:
            has_labels = label is not None and label.kind is Kind.NUMBER
            labels = map(str, samples.rows["label"].tolist()) if has_labels else [None] * len(samples)
            files = [samples.files.paths[file] for file in samples.images.file.tolist()]
            facts = zip(labels, samples.names, files, samples.images.length.tolist(), strict=True)
            chosen = [
                _Chosen(label, os.fsencode(name), os.fsencode(file), size_bytes, number)
                for number, (label, name, file, size_bytes) in enumerate(facts)
            ]
            random.Random(options.seed).shuffle(chosen)
            yield _Opened(source, chosen, len(pack), True, lambda: samples.read)
    finally:
        pack.close()


def _cut(chosen: list[_Chosen], most_bytes: int) -> list[_Chosen]:
    """Return the first of them that are together not too large; one in any case."""
    total, last = 0, 0
    for one in chosen:
        total += one.size_bytes
        if last and total > most_bytes:
            break
        last += 1
    return chosen[:last]


class _Copy:
    """Threads that read images and write them to class folders, each every n-th; reading alone is timed."""

    def __init__(
        self,
        chosen: list[_Chosen],
        open_values: Callable[[], Callable[[Any], bytes]],
        folder: Path,
        options: SubsetOptions,
        clock: Callable[[], float],
    ) -> None:
        self.images = self.size_bytes = 0
        self.read_s = 0.0  # of all threads together
        self.threads = min(options.readers, len(chosen))
        self.unusable = "nothing could be read in time"
        self._chosen, self._open, self._folder, self._clock = chosen, open_values, folder, clock
        labels = dict.fromkeys(one.label for one in chosen)
        self._folders = {label: f"{number:06d}" for number, label in enumerate(labels)}
        self._deadline = clock() + options.seconds
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(n,), name="feedrate-subset", daemon=True)
            for n in range(self.threads)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C: they must not write while the folder is removed
            self._error = error
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _work(self, first: int) -> None:
        try:
            read = self._open()
            for number in range(first, len(self._chosen), self.threads):
                if self._error is not None or (number > first and self._clock() > self._deadline):
                    return
                self._copy(number, read)
        except BaseException as error:
            self._error = error

    def _copy(self, number: int, read: Callable[[Any], bytes]) -> None:
        one, began = self._chosen[number], self._clock()
        try:
            data = read(one.value)
        except UnusableValue as error:
            self.unusable = str(error)
            return
        read_s = self._clock() - began
        # Folders and files get names of ours, whatever a dataset calls them.
        suffix = file_suffix(one.name) if has_image_suffix(one.name) else ".jpg"
        path = self._folder / self._folders[one.label] / f"{number:06d}{suffix}"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}", hint="set TMPDIR to a folder with more room"
            ) from error
        with self._lock:
            self.images += 1
            self.size_bytes += len(data)
            self.read_s += read_s
