# SPDX-License-Identifier: Apache-2.0
"""The patches of torch's DataLoader, of what derives from it, of feedrate's Loader and DALI's iterators."""

from __future__ import annotations

from typing import Any

from .. import clock, layout
from ..session import session
from ..wrapping import install
from . import other_loaders
from .describe import tensors_of
from .loaders import loaders
from .parts import here


def _made_by(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            loaders.note_made(self)
        except Exception as error:
            session.trouble("DataLoader", error)

    return __init__


def _iterated(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        if session.is_worker or here.is_fetching:
            return original(self)
        start = clock.read()
        try:
            loaders.begin_iterator(self)
        except Exception as error:
            session.trouble("iter", error)
        iterator = original(self)
        try:
            loaders.made(self, iterator, start)
        except Exception as error:
            session.trouble("iter", error)
        return iterator

    return __iter__


def _waited(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        # `taking`: a derived iterator, whose own __next__ we are in, asks torch's; one batch is one record.
        if session.is_worker or here.is_fetching or here.taking is self:
            return original(self)
        return loaders.next(self, original)

    return __next__


def _indexed(original: Any) -> Any:
    def _next_index(self: Any) -> Any:
        if session.scope is None:
            index = original(self)
        else:
            with session.scope.lent():
                index = original(self)
        try:
            if not session.is_worker and not here.is_fetching:
                loaders.note_index(self, index)
        except Exception as error:
            session.trouble("next_index", error)
        return index

    return _next_index


def _pinned(original: Any) -> Any:
    def pin_memory(*args: Any, **kwargs: Any) -> Any:
        if here.is_pinning or not session.probing:
            return original(*args, **kwargs)
        here.is_pinning = True
        start = clock.read()
        try:
            data = original(*args, **kwargs)
        finally:
            here.is_pinning = False
        try:
            wall, cpu, queue = clock.since(start)
            size = sum(t.numel() * t.element_size() for t in tensors_of(data))
            session.ring.write(layout.PIN, 0, start[0], wall, cpu, queue, size)
        except Exception as error:
            session.trouble("pin_memory", error)
        return data

    return pin_memory


def patch_dataloader(module: Any) -> None:
    """torch.utils.data.dataloader has been imported."""
    install(module, "_BaseDataLoaderIter.__next__", _waited)
    install(module, "_BaseDataLoaderIter._next_index", _indexed)
    install(module, "DataLoader.__iter__", _iterated)
    install(module, "DataLoader.__init__", _made_by)


def patch_stateful(module: Any) -> None:
    """torchdata's StatefulDataLoader: its iterators derive from torch's, its own __iter__ makes them."""
    install(module, "StatefulDataLoader.__iter__", _iterated)
    install(module, "StatefulDataLoader.__init__", _made_by)


def patch_pinning(module: Any) -> None:
    """torch.utils.data._utils.pin_memory has been imported."""
    install(module, "pin_memory", _pinned)


def patch_pack_loader(module: Any) -> None:
    """feedrate.loader.loader has been imported."""
    other_loaders.FoundLoader.loader = getattr(module, "Loader", None)
    install(module, "Loader.__init__", _made_by)
    install(module, "Loader.__iter__", _iterated)


def patch_pack_iterator(module: Any) -> None:
    """feedrate.loader.iteration has been imported."""
    install(module, "LoaderIterator.__next__", _waited)


def patch_dali(module: Any) -> None:
    """nvidia.dali.plugin.pytorch has been imported."""
    other_loaders.FoundDali.classes = tuple(
        kind for name in other_loaders.CLASSES if (kind := getattr(module, name, None))
    )
    for kind in other_loaders.FoundDali.classes:
        install(module, f"{kind.__name__}.__init__", other_loaders.made_unseen)
        install(module, f"{kind.__name__}.__iter__", _iterated)
        install(module, f"{kind.__name__}.__next__", _waited)
