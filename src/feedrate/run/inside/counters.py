# SPDX-License-Identifier: Apache-2.0
"""What was taken and what was left, and how long fetches took: numbers of one loader in one process.

They stand in a small mapped file, since workers are ended without notice; the launcher adds all files up.
Without a folder they are kept in memory: in the children that prove a loader.
"""

from __future__ import annotations

import enum
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any


class Left(str, enum.Enum):
    """Why an image, or an operation on it, was left to Pillow."""

    DAMAGED = "damaged"
    NOT_TAKEN = "not-taken"  # CMYK, progressive, 12 bit ...: the kernel does not decode it
    OTHER_PIXELS = "other-pixels"  # this Pillow's pixels differ from the kernel's in what this image needs
    OTHER_READER = "other-reader"  # a draft, a subclass, methods that somebody replaced
    TRUNCATED_WANTED = "truncated-wanted"  # damaged, under LOAD_TRUNCATED_IMAGES
    NO_BYTES = "no-bytes"  # the file object is of another kind
    OTHER_FORMAT = "other-format"  # a PNG, a WebP ...

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Left.DAMAGED: "damaged files",
    Left.NOT_TAKEN: "JPEGs that the kernel does not decode (progressive, CMYK)",
    Left.OTHER_PIXELS: "JPEGs of which this Pillow makes other pixels",
    Left.OTHER_READER: "JPEGs that the script reads in its own way (draft, subclasses)",
    Left.TRUNCATED_WANTED: "damaged files under LOAD_TRUNCATED_IMAGES",
    Left.NO_BYTES: "JPEGs in file objects that are neither plain files nor BytesIO",
    Left.OTHER_FORMAT: "images of other formats",
}
FIELDS = (
    "version", "pid", "is_main", "loader",
    "parent",  # the training process's number
    "taken",  # images whose pixels our kernel made
    "found", "scanned",  # of their entry points: in the cache, or made
    "scan_ns",  # CPU time of the scans
    "batches", "epochs", "wait_ns", "busy_ns",  # in the training process: next(), and between two of them
    "main_cpu_ns",  # of the training process, over both
    "lazy_fetches", "lazy_samples", "lazy_cpu_ns", "lazy_wall_ns", "lazy_wall_ms2",  # and squares
    "bare_fetches", "bare_samples", "bare_cpu_ns", "bare_wall_ns", "bare_wall_ms2",  # made to compare
    *(f"left_{reason.value}" for reason in Left),
)  # fmt: skip
VERSION = 1
_AT = {name: number for number, name in enumerate(FIELDS)}
_LEFT_AT = {reason: _AT[f"left_{reason.value}"] for reason in Left}
_BYTES = 4096  # room for fields of later versions


class Counters:
    """The numbers of one loader in this process; `add` is safe to call at any time, and never raises."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._values = memoryview(memory).cast("d")

    def add(self, name: str, value: float = 1) -> None:
        self._values[_AT[name]] += value

    def add_left(self, reason: Left) -> None:
        self._values[_LEFT_AT[reason]] += 1

    def get(self, name: str) -> float:
        return self._values[_AT[name]]

    def as_dict(self) -> dict[str, float]:
        return dict(zip(FIELDS, self._values, strict=False))


def open_counters(folder: str, loader: int, parent: int | None = None) -> Counters:
    """Return counters in a new file of `folder`; in memory where it cannot be made, or `folder` is empty.

    Args:
        parent: of a worker: the training process.
    """
    memory: Any = bytearray(_BYTES)
    if folder:
        path = os.path.join(folder, f"counters-{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}")
        try:
            with open(path, "xb+") as file:
                # Written, not sparse: on a full disk a page that has no block would kill the process.
                file.write(bytes(_BYTES))
                file.flush()
                memory = mmap.mmap(file.fileno(), _BYTES)
        except OSError:
            pass
    counters = Counters(memory)
    for name, value in (
        ("version", VERSION), ("pid", os.getpid()), ("is_main", parent is None), ("loader", loader),
        ("parent", os.getpid() if parent is None else parent),
    ):  # fmt: skip
        counters.add(name, value)
    return counters


def read_counters(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Return the node and the numbers of all processes of a run."""
    found = []
    for path in sorted(folder.glob("counters-*-*-*")):
        data = path.read_bytes()
        if len(data) == _BYTES:
            values = Counters(bytearray(data)).as_dict()
            node = path.name.split("-", 1)[1].rsplit("-", 2)[0]
            found += [(node, values)] if values["version"] == VERSION else []
    return found


class _Here(threading.local):
    """The numbers of the loader that this thread fetches for; what is counted between fetches is nobody's."""

    current = Counters(bytearray(_BYTES))


here = _Here()


def take(name: str = "taken", value: float = 1) -> None:
    here.current.add(name, value)


def leave(reason: Left) -> None:
    here.current.add_left(reason)
