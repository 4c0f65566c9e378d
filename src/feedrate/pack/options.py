# SPDX-License-Identifier: Apache-2.0
"""What the user may decide about a pack."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from feedrate.errors import UsageError
from feedrate.format import containers
from feedrate.pack.mapping import Map, refuse_unfindable
from feedrate.pack.recode import Recode
from feedrate.source.options import FieldSpec, SourceOptions

# About 2,000 photographs: few enough files for any file system, small enough to be fetched one by one.
DEFAULT_SHARD_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Settings of `pack`. All but `workers` shape the pack and must stay the same when it is resumed."""

    labels: Path | None = None  # a .csv, .tsv, .jsonl or .parquet table
    path_column: str | None = None  # None: guessed
    label_column: str | None = None
    fields: tuple[FieldSpec, ...] = ()
    seed: int = 0
    shard_bytes: int = DEFAULT_SHARD_BYTES
    workers: int | None = None  # None: as many as usable cores
    recode: Recode = field(default_factory=Recode)  # to store fewer pixels, or other ones
    container: str = "tar"  # or "tfrecord" or "hdf5"
    map: Map | None = None  # a function for what is the same in every epoch; see find_map

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be at least 0 and below 2**63, got {self.seed}")
        if self.shard_bytes < 1:
            raise UsageError(f"shard_bytes must be at least 1, got {self.shard_bytes}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}")
        if self.container not in containers.NAMES:
            raise UsageError(f"format must be one of {', '.join(containers.NAMES)}, got {self.container!r}")
        if self.map is not None:
            refuse_unfindable(self.map, workers=self.workers)
        # It knows which of them fit together.
        _ = self.source

    @property
    def source(self) -> SourceOptions:
        return SourceOptions(self.labels, self.path_column, self.label_column, self.fields)
