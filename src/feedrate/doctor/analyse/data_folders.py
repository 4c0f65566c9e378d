# SPDX-License-Identifier: Apache-2.0
"""Which files each loader of a run reads, and the folder, or the table that the script read, that names them.

`feedrate pack` takes the one, or the other as --labels.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.doctor.analyse.records import Fact, Process, Recording, are_inside
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.errors import FeedrateError, StorageError
from feedrate.files.tree import walk_paths
from feedrate.format.fields import IMAGE_SUFFIXES
from feedrate.source.labelled import LABEL_COLUMNS, PATH_COLUMNS
from feedrate.source.table import Table, read_table

_NOT_DATA = (".py", ".pyc", ".so", ".pth", ".pt", ".cfg", ".toml", ".ini")
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_SUBSET, _SUBSET_SAMPLER = "torch.utils.data.dataset.Subset", "torch.utils.data.sampler.SubsetRandomSampler"
_COUNTING_S = 5.0  # the images of a folder: what takes longer stays uncounted
_LOOKED_FOR = 64  # images that a column of a table must name
_MOST_ROWS = 500_000  # of a table: a larger one is not read
_UNKNOWN_COLUMN = "COLUMN"


def list_opened(recording: Recording, loaders: Collection[str] | None = None) -> list[str]:
    """Return the distinct data files in the order in which they were opened.

    Args:
        loaders: those that their workers opened, or the training process while it waited for them; None: all.
    """
    seen: dict[str, None] = {}
    pids = {pid for main in recording.mains for pid in main.workers_of(loaders or ())}
    for process in recording.processes:
        opened = process.of(layout.OPENED)
        if loaders is not None and process.pid not in pids:
            waits = process.named(process.of(layout.WAIT, phase=layout.REAL), loaders)
            spans = zip(waits["start"].tolist(), (waits["start"] + waits["wall"] + 1).tolist(), strict=True)
            opened = opened[are_inside(opened["start"], list(spans))]
        cwd = str(process.last("process").get("cwd") or "")
        for record in opened:
            path = process.name(record["name"])
            if not path.lower().endswith(_NOT_DATA) and not path.startswith(_SYSTEM):
                seen.setdefault(os.path.join(cwd, path))
    return list(seen)


def list_images(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if Path(path).suffix.lower() in IMAGE_SUFFIXES)


@dataclass(frozen=True)
class LoaderFacts:
    """What the hook told of one loader: itself, its first batch, what samples go through, Pillow's calls."""

    fact: Fact
    batch: Fact
    pipeline: Fact
    calls: Sequence[Fact] = ()

    @classmethod
    def of(cls, main: Process, name: str, made_by: Iterable[Process] = ()) -> LoaderFacts:
        """Return the first of each kind: experiments make further loaders of it, and batches of other sizes.

        Args:
            made_by: the processes that made its samples.
        """
        kinds = ("loader", "batch", "pipeline")
        fact, batch, pipeline = (
            next((f for f in main.facts_of(kind) if f.get("loader") == name), {}) for kind in kinds
        )
        calls = [fact for process in made_by for fact in process.facts_of("calls")]
        return cls(fact, batch, pipeline, [fact for fact in calls if fact.get("loader") in (None, name)])

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.fact.get(name, otherwise)

    @property
    def layers(self) -> list[Fact]:
        return [one for one in self.pipeline.get("layers") or () if isinstance(one, Mapping)]

    @property
    def root(self) -> str:
        """Return the folder of a dataset that numbers class folders; empty: it is another one."""
        return next((str(one["root"]) for one in self.layers if "classes" in one and one.get("root")), "")

    @property
    def chosen(self) -> tuple[int, int] | None:
        """Return how many samples a Subset or a sampler takes, and of how many; None: all, or unknown."""
        found = []
        for one in (next(iter(self.layers), {}), self.pipeline.get("sampler") or {}):
            samples, of = one.get("samples"), one.get("of")
            is_one = one.get("class") in (_SUBSET, _SUBSET_SAMPLER)
            if is_one and isinstance(samples, int) and isinstance(of, int) and 0 < samples < of:
                found.append((samples, of))
        return found[0] if len(found) == 1 else None

    @property
    def samples(self) -> int | None:
        """Return how many samples a pack for this dataset has, that of a Subset whole; None: unknown."""
        length = self.chosen[1] if self.chosen is not None else self.get("dataset_len")
        return length if isinstance(length, int) else None

    @property
    def chooser(self) -> str:
        """Return the sampler that may leave samples out, nobody knows which share; empty: there is none."""
        sampler = str((self.pipeline.get("sampler") or {}).get("class") or "")
        kinds = [sampler, str(self.pipeline.get("batch_sampler") or "")]
        own = [kind for kind in kinds if kind and not kind.startswith(("torch.utils.data.", "builtins."))]
        if sampler == _SUBSET_SAMPLER and self.chosen is None:
            own.append(sampler)
        return next((kind.rpartition(".")[2] for kind in own), "")

    @property
    def batch_bytes(self) -> int:
        return sum(int(tensor.get("bytes") or 0) for tensor in self.batch.get("tensors") or ())

    @property
    def has_labels(self) -> bool:
        form = self.batch.get("form")
        return isinstance(form, (list, Mapping)) and len(form) > 1


