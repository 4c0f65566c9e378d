# SPDX-License-Identifier: Apache-2.0
"""Many short byte strings (names, paths, entry points) in one stretch of memory: a Python object each would
take ten times the memory, and more time than packing a small file does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from feedrate import kernel
from feedrate.kernel import I64

_TOGETHER = 4096


class ByteStrings(Sequence[bytes]):
    """Text `i` is `data[starts[i]:starts[i + 1]]`."""

    __slots__ = ("data", "starts")

    def __init__(self, data: bytes, starts: I64) -> None:
        self.data, self.starts = data, starts

    @classmethod
    def of(cls, values: Sequence[bytes]) -> ByteStrings:
        """Return values as they are if they are texts already."""
        if isinstance(values, ByteStrings):
            return values
        return cls.by_lengths(b"".join(values), np.fromiter(map(len, values), np.int64, len(values)))

    @classmethod
    def by_lengths(cls, data: bytes, lengths: I64) -> ByteStrings:
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return cls(data, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> ByteStrings: ...
    def __getitem__(self, index: int | slice) -> bytes | ByteStrings:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            assert step == 1, "texts are divided into stretches"
            return ByteStrings(self.data, self.starts[first : max(first, stop) + 1])
        at = range(len(self))[index]
        return self.data[int(self.starts[at]) : int(self.starts[at + 1])]

    def __iter__(self) -> Iterator[bytes]:
        for first in range(0, len(self), _TOGETHER):
            bounds = self.starts[first : first + _TOGETHER + 1].tolist()
            for start, stop in pairwise(bounds):
                yield self.data[start:stop]

    def take(self, chosen: np.ndarray[Any, Any], before: bytes = b"") -> ByteStrings:
        """Return some of them, by number or by a mask, with `before` in front of each."""
        starts, lengths = self.starts[:-1][chosen], self.lengths[chosen]
        return ByteStrings.by_lengths(
            kernel.join_pieces(self.data, starts, lengths, before), lengths + len(before)
        )

    @property
    def lengths(self) -> I64:
        lengths: I64 = np.diff(self.starts)
        return lengths

    def find_first(self) -> int:
        """Return the number of the first by alphabet; of equal ones the first."""
        return kernel.find_first(*self.pack())

    def pack(self) -> tuple[bytes, I64]:
        """Return data that holds these and no others, and where each starts in it."""
        first, last = int(self.starts[0]), int(self.starts[-1])
        return self.data[first:last], self.starts - first


class TextsBuilder:
    """Texts that come one by one, or many at a time."""

    def __init__(self) -> None:
        self._pieces: list[ByteStrings] = []
        self._loose: list[bytes] = []

    def append(self, text: bytes) -> None:
        self._loose.append(text)

    def extend(self, texts: ByteStrings) -> None:
        self._gather()
        self._pieces.append(texts)

    def finish(self) -> ByteStrings:
        self._gather()
        return join_texts(self._pieces)

    def _gather(self) -> None:
        if self._loose:
            self._pieces.append(ByteStrings.of(self._loose))
            self._loose = []


def join_texts(pieces: Iterable[ByteStrings]) -> ByteStrings:
    """Return texts one behind the other."""
    packed = [piece.pack() for piece in pieces]
    lengths = [np.diff(starts) for _, starts in packed]
    return ByteStrings.by_lengths(
        b"".join(data for data, _ in packed), np.concatenate([np.zeros(0, np.int64), *lengths])
    )
