# SPDX-License-Identifier: Apache-2.0
"""A stretch of a file that lies elsewhere, brought into a file of this machine: at the same positions."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from feedrate import kernel
from feedrate.errors import FeedrateError, NotFound, PackError, StorageError
from feedrate.format.manifest import FILE_NAME, Manifest, parse_manifest
from feedrate.store.files import explain_write_error
from feedrate.store.patience import Attempts, Patience, Trouble
from feedrate.store.place import Place, PlacedFile
from feedrate.store.ranges import Piece, RangeReader
from feedrate.store.versions import FileVersion

# 32 MB on their way.
CHUNK_BYTES, STREAMS = 4 << 20, 8


def fetch(
    place: Place, file: bytes, span: range, target: Path, told: Callable[[int], None] = lambda _: None
) -> None:
    """Bring the bytes of `span`, of one version of the file; what lies before them is a hole.

    Errors of the source are tried again.

    Args:
        told: called in this thread with the number of bytes that have come; what it raises ends the fetch.

    Raises:
        StorageError: the source fails for too long, ends early, is changed meanwhile, or the disk is full.
    """
    reader = RangeReader(place, in_flight=STREAMS)
    version, crc32c = FileVersion(place.address(file)), 0
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    try:
        with open(target, "wb", buffering=0) as out:

            def put() -> None:
                nonlocal crc32c
                offset, future = waiting.popleft()
                view = memoryview(data := future.result())
                crc32c = kernel.crc32c(data, crc32c)
                while view:
                    view = view[os.pwrite(out.fileno(), view, offset + len(data) - len(view)) :]
                told(len(data))

            for offset in range(span.start, span.stop, CHUNK_BYTES):
                piece = Piece(file, offset, min(CHUNK_BYTES, span.stop - offset))
                waiting.append((offset, reader.read(piece, version)))
                while len(waiting) >= STREAMS:
                    put()
            while waiting:
                put()
            version.confirm(span, crc32c, lambda *at: reader.read(Piece(file, *at), version).result())
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise explain_write_error(error, target, len(span)) from error
    finally:
        reader.close()


def find_patiently(
    place: Place, file: bytes, patience: Patience | None = None, trouble: Trouble | None = None
) -> PlacedFile | None:
    """Return a file's facts, None: it is a folder; a source that errs is asked again.

    Args:
        trouble: of the source, if others ask it too: they share the time until it is given up.

    Raises:
        NotFound: there is nothing of that name.
        StorageError: the source fails for too long.
    """
    trouble = trouble or Trouble(place.root, patience or Patience())
    attempts = Attempts(trouble, place.address(file), patience)
    while True:
        try:
            place.forget_listings()  # storages of fsspec remember what they have listed
            found = place.find(file, suggest=False)
        except NotFound as error:
            wait_s = attempts.failed(_find_cause(error))
        except StorageError as error:
            wait_s = attempts.failed(error)
        else:
            trouble.is_over()
            return found
        time.sleep(wait_s)
        # fsspec keeps connections, also those that were cut.
        place = Place(place.root, {"skip_instance_cache": True})


def _find_cause(error: NotFound) -> BaseException:
    """Return what is wrong: of a web server that does not answer, fsspec says that it has no such file."""
    cause = None if error.__cause__ is None else error.__cause__.__cause__
    if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in (404, 410):
        return error
    return cause


def fetch_manifest(place: Place) -> tuple[bytes, Manifest]:
    """Read a pack's pack.json, once; behind an address, once more what the way there may have damaged.

    Raises:
        NotFound, StorageError: it is not there, or nobody answers.
        PackError: it is damaged.
    """
    name = FILE_NAME.encode()
    text = place.read_whole(name)
    try:
        try:
            return text, parse_manifest(text)
        except PackError:
            if not place.is_remote:
                raise
            text = place.read_whole(name)
            return text, parse_manifest(text)
    except PackError as error:
        raise PackError(f"{place.address(name)}: {error}", hint=error.hint) from None


class FetchedPlace(Place):
    """A folder with files that were brought from elsewhere; messages call them by their address there."""

    def __init__(self, root: str, source: Place) -> None:
        super().__init__(root)
        self._source = source

    def address(self, file: bytes) -> str:
        return self._source.address(file)
