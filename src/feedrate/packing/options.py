# SPDX-License-Identifier: Apache-2.0
"""What the user may decide about a pack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedrate.errors import UsageError
from feedrate.format import containers
from feedrate.format.fields import AUTO, dump_entries, parse_entries
from feedrate.packing.mapping import Map, check_findable
from feedrate.packing.recode import Recode
from feedrate.source.options import SourceOptions

# About 2,000 photographs: few enough files for any file system, small enough to be fetched one by one.
DEFAULT_SHARD_BYTES = 256_000_000


_DASK = re.compile(r"dask://[^/\s:]+:[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Engine:
    """Where shards are made. All but `name` is for Slurm.

    Attributes:
        name: `local`, `slurm` or `dask://HOST:PORT`.
        minutes: the time limit of a job; what it has not done by then, another one does.
        array_size: jobs at a time.
    """

    name: str = "local"
    partition: str | None = None
    minutes: int | None = None
    memory_bytes: int | None = None
    array_size: int | None = None

    def __post_init__(self) -> None:
        if self.name not in ("local", "slurm") and not _DASK.fullmatch(self.name):
            raise UsageError(f"executor must be local, slurm or dask://HOST:PORT, got '{self.name}'")
        for option, value in (
            ("partition", self.partition),
            ("time", self.minutes),
            ("memory", self.memory_bytes),
            ("array-size", self.array_size),
        ):
            if value is not None and self.name != "slurm":
                raise UsageError(f"--{option} is for --executor slurm, not for '{self.name}'")
            if isinstance(value, int) and value < 1:
                raise UsageError(f"--{option} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class PackOptions(SourceOptions):
    """Settings of `pack`, and how to read its source.

    All but `workers` and `engine` shape the pack: they stay when it is resumed.
    """

    seed: int = 0
    shard_bytes: int = DEFAULT_SHARD_BYTES
    workers: int | None = None  # None: as many as usable cores
    engine: Engine = field(default_factory=Engine)  # who makes the shards
    recode: Recode = field(default_factory=Recode)  # to store fewer pixels, or other ones
    scan: bool = True  # note where JPEGs can be entered, which is what makes loading fast
    # How far apart: "auto", "gpu" (for a decoder that wants them close), or a number of bytes.
    entries: str | int = "auto"
    container: str = "tar"  # or "tfrecord" or "hdf5"
    map: Map | None = None  # a function for what is the same in every epoch; see find_map

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be at least 0 and below 2**63, got {self.seed}")
        if self.shard_bytes < 1:
            raise UsageError(f"shard_bytes must be at least 1, got {self.shard_bytes}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}")
        if self.container not in containers.NAMES:
            raise UsageError(f"format must be one of {', '.join(containers.NAMES)}, got {self.container!r}")
        if self.container == "hdf5":
            from feedrate.format.containers.hdf5 import import_h5py

            import_h5py()  # before hours of work, not after them
        if self.recode.keep_truncated and not self.scan:
            raise UsageError(
                "without a scan nobody sees which images end too early, so none can be filled up",
                hint="leave out --no-scan or --keep-truncated",
            )
        if self.bytes_per_entry != AUTO and (self.recode.raw or not self.scan):
            why, option = (
                ("rows of pixels have none", "--raw") if self.recode.raw else ("there are none", "--no-scan")
            )
            raise UsageError(
                f"entries={self.entries} says how far apart entry points are, and with {option} {why}",
                hint=f"leave out --entries or {option}",
            )
        if self.map is not None:
            # A Slurm job gets the function's name, whatever the number of its processes.
            check_findable(self.map, workers=None if self.engine.name == "slurm" else self.workers)

    @property
    def bytes_per_entry(self) -> int:
        return parse_entries(self.entries)

    def settings(self) -> dict[str, Any]:
        """Return what pack.json says about them; a reader knows what of a table shapes the pack, too."""
        settings: dict[str, Any] = {"seed": self.seed, "shard_bytes": self.shard_bytes}
        settings |= self.recode.settings()
        if self.container != "tar":
            settings["format"] = self.container
        if not self.scan:
            settings["scan"] = False
        settings |= dump_entries(self.bytes_per_entry)
        return settings if self.map is None else {**settings, "map": self.map.settings()}

    def as_in(self, settings: Mapping[str, Any]) -> PackOptions:
        """Return them with the digests of the map that a pack of these settings has of its."""
        return self if self.map is None else replace(self, map=self.map.as_in(settings.get("map")))
