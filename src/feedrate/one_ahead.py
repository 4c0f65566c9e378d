# SPDX-License-Identifier: Apache-2.0
"""Calls that are one ahead: the next one goes on in a thread while somebody uses what the last one returned.

What `concurrent.futures` could do, too; loading that takes as long as packing a thousand small files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


def one_ahead(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """Yield what calls return, in their order, each made in a thread while the one before it is used.

    They never overlap each other. However this ends, those that were asked for are made, and waited for.
    """
    asked: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()  # None: that was all
    answers: SimpleQueue[tuple[Result] | BaseException] = SimpleQueue()

    def answer() -> None:
        while (call := asked.get()) is not None:
            try:
                answers.put((call(),))
            except BaseException as error:
                answers.put(error)

    def take() -> Result:
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer[0]

    thread = threading.Thread(target=answer)
    thread.start()
    is_waiting = False
    try:
        for call in calls:
            asked.put(call)
            if is_waiting:
                yield take()
            is_waiting = True
        if is_waiting:
            yield take()
    finally:
        asked.put(None)
        thread.join()
