# SPDX-License-Identifier: Apache-2.0
"""Lies in an index, with right checksums, and every way into a pack for them, under a limit on memory.

As a program it tries lies one after another, so that a crash ends a process that nobody needs:

    python -m support.hostile_index PACK FOLDER < lies.json        prints one JSON line per lie
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import CenterCrop, Dataset, Loader, RandomResizedCrop, Resize, kernel
from feedrate.errors import BadSample, FeedrateError, PackError
from feedrate.format.fields import row_dtype, text_check
from feedrate.format.manifest import Manifest, read_manifest
from feedrate.packing.check.unpack import unpack
from feedrate.packing.check.verify import verify
from support.damage import edit_manifest

# What a lie may make the process take, on top of what it has. The images of these packs take kilobytes.
MOST_BYTES = 256 << 20
MOST_BAD = 200


class LyingPack:
    """A copy of a small pack whose index can be changed, byte by byte, and put right again."""

    def __init__(self, pack: Path, folder: Path) -> None:
        self.path = folder
        shutil.copytree(pack, folder)
        self.manifest: Manifest = read_manifest(folder)
        self.good = {path: path.read_bytes() for path in folder.iterdir()}

    def restore(self) -> None:
        for path, data in self.good.items():
            path.write_bytes(data)

    def index(self, shard: int = 0) -> Path:
        return self.path / self.manifest.shards[shard].index.name

    def tell(self, values: Mapping[str, Mapping[int, Any]], shard: int = 0) -> None:
        """Put values into columns of the index: column -> row -> value; a pair for `.entries`."""
        data = bytearray(self.index(shard).read_bytes())
        columns = self.manifest.shards[shard].index.columns
        dtype = row_dtype(self.manifest.fields)
        for name, changes in values.items():
            for row, value in changes.items():
                if name in (dtype.names or ()):
                    base = dtype[name].base
                    stride = 8 if name.endswith(".entries") else base.itemsize
                    raw = np.array(value, base).tobytes()
                else:  # an offset of a variable-width column
                    stride, raw = 8, np.array(value, "<i8").tobytes()
                at = columns[name][0] + int(row) * stride
                data[at : at + len(raw)] = raw
        self.write_index(bytes(data), shard)

    def write_index(self, data: bytes, shard: int = 0) -> None:
        """Write an index part with right checksums: of its rows and texts, and of the file in pack.json."""
        data = self._check_rows(self._check_texts(bytearray(data), shard), shard)
        self.index(shard).write_bytes(data)
        size_bytes, crc32c = len(data), f"{kernel.crc32c(data):08x}"
        edit_manifest(
            self.path, lambda d: d["shards"][shard]["index"].update(bytes=size_bytes, crc32c=crc32c)
        )

    def _check_texts(self, data: bytearray, shard: int) -> bytearray:
        entry = self.manifest.shards[shard]
        columns, view = entry.index.columns, memoryview(bytes(data))
        for name in [name for name in columns if text_check(name) in columns]:
            starts_at, texts_at = columns[name]
            starts = np.frombuffer(view, "<i8", entry.samples + 1, starts_at).tolist()
            for row, (start, stop) in enumerate(itertools.pairwise(starts)):
                if 0 <= start <= stop <= len(view) - texts_at:
                    crc32c = kernel.crc32c(view[texts_at + start : texts_at + stop])
                    at = columns[text_check(name)][0] + 4 * row
                    data[at : at + 4] = crc32c.to_bytes(4, "little")
        return data

    def _check_rows(self, data: bytearray, shard: int) -> bytes:
        entry, dtype = self.manifest.shards[shard], row_dtype(self.manifest.fields)
        rows = np.zeros(entry.samples, dtype)
        for name in dtype.names or ():
            base, at = dtype[name].base, entry.index.columns[name][0]
            if name.endswith(".entries"):
                ends = np.frombuffer(data, base, entry.samples + 1, at)
                rows[name] = np.stack([ends[:-1], ends[1:]], axis=1)
            else:
                rows[name] = np.frombuffer(data, base, entry.samples, at)
        checks = kernel.crc32c_rows(rows).tobytes()
        at = entry.index.columns["check"][0]
        data[at : at + len(checks)] = checks
        return bytes(data)


def ways_in(lying: LyingPack, target: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what people do with a pack that they were given."""
    pack, fields = lying.path, (*(field.name for field in lying.manifest.fields), "key", "number")

    bad: list[BadSample] = []

    def note(sample: BadSample) -> None:
        bad.append(sample)
        if len(bad) > MOST_BAD:  # of a pack that claims to have billions of samples, all will be
            raise sample

    def load(**options: Any) -> int:
        options = {"batch_size": 4, "output": "numpy", "threads": 2, "fields": fields, **options}
        with Loader(pack, **options) as loader:
            return sum(len(batch[0]) for batch in loader)

    def get(**options: Any) -> None:
        dataset = Dataset(pack, output="numpy", **options)
        for position in range(min(len(dataset), 8)):
            dataset[position]

    def get_batch(**options: Any) -> None:
        dataset = Dataset(pack, output="numpy", **options)
        dataset.__getitems__(range(min(len(dataset), 8)))

    def check() -> None:
        found = verify(pack, workers=1)
        if found.problems:
            raise PackError(found.problems[0].text)

    yield "Loader, random crops", lambda: load(image=RandomResizedCrop(8), flip=True)
    yield "Loader, skip", lambda: load(image=CenterCrop(8, resize=9), on_bad_sample=note)
    yield "Loader, whole", lambda: load(image=Resize(8), on_bad_sample=note)
    yield "Loader, as they are", lambda: load(on_bad_sample=note)
    yield "Dataset", get
    yield "Dataset, all fields", lambda: get_batch(fields=fields)
    yield "Dataset, targets", lambda: Dataset(pack).targets
    yield "verify", check
    yield "unpack", lambda: unpack(pack, target, workers=1)


def try_all(pack: LyingPack, target: Path) -> dict[str, str]:
    """Return how each way in ended: "good", the class of a FeedrateError, or what must not be."""
    ended = {}
    for name, enter in ways_in(pack, target):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # numbers that overflowed
                enter()
            ended[name] = "good"
        except FeedrateError as error:
            ended[name] = type(error).__name__
        except Exception as error:
            ended[name] = f"BARE {type(error).__name__}: {str(error)[:200]} ({_where(error)})"
    shutil.rmtree(target, ignore_errors=True)
    return ended


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""


def limit_memory(more_bytes: int = MOST_BYTES) -> None:
    """Let this process take so much more memory, and no more: beyond that a MemoryError, not a swap."""
    import feedrate.format.index  # noqa: F401 - what is loaded later would count

    with open("/proc/self/status") as status:
        data = next(line for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (int(data.split()[1]) * 1024 + more_bytes,) * 2)


def main(pack: str, folder: str) -> None:
    lying = LyingPack(Path(pack), Path(folder) / "pack")
    target = Path(folder) / "unpacked"
    try_all(lying, target)  # loads what is loaded when it is first needed
    limit_memory()
    for lie in json.load(sys.stdin):
        lying.restore()
        lying.tell(lie)
        print(json.dumps(try_all(lying, target)), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    main(*sys.argv[1:])
