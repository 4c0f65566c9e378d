# SPDX-License-Identifier: Apache-2.0
"""Which files each loader of a run reads, and the folder that a command for its samples names."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.doctor.analyse.data_tables import FileTable, find_table
from feedrate.doctor.analyse.records import Process, Recording
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.errors import StorageError
from feedrate.files.tree import walk_paths
from feedrate.prelist import IMAGE_SUFFIXES

Fact = Mapping[str, Any]
_NOT_DATA = (".py", ".pyc", ".so", ".pth", ".pt", ".cfg", ".toml", ".ini")
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_SUBSET, _SUBSET_SAMPLER = "torch.utils.data.dataset.Subset", "torch.utils.data.sampler.SubsetRandomSampler"
_COUNTING_S = 5.0  # the images of a folder: what takes longer stays uncounted


def list_opened(recording: Recording, loaders: Collection[str] | None = None) -> list[str]:
    """Return the distinct data files in the order in which they were opened.

    Args:
        loaders: those that their workers opened, or the training process while it waited for them; None: all.
    """
    seen: dict[str, None] = {}
    pids = _workers_of(recording, loaders or ())
    for process in recording.processes:
        opened = process.of(layout.OPENED)
        if loaders is not None and process.pid not in pids:
            opened = opened[_are_inside(opened["start"], process, loaders)]
        cwd = str(process.last("process").get("cwd") or "")
        for record in opened:
            path = process.name(record["name"])
            if not path.lower().endswith(_NOT_DATA) and not path.startswith(_SYSTEM):
                seen.setdefault(os.path.join(cwd, path))
    return list(seen)


def _workers_of(recording: Recording, loaders: Collection[str]) -> set[int]:
    return {
        pid
        for main in recording.mains
        for fact in main.facts_of("workers")
        if fact.get("loader") in loaders
        for pid in fact.get("pids", ())
    }


def _are_inside(starts: Any, process: Process, loaders: Collection[str]) -> Any:
    """Return which of these times fall into a process's waits for the loaders."""
    waits = process.of(layout.WAIT, phase=layout.REAL)
    waits = waits[np.array([process.name(number) in loaders for number in waits["name"]], dtype=bool)]
    if not len(waits):
        return np.zeros(len(starts), dtype=bool)
    at = np.searchsorted(waits["start"], starts, side="right") - 1
    last = waits[np.maximum(at, 0)]
    return (at >= 0) & (starts <= last["start"] + last["wall"])


def list_images(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if Path(path).suffix.lower() in IMAGE_SUFFIXES)


@dataclass(frozen=True)
class LoaderFacts:
    """What the hook told of one loader."""

    loader: Fact
    batch: Fact
    pipeline: Fact

    @classmethod
    def of(cls, main: Process, name: str) -> LoaderFacts:
        kinds = ("loader", "batch", "pipeline")
        return cls(*(next((f for f in main.facts_of(k) if f.get("loader") == name), {}) for k in kinds))

    @property
    def layers(self) -> list[Fact]:
        return [one for one in self.pipeline.get("layers") or () if isinstance(one, Mapping)]

    @property
    def root(self) -> str:
        """Return the folder of a dataset that numbers class folders; empty: it is another one."""
        return next((str(one["root"]) for one in self.layers if "classes" in one and one.get("root")), "")

    @property
    def chosen(self) -> tuple[int, int] | None:
        return find_chosen(self.pipeline)

    @property
    def samples(self) -> int | None:
        """Return how many samples a pack for this dataset has, that of a Subset whole; None: unknown."""
        length = self.chosen[1] if self.chosen is not None else self.loader.get("dataset_len")
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
    def has_labels(self) -> bool:
        form = self.batch.get("form")
        return isinstance(form, (list, Mapping)) and len(form) > 1


def find_chosen(pipeline: Fact) -> tuple[int, int] | None:
    """Return how many samples a Subset or a sampler takes, and of how many; None: all, or unknown."""
    outer = next((one for one in pipeline.get("layers") or () if isinstance(one, Mapping)), {})
    found = []
    for one in (outer, pipeline.get("sampler") or {}):
        samples, of = one.get("samples"), one.get("of")
        if (
            one.get("class") in (_SUBSET, _SUBSET_SAMPLER)
            and isinstance(samples, int)
            and isinstance(of, int)
        ):
            found += [(samples, of)] if 0 < samples < of else []
    return found[0] if len(found) == 1 else None


def share_of(samples: int, of: int) -> float:
    """Return the share for `split=` that is exactly so many samples, in as few digits as that takes."""
    shares = (round(samples / of, digits) for digits in range(2, 16))
    return next((share for share in shares if round(share * of) == samples), samples / of)


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
