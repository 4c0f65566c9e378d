# SPDX-License-Identifier: Apache-2.0
"""Some samples of a dataset of any kind: their number, their sizes and their contents.

Folders of images are counted by plan/folders.py. The index of a pack tells all. Of tars, zips and other
containers some files are looked through, and the rest is taken to be like them.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from feedrate.arrays import I64
from feedrate.calls import map_in_time
from feedrate.errors import NotFound, SourceError
from feedrate.figures import Figure
from feedrate.format.containers import FILES
from feedrate.format.fields import Coding, Kind, file_suffix
from feedrate.format.manifest import FILE_NAME
from feedrate.format.pack import Pack, Rows
from feedrate.loader.order import count_parts
from feedrate.loader.packs import open_pack
from feedrate.machine.memory import average_residency, measure_file_residency
from feedrate.plan.folders import AT_ONCE, TreeCount, count_tree
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, explained, is_url, split_source
from feedrate.source.bytes import Bytes
from feedrate.source.detect import SourceKind, kind_by_name
from feedrate.source.opening import find_files, is_pattern, open_reader
from feedrate.source.record import (
    ContainerValue,
    FileRange,
    Reader,
    Record,
    UnusableValue,
    Value,
    describe_others,
)
from feedrate.units import format_count, shell_quote

_MOST_SIZES = 1500  # files that are asked for their size
_MOST_CONTAINERS = 8  # that are looked through
_MOST_ROWS = 2048  # of a pack's index
_MOST_RESIDENT = 200  # files whose pages are looked for
_MOST_WAITED = 150  # files that Pillow reads where they are
_FEW = 100  # files: all are asked for their sizes
_ASKING_S = 2.0
_FOLD_NAMES = ("split", "fold", "folds", "subset", "partition", "set")
_MOST_SAMPLES, _MOST_BYTES = 256, 48 << 20  # whose contents are read


class Content(NamedTuple):
    """A sample's bytes, of an image where it has one; None: `why` they cannot be read."""

    suffix: str
    data: bytes | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A dataset, as far as it is known before anything of it is decoded.

    Attributes:
        sizes: of samples that were drawn, in bytes.
        total_bytes: of its files; None: of its samples.
        timed: files (path, size) that tell how the file system answers; of a folder's, whose names nobody has
            asked for yet, the largest size that they may have.
        waited, copied: files to time Pillow's waiting with, and a copy.
        parts: names that `split=` takes of a pack, and of a folder's, and how many samples each has.
        unasked: files whose size is not in `sizes`, since they are left for timing.
        fetched: the same behind an address: (address of a folder, file in it, size).
        read: reads the contents of samples that were drawn, for so many seconds.
        resident: the share of `timed` in the page cache, before anything was read; None: unknown.
    """

    kind: str
    samples: Figure
    files: Figure
    folders: Figure
    sizes: Sequence[float]
    timed: Sequence[tuple[str, int]]
    suffixes: Counter[str]
    read: Callable[[float], list[Content]]
    list_s: Figure
    is_partial: bool
    how: str
    resident: float | None
    total_bytes: Figure | None = None
    has_images: bool = True
    notes: tuple[str, ...] = ()
    fetched: Sequence[tuple[str, bytes, int]] = ()
    waited: Sequence[str] = ()
    copied: Sequence[str] = ()
    unasked: Sequence[str] = ()
    parts: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def is_all(self) -> bool:
        """Whether the size of every sample is known."""
        return not self.is_partial and len(self.sizes) == self.samples.value


def sample_dataset(dataset: str, scratch: str, *, seconds: float) -> Sampled:
    """Look at a dataset for about so many seconds.

    Args:
        scratch: a folder for values that can be read only once.

    Raises:
        FeedrateError: it is not there, is no dataset, or cannot be read.
    """
    if is_url(dataset) and not is_pattern(dataset):
        return _sample_address(dataset, scratch, seconds)
    if os.path.exists(os.path.join(dataset, FILE_NAME)):
        return _sample_pack(dataset)
    if os.path.islink(dataset) and not os.path.exists(dataset):
        raise NotFound(f"{dataset} is a link to {os.readlink(dataset)}, which is not there")
    if os.path.isdir(dataset):
        tree = count_tree(dataset, seconds=seconds)
        if tree.images.value:
            return _sample_tree(dataset, tree)
        return _sample_containers(dataset, _find_containers(dataset, tree), scratch, seconds, tree)
    if is_pattern(dataset):
        place, found = find_files(dataset)
        files = [(place.address(file.path), file.size_bytes) for file in found]
        return _sample_containers(dataset, files, scratch, seconds)
    open_reader(dataset, scratch=scratch)  # raises if anything is wrong with it
    size_bytes = os.path.getsize(dataset) if os.path.exists(dataset) else 0
    return _sample_containers(dataset, [(dataset, size_bytes)], scratch, seconds)


def _sample_address(address: str, scratch: str, seconds: float) -> Sampled:
    """Look at a pack, or at containers, behind an address.

    Raises:
        SourceError: it is neither.
    """
    place = Place(address)
    with explained(address):
        try:
            is_pack = place.find(FILE_NAME.encode(), suggest=False) is not None
        except NotFound:
            is_pack = False
        if is_pack:
            return _sample_pack(address)
        if (file := place.find()) is not None:
            files = [(address, file.size_bytes)]
        else:
            inside = [one for _, one in place.list(b"") if one and kind_by_name(one.path).is_container]
            files = [(place.address(one.path), one.size_bytes) for one in inside]
    if not files:
        raise SourceError(
            f"{address} is no pack, and holds no tar, zip or other file of samples",
            hint=f"of other files behind an address, make a pack: feedrate pack {shell_quote(address)} PACK",
        )
    return _sample_containers(address, files, scratch, seconds)


def _sample_tree(root: str, tree: TreeCount) -> Sampled:
    # A file system answers sooner for a name that it was asked for just now: of many, half are left for that.
    count = len(tree.paths) if len(tree.paths) <= _FEW else min(_MOST_SIZES, len(tree.paths) // 2)
    answers = list(map_in_time(ask_size, tree.paths[:count], threads=AT_ONCE, seconds=_ASKING_S))
    sizes = {path: size for path, size in answers if size is not None}
    if not any(sizes.values()):
        raise SourceError(
            f"none of the {format_count(len(answers), 'image')} of {root} that were looked at holds anything",
            hint="they are empty, links to nowhere, or not readable for you",
        )
    notes, broken = [], len(answers) - len(sizes)
    if broken:
        notes.append(f"{_share(broken, len(answers), 'file')} cannot be read: broken links, or no permission")
    if tree.unlisted:
        first = min(tree.unlisted)
        unlisted = format_count(len(tree.unlisted), "folder")
        notes.append(f"{unlisted} cannot be listed, as {first}: {tree.unlisted[first]}")
    top = os.path.join(os.fsencode(root), b"")
    inside = [(os.fsencode(path).removeprefix(top), size) for path, size in sizes.items()]
    others, largest = tree.paths[count:] or list(sizes), max(sizes.values())
    each = min(_MOST_WAITED, len(others) // 4)
    waited, copied, rest = others[:each], others[each : 2 * each], others[2 * each :]
    timed = [(path, sizes.get(path, largest)) for path in rest]
    return Sampled(
        kind="folders", samples=tree.images, files=tree.images, folders=tree.folders,
        sizes=list(sizes.values()), timed=timed, suffixes=tree.suffixes,
        read=partial(_read_values, root, [FileRange(path, size, path) for path, size in inside]),
        list_s=tree.list_s, is_partial=not tree.is_whole, how=tree.how,
        resident=_find_resident([file for file in sizes.items() if file[1]]), notes=tuple(notes),
        waited=waited, copied=copied, unasked=tree.paths[count : count + _MOST_SIZES], parts=tree.parts,
    )  # fmt: skip


def ask_more_sizes(sampled: Sampled) -> Sampled:
    """Add the sizes of files that were left for timing, after that."""
    answers = list(map_in_time(ask_size, sampled.unasked, threads=AT_ONCE, seconds=_ASKING_S))
    return replace(sampled, sizes=[*sampled.sizes, *(size for _, size in answers if size is not None)])


def _share(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {format_count(total, noun)} looked at"


def ask_size(path: str) -> tuple[str, int | None]:
    """Return a file's path and size; None: it is gone, a link to nowhere, or not to be looked at."""
    try:
        return path, os.stat(path).st_size
    except OSError:
        return path, None


