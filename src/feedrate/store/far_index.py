# SPDX-License-Identifier: Apache-2.0
"""A pack whose index lies elsewhere: parts of it come when first needed, and again when they are damaged."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from feedrate.format.manifest import IndexPart, Manifest, Shard
from feedrate.format.pack import Bools, Pack, Rows
from feedrate.kernel import I32, I64
from feedrate.store.index_folder import IndexFolder
from feedrate.store.patience import log


class FarIndexPack(Pack):
    """Reads a pack by way of an index folder that fills as it is used."""

    def __init__(self, source: str, manifest: Manifest, index: IndexFolder) -> None:
        self._index = index
        self._renewing = threading.Lock()
        self._renewed: set[str] = set()  # parts of the index that were brought twice
        super().__init__(source, manifest)

    def _read_rows(self, positions: I64, wanted: Collection[str] | None) -> tuple[Rows, I32]:
        self._index.bring(self._index_of(positions))
        rows, statuses = super()._read_rows(positions, wanted)
        if statuses.any() and self.renew_index(positions[statuses != 0]):
            rows, statuses = super()._read_rows(positions, wanted)
        return rows, statuses

    def _index_of(self, positions: I64) -> list[IndexPart]:
        shards = np.unique(self.locate(positions)[0])
        return [self.manifest.shards[i].index for i in shards.tolist()]

    def renew_index(self, positions: I64) -> bool:
        """Bring parts of the index again that are damaged here; False: they were brought again before."""
        with self._renewing:
            parts = [part for part in self._index_of(positions) if part.name not in self._renewed]
            self._renewed.update(part.name for part in parts)
        if parts:
            log.warning("%s: files of its index are damaged or gone here; they are brought again", self.name)
            self._index.bring([*parts, *self.manifest.parts], again=True)
            self.files.close()
        return bool(parts)

    def _read_texts(self, column: str, positions: I64) -> tuple[list[bytes], Bools]:
        self._index.bring(self._index_of(positions))
        texts, is_good = super()._read_texts(column, positions)
        if not is_good.all() and self.renew_index(positions[~is_good]):
            texts, is_good = super()._read_texts(column, positions)
        return texts, is_good

    def _stored_column(self, shard: Shard, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        self._index.bring([shard.index])
        return super()._stored_column(shard, name)

    def column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        self._index.bring(shard.index for shard in self.manifest.shards)
        return super().column(name)

    def all_texts(self, column: str, chunk: int = 65536) -> Iterator[bytes]:
        self._index.bring(shard.index for shard in self.manifest.shards)
        return super().all_texts(column, chunk)
