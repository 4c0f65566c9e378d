# SPDX-License-Identifier: Apache-2.0
"""Changes an index at random, with right checksums, and enters the pack by every door; run by test_fuzz.py.

    python index_fuzz.py FOLDER SEED SECONDS       prints how many packs were tried, and how they ended

Ends with 1, and the change to try again, at the first outcome that is neither good samples nor an error in
words. Memory is limited: what takes more than it may ends in a MemoryError, which is none of the two.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from feedrate import PackOptions, Recode, pack
from feedrate.format.fields import Coding, Field, Kind, row_dtype
from support.damage import edit_manifest
from support.hostile_index import LyingPack, limit_memory, try_all
from support.images import save_image
from support.packs import write_everything, write_images, write_pack

WHOLE = (
    *(2**n + d for n in (7, 8, 15, 16, 31, 32, 33, 48, 62) for d in (-1, 0, 1)),
    2**63 - 1, -1, -2, -(2**31), -(2**62), -(2**63), 0, 1, 2, 3, 12, 600 << 20, 15 << 20, 10**9, 13_000,
)  # fmt: skip


class Liar:
    """Draws changes to a pack; each is described well enough to be made again."""

    def __init__(self, pack: LyingPack, seed: int) -> None:
        self.pack, self.random = pack, random.Random(seed)

    def lie(self) -> list[Any]:
        """Change the pack; return what was changed."""
        choose = self.random.choices(
            (self.change_rows, self.change_bytes, self.change_manifest, self.cut), (12, 4, 4, 1)
        )[0]
        return [choose.__name__, choose()]

    def number(self, size: int) -> int:
        """Return a number that may matter, for something of `size` bytes."""
        kind = self.random.randrange(4)
        if kind == 0:
            return size + self.random.choice((-1, 0, 1, 2, 16))
        if kind == 1:
            return self.random.randrange(abs(size) + 1)
        if kind == 2:
            return self.random.getrandbits(64) - 2**63
        return self.random.choice(WHOLE)

    def change_rows(self) -> dict[str, dict[int, Any]]:
        shard = self.random.randrange(len(self.pack.manifest.shards))
        entry = self.pack.manifest.shards[shard]
        dtype, columns = row_dtype(self.pack.manifest.fields), sorted(entry.index.columns)
        told: dict[str, dict[int, Any]] = {}
        for _ in range(self.random.choice((1, 1, 2, 3, 8))):
            name = self.random.choice([c for c in columns if c != "check"])
            row = self.random.randrange(entry.samples)
            base = dtype[name].base if name in (dtype.names or ()) else np.dtype("<i8")
            value: Any = self.number(self.random.choice((entry.size_bytes, entry.index.size_bytes)))
            if base.kind == "f":
                value = self.random.choice((float("nan"), float("inf"), -0.0, 1e308))
            else:  # as the column holds it
                bits = 8 * base.itemsize
                value = value % 2**bits - (2**bits if base.kind == "i" and value % 2**bits >> bits - 1 else 0)
            # Often the same for several samples, so that sums matter.
            rows = range(entry.samples) if self.random.random() < 0.2 else (row,)
            told.setdefault(name, {}).update(dict.fromkeys(rows, value))
        self.pack.tell(told, shard)
        return told

    def change_bytes(self) -> list[tuple[int, int]]:
        """Anywhere in the Arrow file: its own headers too, which pyarrow reads."""
        shard = self.random.randrange(len(self.pack.manifest.shards))
        data = bytearray(self.pack.index(shard).read_bytes())
        changed = [
            (self.random.randrange(len(data)), self.random.choice((0, 1, 0x7F, 0x80, 0xFF)))
            for _ in range(self.random.choice((1, 1, 2, 8)))
        ]
        for at, value in changed:
            data[at] = value
        self.pack.write_index(bytes(data), shard)
        return changed

    def cut(self) -> int:
        shard = self.random.randrange(len(self.pack.manifest.shards))
        path = self.pack.path / self.pack.manifest.shards[shard].name
        if self.random.random() < 0.5:
            path = self.pack.index(shard)
        data = path.read_bytes()
        left = self.random.randrange(len(data) + 1)
        path.write_bytes(data[:left])
        return left

    def change_manifest(self) -> list[Any]:
        changed: list[Any] = []

        def change(document: dict[str, Any]) -> None:
            places = list(_numbers(document))
            for _ in range(self.random.choice((1, 1, 2))):
                where, key = self.random.choice(places)
                where[key] = self.number(int(where[key]))
                changed.append([key, where[key]])
            if self.random.random() < 0.5:  # consistent lies get further
                document["samples"] = sum(s["samples"] for s in document["shards"])

        edit_manifest(self.pack.path, change)
        return changed


def _numbers(value: Any) -> Any:
    """Yield where whole numbers stand in a document: the container, and the key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(inner, int) and not isinstance(inner, bool):
            yield value, key
        else:
            yield from _numbers(inner)


def make_packs(folder: Path) -> list[Path]:
    """Return packs of many kinds: what an index says is read by other code for each."""
    for i in range(6):
        save_image(folder / "source" / "a" / f"{i}.jpg", i, width=24 + i, height=20)
    pack(folder / "source", folder / "tar", PackOptions(workers=1))
    pack(folder / "source", folder / "raw", PackOptions(workers=1, recode=Recode(raw=True)))
    bare = Field("points", Kind.ARRAY, dtype="float32", shape=(2, 3), coding=Coding.RAW)
    points = [{"points": np.full((2, 3), i, np.float32).tobytes()} for i in range(6)]
    return [
        write_everything(folder / "everything"),
        write_images(folder / "images", count=8),
        write_pack(folder / "bare", [bare], points),
        folder / "tar",
        folder / "raw",
    ]


def main(folder: str, seed: str, seconds: str) -> int:
    packs = [LyingPack(p, Path(folder) / f"copy-of-{p.name}") for p in make_packs(Path(folder))]
    liars = [Liar(one, int(seed) * 100 + i) for i, one in enumerate(packs)]
    target = Path(folder) / "unpacked"
    for one in packs:
        try_all(one, target)  # loads what is loaded when it is first needed
    limit_memory()
    ended: Counter[str] = Counter()
    runs, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        liar = liars[runs % len(liars)]
        liar.pack.restore()
        told = liar.lie()
        outcomes = try_all(liar.pack, target)
        runs += 1
        ended.update(outcome.partition(":")[0] for outcome in outcomes.values())
        bare = {way: outcome for way, outcome in outcomes.items() if outcome.startswith("BARE")}
        if bare:
            print(json.dumps({"pack": liar.pack.path.name, "run": runs, "told": told, "ended": bare}))
            return 1
    print(json.dumps({"runs": runs, "ended": ended}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
