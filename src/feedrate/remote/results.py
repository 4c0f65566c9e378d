# SPDX-License-Identifier: Apache-2.0
"""What reading from a remote source tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchStats:
    """What a loader fetched from a source elsewhere.

    Attributes:
        bytes_fetched: also those that went to scratch.
        most_in_flight: requests at a time.
        values_from_scratch: images and other values that were read from whole files on scratch.
        values_from_source: the others: fetched, or read from a file that was still on its way to scratch.
        spoilt_on_scratch: values that were damaged or gone there, and read from the source instead.
        landed_bytes: shards that are on scratch now.
    """

    requests: int
    bytes_fetched: int
    retries: int
    most_in_flight: int
    values_from_scratch: int
    values_from_source: int
    spoilt_on_scratch: int
    landed_bytes: int
