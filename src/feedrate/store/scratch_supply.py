# SPDX-License-Identifier: Apache-2.0
"""Bytes while a pack flows to scratch: from there as far as it has come, else from the source."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from feedrate.store.ranges import Piece, coalesce

# What lies so little behind the end of a file on its way is waited for; else it is read from the source.
SOON_BYTES = 64 << 20


class Copied(Protocol):
    """The copy that bytes flow to."""

    def available_bytes(self, file: bytes) -> tuple[str | None, int]: ...

    def read_near(self, name: str, request: Piece) -> bytes | None: ...

    def read_source(self, request: Piece) -> Future[bytes]: ...

    def wait_for(self, name: str, request: Piece) -> Future[bytes]: ...


class ScratchSupply:
    """Bytes from the copy as far as it has come, else from the source. For one delivery."""

    def __init__(
        self, landing: Copied, on_their_way: frozenset[str], spoilt: frozenset[Piece], landed: set[bytes]
    ) -> None:
        self._landing, self._on_their_way = landing, on_their_way
        self._spoilt, self._landed = spoilt, landed
        self._near: dict[Piece, str] = {}
        self._coming: dict[Piece, str] = {}

    def is_needed(self, piece: Piece) -> bool:
        """Return whether a piece must be fetched: files that have landed are read where they are."""
        return piece in self._spoilt or piece.file not in self._landed

    def requests(self, pieces: Sequence[Piece]) -> list[Piece]:
        files = {piece.file for piece in pieces}
        there = {file: self._landing.available_bytes(file) for file in files}
        near, coming, far = [], [], []
        for piece in pieces:
            name, there_bytes = there[piece.file]
            if name is None or piece in self._spoilt:
                far.append(piece)
            elif piece.stop <= there_bytes:
                near.append(piece)
            elif name in self._on_their_way and piece.stop - there_bytes <= SOON_BYTES:
                coming.append(piece)
            else:
                far.append(piece)
        self._near = {request: there[request.file][0] or "" for request in coalesce(near)}
        self._coming = {request: there[request.file][0] or "" for request in coalesce(coming)}
        return [*self._near, *self._coming, *coalesce(far)]

    def read(self, request: Piece) -> Future[bytes]:
        if request in self._coming:
            return self._landing.wait_for(self._coming[request], request)
        if request in self._near:
            data = self._landing.read_near(self._near[request], request)
            if data is not None:
                future: Future[bytes] = Future()
                future.set_result(data)
                return future
        return self._landing.read_source(request)