@dataclass(frozen=True)
class FileTable:
    """A table with a row for each sample.

    Attributes:
        root: the folder that the column's names begin at.
        label: the column of labels; None: `feedrate pack` finds it by its name.
    """

    path: str
    column: str
    root: str
    rows: int
    label: str | None

    @property
    def words(self) -> str:
        """Return the options of `feedrate pack` that name it."""
        label = "" if self.label is None else f" --label-column {shlex.quote(self.label)}"
        return f"--labels {shlex.quote(self.path)} --path-column {shlex.quote(self.column)}{label}"


@dataclass(frozen=True)
class Place:
    """What a pack for a loader's samples is made of.

    Attributes:
        folder: empty: there is none that could be named.
        samples: that a pack of it has; None: unknown.
        table: that names the files; None: the folders do, or nothing that was seen.
        is_unlabelled: it has no class folders, and where the samples' labels are was not seen.
    """

    folder: str
    samples: int | None = None
    table: FileTable | None = None
    is_unlabelled: bool = False

    @property
    def word(self) -> str:
        """Return the folder as a word of a command; IMAGES where none could be named."""
        return shlex.quote(self.folder) if self.folder else "IMAGES"

    def pack_command(self, pack: str = "PACK") -> str:
        labels = (
            self.table.words if self.table is not None else "--labels TABLE" if self.is_unlabelled else ""
        )
        return f"feedrate pack {self.word} {pack} {labels}".rstrip()


def find_place(paths: Sequence[str], facts: LoaderFacts) -> Place:
    """Return where a loader's samples come from, by the files that were opened for them.

    A dataset that numbers class folders names their root; of others a table that the script read may name
    the files. Else the files tell: a few of them may be of one class alone, so the folder above is taken
    where it has exactly the images that are wanted.
    """
    images, wanted = list_images(paths), facts.samples
    root = facts.root
    if root and not is_everything(root) and all(path.startswith(root.rstrip("/") + "/") for path in images):
        return Place(root, count_images(root) if images or not paths else None)
    if not paths:
        return Place("")
    table = None if root else find_table(facts.pipeline.get("tables") or (), images, wanted)
    if table is not None and not is_everything(table.root):
        return Place(table.root, table.rows, table)
    folder = _common_folder(images or paths)
    if is_everything(folder):
        return Place("")
    count, above = count_images(folder) if images else None, os.path.dirname(folder)
    may_be_a_class = count is not None and wanted is not None and count < wanted and not is_everything(above)
    if may_be_a_class and count_images(above) == wanted:
        return Place(above, wanted)
    is_flat = bool(images) and all(os.path.dirname(path) == folder for path in images)
    return Place(folder, count, is_unlabelled=is_flat and facts.has_labels)


def is_everything(folder: str) -> bool:
    """Return whether this is a disk's root or somebody's home, which nobody packs by a doctor's word."""
    own_folders = {os.path.expanduser("~"), "/home", *(entry.pw_dir for entry in pwd.getpwall())}
    return folder.rstrip("/") in own_folders or os.path.ismount(folder or "/")


def _common_folder(paths: Sequence[str]) -> str:
    folders = [os.path.dirname(path) for path in paths]
    try:
        return os.path.commonpath(folders)
    except ValueError:
        return folders[0]


def count_images(folder: str) -> int | None:
    """Return how many image files are below a folder; None: there is none such, or counting takes long."""
    if not os.path.isdir(folder):
        return None
    until, count = time.monotonic() + _COUNTING_S, 0
    try:
        for path, _ in walk_paths(os.fsencode(folder), enters_links=True):
            count += os.path.splitext(os.fsdecode(path))[1].lower() in IMAGE_SUFFIXES
            if time.monotonic() > until:
                return None
    except StorageError:
        return None
    return count


def find_table(tables: Sequence[str], images: Sequence[str], wanted: int | None) -> FileTable | None:
    """Return the table that names these images, one with as many rows as there are samples first; None: none.

    Args:
        tables: the paths of tables that the script read.
        wanted: the dataset's number of samples.
    """
    asked = images[:: max(len(images) // _LOOKED_FOR, 1)][:_LOOKED_FOR]
    found = [table for path in tables if asked and (table := _read_table(path, asked)) is not None]
    return min(found, key=lambda table: (table.rows != wanted, table.rows), default=None)


def _read_table(path: str, images: Sequence[str]) -> FileTable | None:
    try:
        table = read_table(Path(path))
        rows = list(itertools.islice(table.rows(table.columns), _MOST_ROWS))
    except (FeedrateError, OSError):
        return None
    if len(rows) >= _MOST_ROWS:
        return None
    usual = table.pick(None, PATH_COLUMNS, "files")
    for at in sorted(range(len(table.columns)), key=lambda at: table.columns[at] != usual):
        names = dict.fromkeys(str(row[at]) for row in rows)
        if (root := _find_root(names, images)) is not None:
            column = table.columns[at]
            return FileTable(path, column, root, len(names), _label_column(table, column))
    return None


def _find_root(names: Mapping[str, None], images: Sequence[str]) -> str | None:
    """Return the one folder below which all images have their names in the column."""
    if all(image in names for image in images):
        return os.path.commonpath([os.path.dirname(image) for image in images])
    parts = images[0].split("/")
    for length in range(1, len(parts)):
        root = "/".join(parts[:-length])
        if all(image.startswith(root + "/") and image[len(root) + 1 :] in names for image in images):
            return root
    return None


def _label_column(table: Table, column: str) -> str | None:
    """Return the column that `feedrate pack` must be told; COLUMN: which one it is, the user knows."""
    others = [name for name in table.columns if name and name != column]
    if table.pick(None, LABEL_COLUMNS, "labels") in others:
        return None
    return others[0] if len(others) == 1 else _UNKNOWN_COLUMN
