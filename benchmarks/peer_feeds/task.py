# SPDX-License-Identifier: Apache-2.0
"""The task that all peers are given, and how a peer is measured at it; standard library only."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.lab.child import Feed, Readings, measure

SUFFIXES = (".jpg", ".jpeg")
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10
Batch = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """Shuffled batches of (uint8 images, labels): random crops of a folder's JPEGs, resized, half flipped.

    Attributes:
        repeat: how often an epoch lists each file; small folders make epochs too short to time.
        pack: where a peer that reads a format of its own writes it.
    """

    folder: str
    pack: str
    batch_size: int
    threads: int
    repeat: int = 1
    side: int = 224

    def list_samples(self) -> list[tuple[str, int]]:
        """Return (path, label) of every JPEG, `repeat` times; the label is the number of its top folder."""
        return list_jpegs(self.folder) * self.repeat


def list_jpegs(folder: str) -> list[tuple[str, int]]:
    paths = sorted(
        Path(at) / name
        for at, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    )
    tops = [path.relative_to(folder).parts[0] if path.parent != Path(folder) else "" for path in paths]
    numbers = {top: number for number, top in enumerate(sorted(set(tops)))}
    return [(str(path), numbers[top]) for path, top in zip(paths, tops, strict=True)]


def draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width, height of a random crop by RandomResizedCrop's rule."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


class Stream:
    """Cuts an endless stream of batches into epochs; what one gives beyond its images counts for the next."""

    def __init__(self, batches: Iterator[Batch], images: int) -> None:
        self._batches = batches
        self._images = images
        self._ahead = 0

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - the stream goes on
        given = self._ahead
        while given < self._images:
            batch = next(self._batches)
            given += len(batch[0])
            yield batch
        self._ahead = given - self._images


class Epochs:
    """A loader that starts anew for every epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:  # noqa: ARG002 - the loader counts itself
        return iter(self._loader)


def drain(make: Callable[[], Feed[Batch]], epochs: int) -> Readings:
    """Take batches and do nothing with them but look at what they are."""
    return measure(make, _count, epochs=epochs, cpu_clock=measure_tree_cpu)


def _count(batch: Batch) -> int:
    images, labels = batch
    if "uint8" not in str(images.dtype) or len(images) != len(labels):
        raise TypeError(f"a batch of {len(images)} {images.dtype} images and {len(labels)} labels")
    return len(images)


def measure_tree_cpu() -> float:
    """Return the CPU seconds of this process and its descendants, ended ones included; no psutil here."""
    times: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended just now: its parent counts it
            times[int(entry)] = int(words[1]), sum(map(int, words[11:15]))
    tree = {os.getpid()}
    while more := {pid for pid, (parent, _) in times.items() if parent in tree} - tree:
        tree |= more
    return sum(times[pid][1] for pid in tree if pid in times) / os.sysconf("SC_CLK_TCK")