def _find_resident(files: Sequence[tuple[str, int]]) -> float | None:
    paths = [path for path, _ in random.sample(list(files), min(len(files), _MOST_RESIDENT))]
    return average_residency(map_in_time(measure_file_residency, paths, threads=AT_ONCE, seconds=_ASKING_S))


def _read_values(root: str, values: Sequence[FileRange], seconds: float) -> list[Content]:
    """Read samples in the order in which they were drawn, several at a time."""

    def read(value: FileRange) -> Content:
        with closing(Bytes(root)) as source:
            return _read_one(source, value)

    ends = accumulate(value.size_bytes for value in values[:_MOST_SAMPLES])
    count = sum(number < 2 or end <= _MOST_BYTES for number, end in enumerate(ends))
    return list(map_in_time(read, values[:count], threads=AT_ONCE, seconds=seconds))


def _read_one(source: Bytes, value: Value) -> Content:
    if not isinstance(value, (FileRange, ContainerValue)):
        return Content("", value if isinstance(value, bytes) else str(value).encode())
    try:
        return Content(file_suffix(value.path), source.read(value))
    except UnusableValue as error:
        return Content(file_suffix(value.path), None, str(error))


def _sample_pack(path: str) -> Sampled:
    with closing(open_pack(path)) as pack:
        shards = pack.manifest.shards
        if not len(pack):
            raise SourceError(f"{path} holds no samples")
        drawn = np.random.default_rng().choice(len(pack), min(len(pack), _MOST_ROWS), replace=False)
        positions = np.sort(drawn).astype(np.int64)
        rows, statuses = pack.rows(positions)
        lengths = [name for name in rows.dtype.names or () if name.endswith(".length")]
        sizes = sum((rows[name] for name in lengths), np.zeros(len(rows), np.int64))
        image = pack.manifest.field("image")
        names = ["image"] if image is not None else [name.removesuffix(".length") for name in lengths[:1]]
        is_far = is_url(path) or any(shard.is_remote for shard in shards)
        root = shards[0].folder if shards[0].is_remote else path
        good = np.flatnonzero(statuses == 0)
        some = np.random.default_rng().permutation(good)[:_MOST_SAMPLES]
        values = [
            one for name in names for one in _find_values(pack, name, positions[some], rows[some], is_far)
        ]
        is_files = all(shard.container == FILES for shard in shards)
        timed = [] if is_far else _list_shards(pack)
        if is_files:  # each value of an index of single files is one of them
            timed = [(os.fsdecode(value.file), value.size_bytes) for value in values]
        parts = count_parts(pack)
    exactly = partial(Figure.exactly, note="its index says so")
    kind = "index" if all(shard.is_in_place for shard in shards) else "pack"
    return Sampled(
        kind=kind, samples=exactly(pack.manifest.samples),
        files=exactly(pack.manifest.samples if is_files else len(shards)), folders=Figure.exactly(1),
        sizes=sizes[good].tolist(), list_s=Figure.exactly(0.0), is_partial=False,
        total_bytes=exactly(sum(shard.size_bytes for shard in shards)) if kind == "pack" else None,
        timed=timed, copied=[path for path, _ in timed], resident=_find_resident(timed),
        suffixes=Counter(file_suffix(value.path) for value in values),
        read=partial(_read_values, root, values), how=format_count(len(shards), "shard"),
        has_images=image is not None and image.kind is Kind.IMAGE and image.coding is not Coding.RAW,
        fetched=[
            (root, shard.name.encode(), shard.size_bytes)
            for shard in shards if is_far and shard.folder == shards[0].folder
        ],
        parts={name: exactly(count) for name, count in parts.items()},
    )  # fmt: skip


