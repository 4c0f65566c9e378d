# SPDX-License-Identifier: Apache-2.0
"""What the user may decide about a pack."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from feedrate.errors import UsageError
from feedrate.format import containers
from feedrate.format.fields import Field, Kind
from feedrate.pack.recode import Recode

# About 2,000 photographs: few enough files for any file system, small enough to be fetched one by one.
DEFAULT_SHARD_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A further column of the table that becomes a field: `mask:mask=mask_file`."""

    name: str
    kind: Kind
    column: str

    def __post_init__(self) -> None:
        # Field knows which names are possible.
        Field(self.name, self.kind, dtype="float64" if self.kind is Kind.NUMBER else None)
        if self.name in ("image", "label"):
            raise UsageError(
                f"--field cannot make '{self.name}' again", hint="use --path-column or --label-column for it"
            )

    @classmethod
    def parse(cls, text: str) -> FieldSpec:
        """Read `NAME:KIND` or `NAME:KIND=COLUMN`; without COLUMN it is called like the field."""
        head, _, column = text.partition("=")
        name, colon, kind = head.partition(":")
        if not colon or kind not in list(Kind):
            kinds = ", ".join(Kind)
            raise UsageError(
                f"'{text}' is not a field", hint=f"write it like mask:mask=mask_file; kinds: {kinds}"
            )
        return cls(name, Kind(kind), column or name)

    def __str__(self) -> str:
        return f"{self.name}:{self.kind}={self.column}"


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

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be at least 0 and below 2**63, got {self.seed}")
        if self.shard_bytes < 1:
            raise UsageError(f"shard_bytes must be at least 1, got {self.shard_bytes}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}")
        if self.container not in containers.NAMES:
            raise UsageError(f"format must be one of {', '.join(containers.NAMES)}, got {self.container!r}")
        names = [spec.name for spec in self.fields]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice:
            raise UsageError(f"field '{twice}' is given twice")
        if self.labels is None and (self.fields or self.path_column or self.label_column):
            raise UsageError(
                "--field, --path-column and --label-column name columns of a table, and there is none",
                hint="give the table: --labels FILE",
            )
