# SPDX-License-Identifier: Apache-2.0
"""Whether all requests for a file met the same version of it: a file that has no checksum tells nothing else.

Every answer tells its version (ETag or time of change), and the store is asked once more at the end. Where it
tells none, one answer is one version; what came in several is read twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from feedrate import kernel
from feedrate.errors import StorageError
from feedrate.store.place import WholeFile, find_mtime_ns, find_version

_CHUNK_BYTES = 4 << 20


class Changed(StorageError):
    """A file was written to, or replaced, while it was read."""


class FileVersion:
    """The version of a file that its requests meet; they share one. Safe for any thread.

    Args:
        address: what the user calls the file.
        listed, mtime_ns: what was told of it when it was listed; None and 0: nothing.
    """

    def __init__(self, address: str, listed: str | None = None, mtime_ns: int = 0) -> None:
        self._address, self._version, self._mtime_ns = address, listed, mtime_ns
        self._answers = 0
        self._lock = threading.Lock()

    def meet(self, facts: Mapping[str, Any]) -> None:
        """An answer begins.

        Args:
            facts: what the store says about the file: headers, or fsspec's `info`.

        Raises:
            Changed: it is of another version than those before.
        """
        version, mtime_ns = find_version(facts), facts.get("mtime_ns") or find_mtime_ns(facts)
        with self._lock:
            if not self._answers and self._version is None:
                self._version = version
            self._answers += 1
            is_other_time = mtime_ns and self._mtime_ns and mtime_ns != self._mtime_ns
            if is_other_time or version != self._version:
                raise self._changed()

    def confirm(self, span: range, crc32c: int, read: Callable[[int, int], bytes]) -> None:
        """All of it has come: ask once more.

        Args:
            span: what was read of the file, and its checksum.
            read: asks for a stretch, by offset and length; its answer meets this version.

        Raises:
            Changed: it is another version by now, or was read twice and is not the same.
        """
        if not span:
            return
        if self._version is not None or not self._answers:
            # A server without ranges refuses it, but has told its version by then.
            with contextlib.suppress(WholeFile):
                read(span.start, 1)
        elif self._answers > 1:
            again = 0
            for offset in range(span.start, span.stop, _CHUNK_BYTES):
                again = kernel.crc32c(read(offset, min(_CHUNK_BYTES, span.stop - offset)), again)
            if again != crc32c:
                raise self._changed()

    def _changed(self) -> Changed:
        return Changed(
            f"{self._address} was changed while it was read",
            hint="wait until it is finished, then run the same command again",
        )