def _find_values(pack: Pack, field: str, at: I64, rows: Rows, is_far: bool) -> Iterator[FileRange]:
    if is_far:
        where, ranges = pack.locate(at)[0], pack.ranges(field, rows, at)
        files = [pack.manifest.shards[one].name for one in where.tolist()]
    else:
        opened, ranges, _ = pack.find_values(field, rows, at)
        files = [os.path.abspath(opened.paths[one]) for one in ranges.file.tolist()]
    facts = zip(pack.texts(f"{field}.path", at), ranges.length, files, ranges.offset, strict=True)
    return (FileRange(name, int(size), os.fsencode(file), int(start)) for name, size, file, start in facts)


def _list_shards(pack: Pack) -> list[tuple[str, int]]:
    shards = random.sample(pack.manifest.shards, min(len(pack.manifest.shards), _MOST_RESIDENT))
    paths = [os.fspath(pack.locate_file(shard)) for shard in shards]
    return [(path, os.path.getsize(path)) for path in paths if os.path.isfile(path)]


def _find_containers(root: str, tree: TreeCount) -> list[tuple[str, int]]:
    """Return the files of a folder without images that hold samples.

    Raises:
        SourceError: there are none, or of several kinds.
    """
    kinds: dict[SourceKind, list[str]] = {}
    for path in tree.other_paths:
        kind = kind_by_name(os.fsencode(os.path.basename(path)))
        if kind.is_container:
            kinds.setdefault(kind, []).append(path)
    if not kinds:
        unlisted = f"; {format_count(len(tree.unlisted), 'folder')} cannot be listed" if tree.unlisted else ""
        raise SourceError(f"no images in {root}{unlisted}", hint=describe_others(tree.other_suffixes))
    if len(kinds) > 1:
        counts = ", ".join(f"{len(found):,} {kind}" for kind, found in kinds.items())
        raise SourceError(
            f"{root} holds files of several kinds: {counts}", hint="name those of one kind: 'FOLDER/*.tar'"
        )
    (paths,) = kinds.values()
    answers = map_in_time(ask_size, sorted(paths), threads=AT_ONCE, seconds=_ASKING_S)
    return [(path, size) for path, size in answers if size]


