# SPDX-License-Identifier: Apache-2.0
"""All patches by the module they wait for, and what happens to them when a process forks or ends.

A patch runs when its module has been imported: at once if that is the case already.

Tracebacks that Python prints are as they would be without the doctor: the hook's own lines are taken out of
the chain in place, just before it is shown. Whoever shows it, Python itself or an excepthook of the user's,
goes on as always. Exceptions that the user's code catches are left as they are.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from . import wrapping
from .record import catalogue, describe, fetching, loaders, opened_files, samples, stacks, training
from .session import Noted, session

_MOST = 1000  # exceptions behind one another
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.11


def watch() -> None:
    """Wait for an exception that nobody catches.

    Python says so in an audit event, before it asks for sys.excepthook: nothing of the user's is replaced.
    """

    def on_uncaught(args: Any) -> None:
        with Noted("traceback"):
            hide_hook(args[2])

    wrapping.listen("sys.excepthook", on_uncaught)


def hide_hook(error: BaseException | None) -> None:
    """Take lines of ours out of an exception's traceback, and out of those of what it came from."""
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
    kept, trace = [], first
    while trace is not None:
        if not wrapping.is_hook(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    for one, following in zip(kept, [*kept[1:], None]):  # noqa: B905 (Python 3.8)
        if one.tb_next is not following:
            one.tb_next = following
    return kept[0] if kept else first


def _sent(original: Any) -> Any:
    """torch writes a worker's traceback down to send it."""

    def __init__(self: Any, exc_info: Any = None, *args: Any, **kwargs: Any) -> None:
        with Noted("traceback"):
            hide_hook((exc_info or sys.exc_info())[1])
        if exc_info is not None:
            exc_info = (*exc_info[:2], getattr(exc_info[1], "__traceback__", exc_info[2]))
        original(self, exc_info, *args, **kwargs)

    return __init__


def _expect(imports: Any, name: str, patch: Callable[[Any], None]) -> None:
    """Patch a module once it has been imported."""

    def apply(module: Any) -> None:
        with Noted(f"patch {name}"):
            patch(module)

    imports.add(name, apply)


def install() -> None:
    """Let every patch wait for its module."""
    # Beside this package on the PYTHONPATH, and shared with the hooks of other commands.
    imports: Any = importlib.import_module("feedrate_imports").watch
    tables: tuple[dict[str, Any], ...] = (
        {"torch._utils": [("ExceptionWrapper.__init__", _sent)], "tensorflow": _note_framework,
         "jax": _note_framework, "torch": _watch_files},
        fetching.PATCHES, loaders.PATCHES, describe.PATCHES, training.PATCHES, opened_files.PATCHES,
        catalogue.PATCHES,
    )  # fmt: skip
    for table in tables:
        for name, patch in table.items():
            _expect(
                imports, name, patch if callable(patch) else functools.partial(wrapping.install_all, patch)
            )
    imports.begin()


def _watch_files(_: Any) -> None:
    """Datasets read their tables before they are loaded."""
    wrapping.install_all(opened_files.WRITERS, os)
    opened_files.watch()


def _note_framework(module: Any) -> None:
    """Another framework that may train; nothing of it is changed."""
    session.facts("framework", module=module.__name__, version=str(getattr(module, "__version__", "")))
    session.load_settings()
    stacks.start_plain()


def after_fork() -> None:
    """Forget what belongs to the parent."""
    for part in (stacks, samples, opened_files, fetching, loaders, training):
        part.after_fork()


def at_exit() -> None:
    """The program is over: read the last events, and ask torch what could not be asked before."""
    stacks.stop()
    training.note_alone()
    if session.torch is not None and session.role != "worker":
        training.device.collect()
        loaders.loaders.note_unasked()
        session.facts("torch", **describe.describe_torch(is_over=session.role == "main"))
