# SPDX-License-Identifier: Apache-2.0
"""Calls that are one ahead: the next one goes on in a thread while somebody uses what the last one returned.

What `concurrent.futures` could do, too; loading that takes as long as packing a thousand small files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")


def one_ahead(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """Yield what calls return, in their order, each made in a thread while the one before it is used.

    They never overlap each other, and none is made after one that failed. However this ends, the one that was
    begun is waited for.
    """
    latest: _Call[Result] | None = None
    try:
        for call in calls:
            before, latest = latest, _Call(call, latest)
            if before is not None:
                yield before.result()
        if latest is not None:
            yield latest.result()
    finally:
        if latest is not None:
            latest.end()


class _Call(Generic[Result]):
    """A call in a thread of its own, made when the one before it has ended."""

    def __init__(self, call: Callable[[], Result], before: _Call[Result] | None) -> None:
        self._call, self._before = call, before
        self._returned: list[Result] = []
        self._error: BaseException | None = None
        self._is_wanted = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def result(self) -> Result:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._returned.pop()

    def end(self) -> None:
        """Let nothing begin any more, and wait for what has."""
        self._is_wanted = False
        self._thread.join()

    def _run(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before._thread.join()
            if before._error is not None:
                return
        if not self._is_wanted:
            return
        try:
            self._returned.append(self._call())
        except BaseException as error:
            self._error = error
