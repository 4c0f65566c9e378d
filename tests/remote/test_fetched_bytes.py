# SPDX-License-Identifier: Apache-2.0
"""What was asked for lies in the fetched, however requests were joined, cut and answered."""

from __future__ import annotations

import functools
import gc
import os
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import StorageError
from feedrate.remote.fetch import PendingFetch, Piece, coalesce

FILES = {name: bytes((n * step) % 251 for n in range(700)) for step, name in ((7, b"a"), (11, b"b"))}
pieces = st.builds(Piece, st.sampled_from([b"a", b"b"]), st.integers(0, 600), st.integers(0, 90))


class Supply:
    """Answers in another order than it was asked."""

    def __init__(self) -> None:
        self.open: list[tuple[Piece, Future[bytes]]] = []

    def read(self, request: Piece) -> Future[bytes]:
        future: Future[bytes] = Future()
        self.open.append((request, future))
        return future

    def answer(self) -> None:
        for request, future in reversed(self.open):
            future.set_result(FILES[request.file][request.offset : request.stop])


@given(st.lists(st.lists(pieces, max_size=8), min_size=1, max_size=4), st.integers(1, 300))
def test_the_fetched_bytes_hold_every_piece(wants: list[list[Piece]], request_bytes: int) -> None:
    supply = Supply()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "feedrate.remote.fetch.coalesce",
            functools.partial(coalesce, gap_bytes=20, request_bytes=request_bytes),
        )
        pending = PendingFetch(supply.read, wants)
    supply.answer()
    with open(pending.fetched.path, "rb") as file:
        for batch, wanted in enumerate(wants):
            pending.wait(batch)
            for piece in wanted:
                file.seek(pending.fetched.places[piece])
                assert file.read(piece.length) == FILES[piece.file][piece.offset : piece.stop]


def test_a_batch_waits_for_its_own_pieces_alone() -> None:
    supply = Supply()
    pending = PendingFetch(supply.read, [[Piece(b"a", 0, 10)], [Piece(b"b", 0, 10)]])
    supply.open[0][1].set_result(FILES[b"a"][:10])
    pending.wait(0)
    supply.open[1][1].set_exception(StorageError("gone"))
    pending.wait(0)
    with pytest.raises(StorageError, match="gone"):
        pending.wait(1)


def test_who_waits_is_let_go() -> None:
    pending = PendingFetch(Supply().read, [[Piece(b"a", 0, 10)]])
    pending.stop()
    with pytest.raises(StorageError, match="reading was stopped"):
        pending.wait()


def test_fetched_bytes_that_nobody_knows_are_gone() -> None:
    pending = PendingFetch(Supply().read, [[Piece(b"a", 0, 10)]])
    descriptor = int(os.path.basename(pending.fetched.path))
    inode = os.fstat(descriptor).st_ino
    del pending
    gc.collect()
    assert not _is_open(descriptor, inode)


def _is_open(descriptor: int, inode: int) -> bool:
    """Say whether a number still stands for that file: other threads open and close files meanwhile."""
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False
