# SPDX-License-Identifier: Apache-2.0
"""Calls made in threads: one ahead of who uses their results, or many of which some may hang.

Loading `concurrent.futures` takes as long as packing a thousand small files, and the interpreter waits for
its threads when it ends; a call that hangs, since its server is gone, must not be waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
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


Item = TypeVar("Item")


def map_in_time(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    seconds: float,
    hang_s: float = 5.0,
) -> Iterator[Result]:
    """Yield what calls return, as they end, several at a time; none begins later than in `seconds`.

    Calls that nobody hears of for `hang_s` after that are given up: then fewer results come than were begun.
    """
    waiting, lock = iter(items), threading.Lock()
    latest = time.monotonic() + seconds
    answers: SimpleQueue[tuple[Result] | BaseException | None] = SimpleQueue()  # None: a thread ends

    def work() -> None:
        while True:
            with lock:
                item = next(waiting, _END) if time.monotonic() < latest else _END
            if isinstance(item, _End):
                answers.put(None)
                return
            try:
                answers.put((function(item),))
            except BaseException as error:
                answers.put(error)

    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    running = threads
    try:
        while running:
            answer = answers.get(timeout=max(latest - time.monotonic(), 0.0) + hang_s)
            if answer is None:
                running -= 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                yield answer[0]
    except Empty:
        return
    finally:
        latest = 0.0  # whoever stops early wants no further calls


class _End:
    pass


_END = _End()
