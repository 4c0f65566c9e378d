# SPDX-License-Identifier: Apache-2.0
"""Takes the hook's own lines out of tracebacks that Python prints, as they would be without the doctor.

The chain of a traceback is mended in place, just before it is shown: whoever shows it, Python itself or an
excepthook of the user's, goes on as always. Exceptions that the user's code catches are left as they are.

Runs a patch when the module it belongs to has been imported: at once if that is the case already.

All patches by the module they wait for, and what happens to them when a process forks or ends.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from typing import Any

from . import wrapping

from .record import (
    calls,
    catalogue,
    draws,
    fetching,
    loader_patches,
    loaders,
    opened_files,
    parts,
    pipeline,
    stacks,
    training,
    views,
)
from .record.describe import describe_torch
from .record.device import device
from .session import session
from .wrapping import install as hide_frames
from .wrapping import is_hook

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
    hide_frames(module, "ExceptionWrapper.__init__", _wrapped)


_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class PatchFinder:
    """First on sys.meta_path. Answers only for names that have a patch, with what the next finders answer."""

    def __init__(self) -> None:
        self.patches: dict[str, list[Callable[[Any], None]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.patches:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Patch the module after the loader ran it. The loader stays what it is: others look at its type."""
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: Any) -> None:
            # The instance's attribute; the class's own shows again.
            loader.__dict__.pop("exec_module", None)
            execute(module)
            self.apply(name, module)

        # Python leaves lines of its import system out of tracebacks, up to the first that is not of it.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            session.trouble(f"import {name}", error)

    def apply(self, name: str, module: Any) -> None:
        for patch in self.patches.get(name, ()):
            try:
                patch(module)
            except Exception as error:
                session.trouble(f"patch {name}", error)

    def add(self, name: str, patch: Callable[[Any], None]) -> None:
        self.patches.setdefault(name, []).append(patch)
        module = sys.modules.get(name)
        # A module that is being imported at this moment is left alone.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            try:
                patch(module)
            except Exception as error:
                session.trouble(f"patch {name}", error)


finder = PatchFinder()


def install_finder() -> None:
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


def install() -> None:
    """Put the finder in place, with every patch waiting for its module."""
    add = finder.add
    add("torch.utils.data._utils.fetch", fetching.patch_fetch)
    add("torch.utils.data._utils.worker", fetching.patch_worker)
    add("torchdata.stateful_dataloader.worker", fetching.patch_worker)
    add("torch.utils.data._utils.pin_memory", loader_patches.patch_pinning)
    add("torch.utils.data.dataloader", loader_patches.patch_dataloader)
    add("torchdata.stateful_dataloader.stateful_dataloader", loader_patches.patch_stateful)
    add("feedrate.loader.iteration", loader_patches.patch_pack_iterator)
    add("feedrate.loader.loader", loader_patches.patch_pack_loader)
    add("nvidia.dali.plugin.pytorch", loader_patches.patch_dali)
    add("timm.data.loader", pipeline.patch_prefetcher)
    add("torch._utils", patch_utils)
    add("torch.optim.optimizer", training.patch_optimizer)
    add("torch.autograd", training.patch_autograd)
    add("torch", _patch_torch)
    for name in ("tensorflow", "jax"):
        add(name, _note_framework)
    for name in catalogue.PARTS:
        add(name, _patch_parts)
    for name in opened_files.SAVERS:
        add(name, opened_files.patch_savers)
    install_finder()


def _patch_parts(module: Any) -> None:
    parts.patch_parts(module, catalogue.PARTS.get(module.__name__, []))


def _note_framework(module: Any) -> None:
    """Another framework that may train; nothing of it is changed."""
    session.facts("framework", module=module.__name__, version=str(getattr(module, "__version__", "")))


def _patch_torch(module: Any) -> None:
    training.patch_torch(module)
    opened_files.patch_savers(os)


def after_fork() -> None:
    """Forget what belongs to the parent."""
    for part in (stacks, draws, opened_files, calls, fetching, loaders, training, views):
        part.after_fork()
    device.after_fork()


def at_exit() -> None:
    """The program is over: read the last events, and ask torch what could not be asked before."""
    stacks.stop()
    training.note_alone()
    if session.torch is not None and session.role != "worker":
        device.collect()
        loaders.loaders.passes.flush()
        session.facts("torch", **describe_torch(is_over=session.role == "main"))
