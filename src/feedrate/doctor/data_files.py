# SPDX-License-Identifier: Apache-2.0
"""The files that samples come from: where they lie, how big they are, and how fast our decoder is on them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from feedrate import kernel
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.measured import KernelTime
from feedrate.doctor.records import Recording
from feedrate.doctor.surroundings import DataFiles
from feedrate.probe.residency import measure_residency
from feedrate.probe.storage import describe_storage
from feedrate.stats import median

_JPEGS = (".jpg", ".jpeg", ".jpe", ".jfif")
_NOT_DATA = (".py", ".pyc", ".so", ".pth", ".pt", ".cfg", ".toml", ".ini")
_SIZED_FILES = 400
_TIMED_FILES = 24


def describe_data(recording: Recording, dataset_len: int | None) -> DataFiles | None:
    """Look at the files that were opened while samples were made; None when there were none."""
    paths = _opened_paths(recording)
    if not paths:
        return None
    sizes = [size for path in paths[:_SIZED_FILES] if (size := _size(path)) is not None]
    if not sizes:
        return None
    folder = _common_folder(paths)
    storage = describe_storage(paths[0])
    suffixes = Counter(Path(path).suffix.lower() for path in paths)
    mean_bytes = sum(sizes) / len(sizes)
    # One file per sample, or few big ones: then the sum of what was seen is the better guess.
    is_per_sample = dataset_len is not None and len(paths) > min(50, dataset_len / 2)
    return DataFiles(
        folder=folder,
        kind=storage.kind,
        source=storage.source,
        is_network=storage.is_network,
        is_fuse=storage.is_fuse,
        is_memory=storage.is_memory,
        is_rotational=None if storage.is_virtual_disk else storage.rotational,
        files_seen=len(paths),
        mean_bytes=mean_bytes,
        suffixes=tuple(suffix for suffix, _ in suffixes.most_common(3)),
        resident=measure_residency(paths[:100]),
        dataset_bytes=mean_bytes * dataset_len if is_per_sample and dataset_len else float(sum(sizes)),
        jpegs=tuple(path for path in paths if path.lower().endswith(_JPEGS)),
    )


def time_kernel(jpegs: Sequence[str], size: tuple[int, int] | None, *, crops: bool) -> KernelTime | None:
    """Time our decoder on some of the user's JPEG files, from bytes in memory, as the loader would use it.

    Args:
        size: of the batch's images; None: 224 x 224.
        crops: the user's code takes random crops: a part of each image, as RandomResizedCrop draws it.
    """
    chosen = random.Random(0).sample(list(jpegs), min(_TIMED_FILES, len(jpegs)))
    seconds, tried = [], 0
    for path in chosen:
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        tried += 1
        try:
            scan = kernel.scan(data)
            box = _middle_box(scan.width, scan.height, 0.54 if crops else 1.0)
            stages = kernel.profile_decode(data, scan.entries, box=box, size=size or (224, 224), repeats=5)
        except ValueError:
            continue
        seconds.append(sum(stages.values()))
    if not tried:
        return None
    return KernelTime(median(seconds) if seconds else 0.0, len(seconds), tried)


def _middle_box(width: int, height: int, share: float) -> tuple[int, int, int, int]:
    """Return a box in the middle with a share of the area: 0.54 is RandomResizedCrop's mean."""
    side = share**0.5
    w, h = max(round(width * side), 1), max(round(height * side), 1)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _opened_paths(recording: Recording) -> list[str]:
    """Return the distinct paths in the order in which they were opened, most of them of data."""
    seen: dict[str, None] = {}
    for process in recording.processes:
        cwd = str(process.last("process").get("cwd") or "")
        for record in process.of(layout.OPENED):
            path = process.name(record["name"])
            if not path.lower().endswith(_NOT_DATA) and not path.startswith(("/proc/", "/sys/", "/dev/")):
                seen.setdefault(os.path.join(cwd, path))
    return list(seen)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _common_folder(paths: Sequence[str]) -> str:
    folders = [os.path.dirname(path) for path in paths]
    try:
        return os.path.commonpath(folders)
    except ValueError:
        return folders[0]
