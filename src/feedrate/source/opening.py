# SPDX-License-Identifier: Apache-2.0
"""Decide by looking what a source is, and return the reader for it.

There are many readers and a source needs one: each is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path

from feedrate.errors import FeedrateError, NotFound, SourceError, UsageError
from feedrate.format.keys import file_suffix, has_image_suffix
from feedrate.format.manifest import FILE_NAME, read_manifest
from feedrate.remote.addresses import Place, PlacedFile, explained, is_url, split_source
from feedrate.source.detect import CONTAINERS, SourceKind, form_by_name, look_at
from feedrate.source.file_list import find_files, is_pattern
from feedrate.source.folders import open_folders
from feedrate.source.names import SPLIT_NAMES
from feedrate.source.options import SourceOptions
from feedrate.source.record import Reader
from feedrate.source.spool import Spool
from feedrate.units import shell_quote

_ARCHIVES = frozenset((SourceKind.ZIP, SourceKind.TAR, SourceKind.COMPRESSED_TAR))
EXPECTED = (
    "a folder of images or class folders, a folder with a table (--labels), a list of paths (.txt), or "
    "zip, tar, WebDataset, TFRecord, RecordIO, HDF5 or Parquet files with images, or a folder of such files"
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
    form = look_at(place, file)
    if form is SourceKind.TABLE:
        if options.labels is not None:
            raise UsageError(
                f"{source} is a table, and --labels names another one", hint="name the folder instead"
            )
        return _open_table(root, dataclasses.replace(options, labels=Path(source)))
    if form is SourceKind.LIST:
        _refuse_labels(options, source)
        from feedrate.source.file_list import FileList

        return FileList(place, file)
    if form is SourceKind.UNKNOWN and has_image_suffix(file.path):
        raise SourceError(
            f"{source} is one image; a dataset is a folder of them",
            hint=f"name the folder: {shell_quote(root)}; or a list of paths (.txt)",
        )
    if form is SourceKind.UNKNOWN:
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
            return open_folders(place.root)
        if file.path == FILE_NAME.encode() and not _is_index(place):
            raise SourceError(
                f"{place.root} is a pack already",
                hint=f"see what is in it: feedrate ls {shell_quote(place.root)}; to join packs: feedrate merge",
            )
        form = form_by_name(file.path)
        if form in CONTAINERS:
            files.setdefault(form, []).append(file)
        else:
            others[file_suffix(file.path)] += 1
    if not files:
        return open_folders(place.root)
    if len(files) > 1:
        counts = ", ".join(f"{len(found):,} {form}" for form, found in files.items())
        raise SourceError(
            f"{place.root} holds files of several kinds: {counts}",
            hint="name those of one kind: 'FOLDER/*.tar'",
        )
    (found,) = files.values()
    _refuse_splits(place, found)
    return _open_files(place, found, spool, options)


def _open_table(root: str, options: SourceOptions) -> Reader:
    from feedrate.source.finder import Finder
    from feedrate.source.labelled import LabelledFiles

    return LabelledFiles(Finder(root), options)


def _is_index(place: Place) -> bool:
    """Return whether a pack.json only describes what lies beside it."""
    if place.is_remote:
        return False
    try:
        return all(shard.is_in_place for shard in read_manifest(place.root).shards)
    except FeedrateError:
        return False


def _open_files(place: Place, files: list[PlacedFile], spool: Spool, options: SourceOptions) -> Reader:
    forms = {file.path: look_at(place, file) for file in (files[0], files[-1])}
    form = forms[files[0].path]
    if len(set(forms.values())) > 1 or form not in CONTAINERS:
        first, last = place.address(files[0].path), place.address(files[-1].path)
        what = f"{last} is {forms[files[-1].path]}" if form in CONTAINERS else f"nor is {last}"
        raise SourceError(f"{first} is {form}, {what}", hint=f"a source is {EXPECTED}")
    if form in _ARCHIVES:
        return _open_archives(place, files, spool, options, form)
    _refuse_labels(options, place.address(files[0].path))
    if form is SourceKind.TFRECORD:
        from feedrate.source.tfrecord import ExampleReader

        return ExampleReader(place, files, spool)
    if form is SourceKind.RECORDIO:
        from feedrate.source.recordio import ImageRecordReader

        return ImageRecordReader(place, files, spool)
    if form is SourceKind.HDF5:
        from feedrate.source.hdf5 import Hdf5Reader

        return Hdf5Reader(place, files, spool)
    from feedrate.source.parquet import ParquetReader

    return ParquetReader(place, files, spool)


def _open_archives(
    place: Place, files: list[PlacedFile], spool: Spool, options: SourceOptions, form: SourceKind
) -> Reader:
    from feedrate.source.archives import Archive, ArchiveReader, strip_suffix

    archives = [
        Archive(place, file, spool, b"" if len(files) == 1 else strip_suffix(file.path) + b"/", form)
        for file in files
    ]
    if options.labels is not None:
        from feedrate.source.finder import MemberFinder
        from feedrate.source.labelled import LabelledFiles

        shown = place.address(files[0].path) if len(files) == 1 else place.root
        return LabelledFiles(MemberFinder(place.root, archives, spool), options, shown)
    _refuse_labels(options, place.address(files[0].path))
    from feedrate.source.webdataset import ShardReader, looks_like_shards

    if form is not SourceKind.ZIP and looks_like_shards(archives[0].names()):
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
        suffix = file_suffix(files[0].path)
        raise SourceError(
            f"{place.root} holds the parts of a dataset ({', '.join(names)})",
            hint=f"pack each by itself: feedrate pack {shell_quote(f'{place.root}/{names[-1]}*{suffix}')} PACK",
        )


def _split_of(path: bytes) -> str | None:
    name = os.path.basename(path).lower().decode("utf-8", "replace")
    return next((s for s in sorted(SPLIT_NAMES, key=len, reverse=True) if name.startswith(s)), None)
