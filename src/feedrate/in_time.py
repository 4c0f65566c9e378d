# SPDX-License-Identifier: Apache-2.0
"""Many calls of which some may hang, made where they can be given up: a server that is gone answers nobody.

The threads are daemons, which the interpreter does not wait for when it ends; those of `concurrent.futures`
it does wait for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
