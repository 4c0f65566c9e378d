# SPDX-License-Identifier: Apache-2.0
"""Takes the hook's own lines out of tracebacks that Python prints, as they would be without the doctor.

The chain of a traceback is mended in place, just before it is shown: whoever shows it, Python itself or an
excepthook of the user's, goes on as always. Exceptions that the user's code catches are left as they are.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

from . import wrapping
from .session import session
from .wrapping import install, is_hook

_MOST = 1000  # exceptions behind one another
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.11


def watch() -> None:
    """Wait for an exception that nobody catches.

    Python says so in an audit event, before it asks for sys.excepthook: nothing of the user's is replaced.
    """
    wrapping.listen("sys.excepthook", _on_uncaught)


def _on_uncaught(args: Any) -> None:
    try:
        mend(args[2])
    except Exception as error:
        session.trouble("traceback", error)


def mend(error: BaseException | None) -> None:
    """Mend an exception's traceback and those of what it came from."""
    left: list[Any] = [error]
    seen: set[int] = set()
    while left and len(seen) < _MOST:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_hook(one.__traceback__)
        left += [one.__cause__, one.__context__]
        left += one.exceptions if isinstance(one, _GROUP) else ()


def _without_hook(first: Any) -> Any:
    """Return the chain without lines of ours; where there is nothing else in it, as it is."""
    kept = first
    while kept is not None and is_hook(kept.tb_frame.f_code.co_filename):
        kept = kept.tb_next
    trace = kept
    while trace is not None:
        following = trace.tb_next
        while following is not None and is_hook(following.tb_frame.f_code.co_filename):
            following = following.tb_next
        if following is not trace.tb_next:
            trace.tb_next = following
        trace = following
    return first if kept is None else kept


def _wrapped(original: Any) -> Any:
    """torch writes a worker's traceback down to send it."""

    def __init__(self: Any, exc_info: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            mend((exc_info or sys.exc_info())[1])
        except Exception as error:
            session.trouble("traceback", error)
        if exc_info is not None:
            exc_info = (*exc_info[:2], getattr(exc_info[1], "__traceback__", exc_info[2]))
        original(self, exc_info, *args, **kwargs)

    return __init__


def patch_utils(module: Any) -> None:
    """torch._utils has been imported."""
    install(module, "ExceptionWrapper.__init__", _wrapped)