class _Looked(NamedTuple):
    """A part of one container: its samples, in so many bytes, and the contents of some that were drawn."""

    samples: int
    walked_bytes: float
    is_whole: bool
    sizes: list[float]
    contents: list[Content]
    has_images: bool
    note: str


def _sample_containers(
    dataset: str,
    files: Sequence[tuple[str, int]],
    scratch: str,
    seconds: float,
    tree: TreeCount | None = None,
) -> Sampled:
    """Look through some of the files: as many samples per byte as these have, all have."""
    if not files:
        raise SourceError(f"no samples in {dataset}", hint="its files are empty, or cannot be read")
    began = time.monotonic()
    is_far = is_url(files[0][0])
    timed = [] if is_far else [file for file in files if file[1]]
    resident = _find_resident(timed)
    chosen = random.sample(list(files), min(len(files), _MOST_CONTAINERS))
    looked = [_look_through(path, size, scratch, seconds / len(chosen), len(chosen)) for path, size in chosen]
    total = sum(size for _, size in files)
    took_s = time.monotonic() - began
    samples, is_whole = _estimate_samples(looked, len(files), total)
    if not samples.value:
        raise SourceError(f"no samples in {dataset}", hint=looked[0].note or None)
    contents = [content for one in looked for content in one.contents]
    random.shuffle(contents)
    how = f"{len(chosen):,} of {format_count(len(files), 'file')} looked through"
    how += "" if all(one.is_whole for one in looked) else ", not to the end"
    walked = max(sum(one.walked_bytes for one in looked), 1.0)
    kind = kind_by_name(os.fsencode(os.path.basename(chosen[0][0])))
    return Sampled(
        kind=kind.name.lower(), samples=samples, files=Figure.exactly(len(files)),
        folders=tree.folders if tree else Figure.exactly(1), sizes=[n for one in looked for n in one.sizes],
        total_bytes=Figure.exactly(total) if kind.is_container else None,
        timed=timed, copied=[path for path, _ in timed], suffixes=Counter(one.suffix for one in contents),
        read=lambda _: contents, list_s=Figure.within(took_s * max(total / walked, 1.0), 2.0, "measured"),
        is_partial=not is_whole, how=how,
        resident=resident, has_images=any(one.has_images for one in looked),
        notes=tuple(one.note for one in looked if one.note),
        fetched=[(*split_source(address), size) for address, size in files] if is_far else (),
    )  # fmt: skip


