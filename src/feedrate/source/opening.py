# SPDX-License-Identifier: Apache-2.0
"""Decide by looking what a source is, and return the reader for it.

There are many readers and a source needs one: each is imported when it is needed. A source may also be
several files by one name: `train-{0000..0009}.tar`, `{train,extra}-*.parquet`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from feedrate.errors import FeedrateError, NotFound, SourceError, UsageError
from feedrate.format.fields import file_suffix, has_image_suffix
from feedrate.format.manifest import FILE_NAME, read_manifest
from feedrate.remote.addresses import Place, PlacedFile, explained, is_url, split_source
from feedrate.source.detect import SourceKind, kind_by_name, look_at
from feedrate.source.folders import open_folders
from feedrate.source.names import SPLIT_NAMES
from feedrate.source.options import SourceOptions
from feedrate.source.record import Reader, Spool
from feedrate.units import shell_quote

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000
_AT_ONCE = 16
_SPECIAL = re.compile(r"[*?{\[]")
EXPECTED = (
    "a folder of images or class folders, a folder with a table (--labels), a list of paths (.txt), or "
    "zip, tar, WebDataset, TFRecord, HDF5 or Parquet files with images, or a folder of such files"
)


def open_reader(source: str, options: SourceOptions | None = None, scratch: str | None = None) -> Reader:
    """Return the reader of a source.

    Args:
        source: a folder, a file, a pattern of files, or an fsspec URL of one of these.
        scratch: a folder for values that can be read only once (compressed tars, Parquet); must last, and be
            reached by all processes that will read values.

    Raises:
        NotFound: there is nothing of that name.
        SourceError: what is there is not understood; the sentence says what was found and what is expected.
    """
    with explained(source):
        return _open(source, options or SourceOptions(), Spool(scratch))


def _open(source: str, options: SourceOptions, spool: Spool) -> Reader:
    if is_pattern(source):
        place, files = find_files(source)
        return _open_files(place, files, spool, options)
    place = Place(source)
    if not is_url(source) and not os.path.exists(source):
        return _open_inside(source, place, spool)
    file = place.find()
    if file is None:
        return _open_folder(place, options, spool)
    root, name = split_source(source)
    place, file = Place(root), file._replace(path=name)
    kind = look_at(place, file)
    if kind is SourceKind.TABLE:
        if options.labels is not None:
            raise UsageError(
                f"{source} is a table, and --labels names another one", hint="name the folder instead"
            )
        return _open_table(root, dataclasses.replace(options, labels=Path(source)))
    if kind is SourceKind.LIST:
        _refuse_labels(options, source)
        from feedrate.source.file_list import FileList

        return FileList(place, file)
    if kind is SourceKind.UNKNOWN and has_image_suffix(file.path):
        raise SourceError(
            f"{source} is one image; a dataset is a folder of them",
            hint=f"name the folder: {shell_quote(root)}; or a list of paths (.txt)",
        )
    if kind is SourceKind.UNKNOWN:
        with place.open(file.path) as stream:
            beginning = stream.read(16)
        raise SourceError(
            f"cannot tell what {source} is: it begins with {beginning!r}", hint=f"a source is {EXPECTED}"
        )
    return _open_files(place, [file], spool, options)


def _open_folder(place: Place, options: SourceOptions, spool: Spool) -> Reader:
    if options.labels is not None:
        return _open_table(place.root, options)
    if options.fields or options.path_column or options.label_column or options.label_separator:
        raise UsageError(
            "--field, --path-column and --label-column name columns of a table, and there is none",
            hint="give the table: --labels FILE",
        )
    files: dict[SourceKind, list[PlacedFile]] = {}
    others: Counter[str] = Counter()
    for file in place.walk():
        if has_image_suffix(file.path):
            _refuse_table_beside(place)
            return open_folders(place.root)
        if file.path == FILE_NAME.encode() and not _is_index(place):
            raise SourceError(
                f"{place.root} is a pack already",
                hint=f"see what is in it: feedrate ls {shell_quote(place.root)}; "
                "to add it to another: feedrate append OTHER_PACK PACK",
            )
        kind = kind_by_name(file.path)
        if kind.is_container:
            files.setdefault(kind, []).append(file)
        else:
            others[file_suffix(file.path)] += 1
    if not files:
        return open_folders(place.root)
    if len(files) > 1:
        counts = ", ".join(f"{len(found):,} {kind}" for kind, found in files.items())
        raise SourceError(
            f"{place.root} holds files of several kinds: {counts}",
            hint="name those of one kind: 'FOLDER/*.tar'",
        )
    (found,) = files.values()
    _refuse_splits(place, found)
    return _open_files(place, found, spool, options)


def _open_table(root: str, options: SourceOptions) -> Reader:
    from feedrate.source.labelled import Finder, LabelledFiles

    assert options.labels is not None
    folder = None if is_url(root) else _find_images(options.labels, root, options.path_column)
    if folder not in (None, root):
        line = f"feedrate pack {shell_quote(str(folder))} PACK --labels {shell_quote(str(options.labels))}"
        column = f" --path-column {shell_quote(options.path_column)}" if options.path_column else ""
        raise SourceError(f"the files that {options.labels} names are in {folder}", hint=line + column)
    return LabelledFiles(Finder(root), options)


def _list_visible(root: str) -> list[str]:
    return [os.path.join(root, name) for name in sorted(os.listdir(root)) if not name.startswith(".")]


def _find_images(path: Path, root: str, column: str | None = None) -> str | None:
    """Return `root` or the folder in it that names in a table start from; None: the first is in none."""
    from feedrate.source.labelled import PATH_COLUMNS
    from feedrate.source.table import read_table

    table = read_table(path)
    picked = table.pick(column, PATH_COLUMNS, "files")
    name = None if picked is None else next(table.rows([picked]))[0]
    if not name or not os.path.isdir(root):
        return None
    folders = [root, *filter(os.path.isdir, _list_visible(root))]
    return next((folder for folder in folders if os.path.isfile(os.path.join(folder, str(name)))), None)


def _refuse_table_beside(place: Place) -> None:
    """One folder of images and a table that names them: the table has the labels, not the folder's name.

    Raises:
        SourceError: it is so; says the line to type.
    """
    if place.is_remote:
        return
    entries = _list_visible(place.root)
    folders = list(filter(os.path.isdir, entries))
    if len(folders) != 1:
        return
    for path in entries:
        if kind_by_name(os.fsencode(path)) is not SourceKind.TABLE:
            continue
        try:
            folder = _find_images(Path(path), place.root)
        except FeedrateError:
            continue  # no table of labels: notes
        if folder is not None:
            named, table, images = map(shell_quote, (folder, path, folders[0]))
            raise SourceError(
                f"{place.root} holds images in one folder, and a table that names them: {path}",
                hint=f"feedrate pack {named} PACK --labels {table}; "
                f"without labels: feedrate pack {images} PACK",
            )


def _is_index(place: Place) -> bool:
    """Return whether a pack.json only describes what is beside it."""
    if place.is_remote:
        return False
    try:
        return all(shard.is_in_place for shard in read_manifest(place.root).shards)
    except FeedrateError:
        return False


def _open_files(place: Place, files: list[PlacedFile], spool: Spool, options: SourceOptions) -> Reader:
    first, last = files[0], files[-1]
    kind, last_kind = look_at(place, first), look_at(place, last)
    if kind is not last_kind or not kind.is_container:
        what = f"{place.address(last.path)} is {last_kind}"
        if not kind.is_container:
            what = f"nor is {place.address(last.path)}"
        raise SourceError(f"{place.address(first.path)} is {kind}, {what}", hint=f"a source is {EXPECTED}")
    if kind is SourceKind.RECORDIO:
        raise SourceError(
            f"{place.address(first.path)} is a RecordIO file, which feedrate no longer reads",
            hint="take it apart with MXNet: MXRecordIO(FILE, 'r').read() gives records, and "
            "recordio.unpack(record) label and image of each; write class folders or a tar, and pack that",
        )
    if kind.is_archive:
        return _open_archives(place, files, spool, options, kind)
    _refuse_labels(options, place.address(first.path))
    module, _, name = kind.reader.partition(":")
    reader = getattr(importlib.import_module(f"feedrate.source.{module}"), name)
    return cast(Reader, reader(place, files, spool))


def _open_archives(
    place: Place, files: list[PlacedFile], spool: Spool, options: SourceOptions, kind: SourceKind
) -> Reader:
    from feedrate.source.archives import Archive, ArchiveReader, strip_suffix

    tops = [b"" if len(files) == 1 else strip_suffix(file.path) + b"/" for file in files]
    archives = [Archive(place, file, spool, kind, top) for file, top in zip(files, tops, strict=True)]
    shown = place.address(files[0].path)
    if options.labels is not None:
        from feedrate.source.labelled import LabelledFiles, MemberFinder

        finder = MemberFinder(place.root, archives, spool)
        return LabelledFiles(finder, options, shown if len(files) == 1 else place.root)
    _refuse_labels(options, shown)
    if kind is not SourceKind.ZIP:
        from feedrate.source.webdataset import ShardReader, looks_like_shards

        if looks_like_shards(archives[0].names()):
            return ShardReader(place, archives, spool)
    return ArchiveReader(place, archives, spool)


def _open_inside(source: str, place: Place, spool: Spool) -> Reader:
    """`data.h5/train`: a group inside of an HDF5 file."""
    above = source
    while above and not os.path.exists(above):
        above = os.path.dirname(above)
    if os.path.isfile(above):
        root, name = split_source(above)
        outer = Place(root)
        file = outer.find(name)
        assert file is not None
        if look_at(outer, file) is SourceKind.HDF5:
            from feedrate.source.hdf5 import Hdf5Reader

            return Hdf5Reader(outer, [file], spool, group=os.path.relpath(source, above) + "/")
        raise NotFound(f"{above} is a file, so there is no {source}")
    place.find()
    raise AssertionError(source)


def _refuse_labels(options: SourceOptions, source: str) -> None:
    if options.labels is not None or options.fields or options.path_column or options.label_column:
        raise UsageError(
            f"--labels and --field go with a folder or an archive of files; {source} is none",
            hint="leave them out: labels inside of it are found",
        )


def _refuse_splits(place: Place, files: list[PlacedFile]) -> None:
    """Train and test in one folder are two datasets."""
    splits = {_split_of(file.path) for file in files}
    if len(splits) > 1 and None not in splits:
        names = sorted(str(split) for split in splits)
        pattern = f"{place.root}/{names[-1]}*{file_suffix(files[0].path)}"
        raise SourceError(
            f"{place.root} holds the parts of a dataset ({', '.join(names)})",
            hint=f"pack each by itself: feedrate pack {shell_quote(pattern)} PACK",
        )


def _split_of(path: bytes) -> str | None:
    name = os.path.basename(path).lower().decode("utf-8", "replace")
    return next((s for s in sorted(SPLIT_NAMES, key=len, reverse=True) if name.startswith(s)), None)


def is_pattern(source: str) -> bool:
    return _SPECIAL.search(source) is not None and not os.path.exists(source)


def find_files(source: str) -> tuple[Place, list[PlacedFile]]:
    """Return the files that a pattern names, sorted, and the place that they all are in.

    Raises:
        NotFound: there are none, or one that the braces name is missing.
    """
    from concurrent.futures import ThreadPoolExecutor

    first = _SPECIAL.search(source)
    assert first is not None
    fixed = source[: first.start()].rpartition("/")[0]
    rest = source[len(fixed) :].lstrip("/") if fixed else source.lstrip("/")
    root = fixed or ("/" if source.startswith("/") else ".")
    place = Place(root + ("/" if root.endswith(":") else ""))
    found: dict[bytes, PlacedFile] = {}
    patterns = list(_expand(rest))
    single = [os.fsencode(pattern) for pattern in patterns if not re.search(r"[*?\[]", pattern)]
    # A question to a server is mostly waiting. Threads that share a connection by SSH get mixed-up answers.
    at_once = _AT_ONCE if place.is_remote and not place.root.startswith(("sftp:", "ssh:")) else 1
    with ThreadPoolExecutor(at_once) as threads:
        facts = dict(zip(single, threads.map(place.find, single), strict=True))
    for pattern in patterns:
        if re.search(r"[*?\[]", pattern):
            parts = pattern.split("/")
            matches = [file for file in place.walk() if _matches(os.fsdecode(file.path).split("/"), parts)]
            if not matches:
                raise NotFound(f"no file is called like {place.address(os.fsencode(pattern))}")
            found |= {file.path: file for file in matches}
        else:
            file = facts[os.fsencode(pattern)]
            if file is None:
                raise NotFound(
                    f"{place.address(os.fsencode(pattern))} is a folder; the pattern should name files"
                )
            found[file.path] = file
    return place, [found[path] for path in sorted(found)]


def _matches(path: list[str], pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))


def _expand(text: str) -> Iterator[str]:
    names = [text]
    while any(_BRACES.search(name) for name in names):
        names = [one for name in names for one in _expand_first(name)]
        if len(names) > _MOST_NAMES:
            raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    yield from names


def _expand_first(text: str) -> Iterator[str]:
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    before, after = text[: braces.start()], text[braces.end() :]
    numbers = _RANGE.fullmatch(braces[1])
    if numbers is None:
        yield from (before + choice + after for choice in braces[1].split(","))
        return
    first, last = int(numbers[1]), int(numbers[2])
    if last - first >= _MOST_NAMES:
        raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    width = len(numbers[1])
    yield from (f"{before}{number:0{width}d}{after}" for number in range(first, last + 1))
