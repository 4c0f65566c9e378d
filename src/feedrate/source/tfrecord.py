# SPDX-License-Identifier: Apache-2.0
"""TFRecord files that somebody arrives with: records, or a sentence about the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from feedrate.errors import SourceError
from feedrate.format.containers import records


def read_records(stream: BinaryIO, address: str) -> Iterator[tuple[int, bytes]]:
    """Yield each record and where it begins, every byte checked.

    Raises:
        SourceError: the file is damaged, cut short, or not TFRecord.
    """
    try:
        yield from records.read_records(stream)
    except records.BadRecord as error:
        if isinstance(error, records.NoRecord) and not error.at:
            raise SourceError(
                f"{address} is not a TFRecord file",
                hint="compressed by zlib? decompress it first (gzip is understood)",
            ) from error
        raise SourceError(f"{address}: {error}") from error