def _estimate_samples(looked: Sequence[_Looked], files: int, total_bytes: int) -> tuple[Figure, bool]:
    """Return how many samples all files hold, and whether all were looked through to their end."""
    count, walked = sum(one.samples for one in looked), math.fsum(one.walked_bytes for one in looked)
    if all(one.is_whole for one in looked) and len(looked) == files:
        return Figure.exactly(count), True
    rate = count / max(walked, 1.0)
    # A ratio's standard error, from how the files differ from it; of one file, a tenth.
    squares = math.fsum((one.samples - rate * one.walked_bytes) ** 2 for one in looked)
    error = math.sqrt(squares * len(looked) / max(len(looked) - 1, 1)) / max(count, 1)
    error = max(2.5 * error if len(looked) > 1 else 0.1, 0.02)
    value = rate * total_bytes
    note = f"from {format_count(len(looked), 'file')} of {files:,}"
    return Figure(value, max(value * (1 - error), count), value * (1 + error), note=note), False


def _look_through(path: str, size_bytes: int, scratch: str, seconds: float, among: int) -> _Looked:
    folder = os.path.join(scratch, f"{random.getrandbits(64):016x}")
    os.mkdir(folder)
    reader = open_reader(path, scratch=folder)
    until = time.monotonic() + seconds
    drawn: list[Record] = []
    count = rejected = 0
    walked, why, is_whole, most = 0.0, "", True, max(_MOST_SAMPLES // among, 16)
    sizes: list[float] = []
    stream: Iterator[Record | Rejection] = iter(reader)
    for one in stream:
        count += 1
        if isinstance(one, Rejection):
            rejected, why = rejected + 1, why or f"{one.path}: {one.reason}"
            continue
        sizes.append(float(sum(map(_size, one.values.values()))))
        ends = [v.offset + v.size_bytes for v in one.values.values() if isinstance(v, FileRange)]
        walked = max([walked + sizes[-1], *ends])
        if len(drawn) < most:
            drawn.append(one)
        elif (at := int(random.random() * len(sizes))) < most:
            drawn[at] = one
        if time.monotonic() > until:
            is_whole = False
            stream.close()  # type: ignore[attr-defined] # values that wait in a spool are written
            break
    with closing(Bytes(reader.root, folder)) as source:
        contents = _read_drawn(source, drawn, _MOST_BYTES // among)
    said = [f"{_share(rejected, count, 'sample')} cannot be used, as {why}"] if rejected else []
    note = "; ".join([*said, *_note_folds(reader)])
    has_images = any("image" in one.values for one in drawn)
    return _Looked(count - rejected, float(size_bytes) if is_whole else walked, is_whole, sizes, contents,
                   has_images, note)  # fmt: skip


def _note_folds(reader: Reader) -> list[str]:
    names = () if reader.table is None else reader.table.columns
    fold = next((name for name in names if name.lower() in _FOLD_NAMES), "")
    return [f"its table has a column '{fold}': an epoch is counted over all rows"] if fold else []


def _size(value: Value) -> int:
    if isinstance(value, (FileRange, ContainerValue)):
        return value.size_bytes
    return len(value) if isinstance(value, (bytes, str)) else 8


def _read_drawn(source: Bytes, drawn: Sequence[Record], most_bytes: int) -> list[Content]:
    contents: list[Content] = []
    for record in drawn:
        value = record.values.get("image") or max(record.values.values(), key=_size)
        most_bytes -= _size(value)
        if most_bytes < 0 and contents:
            break
        contents.append(_read_one(source, value))
    return contents
