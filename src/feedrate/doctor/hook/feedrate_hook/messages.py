# SPDX-License-Identifier: Apache-2.0
"""What a spoilt run would tell other processes, and other machines, is not sent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def replace_processes(scope: Any, end: Callable[[str], None]) -> None:
    """What another process is told, it may write; and nobody may wait for its answer for ever."""
    places = (
        ("multiprocessing.queues", "Queue", ("put",)),
        ("multiprocessing.queues", "JoinableQueue", ("put",)),
        ("multiprocessing.queues", "SimpleQueue", ("put",)),
        ("multiprocessing.connection", "Connection", ("send",)),
        ("multiprocessing.pool", "Pool", ("apply_async", "_map_async", "imap", "imap_unordered")),
        ("concurrent.futures.process", "ProcessPoolExecutor", ("submit",)),
    )
    for module, cls, names in places:
        owner = getattr(sys.modules.get(module), cls, None)
        for name in names:
            real = None if owner is None else vars(owner).get(name)
            if real is not None:
                setattr(owner, name, ending_call(scope, end, f"{cls}.{name}", real))


def ending_call(
    scope: Any, end: Callable[[str], None], what: str, real: Callable[..., Any]
) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if scope.is_loading() or not scope.applies():
            return real(*args, **kwargs)
        is_thread_pool = type(args[0]).__name__ == "ThreadPool"  # a Pool by inheritance, but in this process
        if is_thread_pool:
            return real(*args, **kwargs)
        scope.blocked(what)
        if scope.in_user_loop():
            end(what)
        raise BrokenPipeError(f"feedrate doctor: nothing may be sent any more: {what}")

    return guarded


def replace_sockets(scope: Any, end: Callable[[str], None]) -> None:
    """Python's sockets only: those of the collectives are not Python's."""
    socket = sys.modules.get("socket")
    if socket is None:
        return
    for name in ("send", "sendall", "sendto", "sendmsg", "sendfile"):
        real = getattr(socket.socket, name)
        guarded = ending_call(scope, end, f"socket.{name}", real)

        def sent(self: Any, *args: Any, _guarded: Any = guarded, _name: str = name) -> Any:
            if (
                self.type == socket.SOCK_DGRAM and scope.applies() and not scope.is_loading()
            ):  # metrics to a collector: nobody waits for them
                scope.blocked(f"socket.{_name}")
                return len(args[0]) if args and isinstance(args[0], (bytes, bytearray)) else 0
            return _guarded(self, *args)

        setattr(socket.socket, name, sent)
