# SPDX-License-Identifier: Apache-2.0
"""Clones of the user's DataLoader with another number of workers or given indices, and what gives batches."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..session import session
from . import other_loaders
from .parts import here

# Of a clone with workers: a forked library that hangs must not hang us. Others import everything anew, which
# takes longer on a busy machine.
FORKED_TIMEOUT_S, TIMEOUT_S = 30.0, 100.0


class Endless:
    """The user's sampler, or lists of indices, over and over."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        is_empty = False
        while not is_empty:
            is_empty = True
            for index in self._sampler:
                is_empty = False
                yield index


class Remains:
    """A loader that only its iterator is left of: `for batch in DataLoader(...)` with persistent workers."""

    def __init__(self, iterator: Any) -> None:
        self._index_sampler = iterator._index_sampler
        for name in (
            "dataset", "collate_fn", "drop_last", "num_workers", "pin_memory", "timeout",
            "persistent_workers", "prefetch_factor", "worker_init_fn",
        ):  # fmt: skip
            setattr(self, name, getattr(iterator, f"_{name}", None))
        self.batch_sampler = iterator._index_sampler if iterator._auto_collation else None
        self.sampler = getattr(self.batch_sampler, "sampler", iterator._index_sampler)
        self.batch_size = getattr(self.batch_sampler, "batch_size", None)
        workers = getattr(iterator, "_workers", ())
        self.multiprocessing_context = getattr(workers[0], "_start_method", None) if workers else None

    def __len__(self) -> int:
        return len(self._index_sampler)


def is_iterable_style(loader: Any) -> bool:
    data = sys.modules["torch.utils.data"]
    return isinstance(getattr(loader, "dataset", None), data.IterableDataset)


def is_pipe(loader: Any) -> bool:
    data = sys.modules["torch.utils.data"]
    kinds = tuple(getattr(data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(data, name))
    return isinstance(getattr(loader, "dataset", None), kinds)


def is_forking(loader: Any) -> bool:
    """Whether the loader's workers begin as copies of this process."""
    context = loader.multiprocessing_context
    method = context if isinstance(context, str) else (context or multiprocessing).get_start_method()
    return bool(method == "fork")


def copy_loader(loader: Any, workers: int, lists: list[Any] | None = None) -> Any:
    """A plain DataLoader of the same dataset, without end. `lists`: of these indices only."""
    torch = sys.modules["torch"]
    options: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        # Its own source of seeds: the main process's must not move.
        "generator": torch.Generator().manual_seed(random.SystemRandom().getrandbits(62)),
    }
    if workers:
        options["timeout"] = loader.timeout or (FORKED_TIMEOUT_S if is_forking(loader) else TIMEOUT_S)
        options["prefetch_factor"] = getattr(loader, "prefetch_factor", None) or 2
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["persistent_workers"] = lists is None
    if is_iterable_style(loader):
        options["batch_size"], options["drop_last"] = loader.batch_size, loader.drop_last
    else:
        if loader.batch_sampler is None:
            options["batch_size"] = None
        kind = "sampler" if loader.batch_sampler is None else "batch_sampler"
        options[kind] = Endless(getattr(loader, kind) if lists is None else lists)
    with quiet():
        return torch.utils.data.DataLoader(loader.dataset, **options)


def unhooked(iterator: Any) -> Any:
    """A batch without the hook around it, nor around the iterator that it derives from."""
    method: Any = type(iterator).__next__
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    before, here.taking = here.taking, iterator
    try:
        return method(iterator)
    finally:
        here.taking = before


def unhooked_lent(iterator: Any) -> Any:
    """The same of feedrate's Loader: what that calls there (on_bad_sample) is the user's."""
    with session.scope.lent() if session.scope is not None else contextlib.nullcontext():
        return unhooked(iterator)


class Source:
    """Where batches come from: an iterator, recorded or not. Workers of a clone are ended by `close`."""

    take: Callable[[Any], Any] = staticmethod(unhooked)

    def __init__(self, loader: Any, iterator: Any = None) -> None:
        self._loader = loader
        with quiet():
            self.iterator = iter(loader) if iterator is None else iterator

    def next(self) -> Any:
        """A batch, without a record."""
        return self.take(self.iterator)

    def next_recorded(self) -> Any:
        return session.loaders.take(self.iterator, self.take)

    def close(self) -> None:
        shut_down(self._loader, self.iterator)


class PackSource(Source):
    """Batches of the user's Loader, epoch after epoch: behind the guard its state is nobody's any more.

    `again` goes back to where it began, so that the same samples come once more.
    """

    take = staticmethod(unhooked_lent)

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._state = copy.deepcopy(loader.state_dict())
        super().__init__(loader, iterator if len(iterator) else iter(loader))

    def next(self) -> Any:
        return self._go_on(super().next)

    def next_recorded(self) -> Any:
        return self._go_on(super().next_recorded)

    def _go_on(self, take: Callable[[], Any]) -> Any:
        try:
            return take()
        except StopIteration:
            self.iterator = iter(self._loader)
            return take()

    def again(self) -> None:
        self.close()
        self._loader.load_state_dict(self._state)
        self.iterator = iter(self._loader)


def shut_down(loader: Any, iterator: Any) -> None:
    """End an iterator's workers. The loader makes new ones when it is asked again: see `forget_closed`.

    Until then it keeps the iterator: torchdata's asks it for its state, and would start workers for another.
    """
    if other_loaders.is_pack_loader(loader):
        # Its threads would make batches beside what is measured next.
        end = getattr(iterator, "end", None)
        if end is not None:
            end("the doctor feeds this loop now")
        return
    close = getattr(iterator, "_shutdown_workers", None)
    if close is not None:
        close()
    kept: Any = getattr(loader, "_iterator", None)
    if kept is iterator and kept is not None and not isinstance(loader, Remains):
        kept.feedrate_closed = True


def forget_closed(loader: Any) -> None:
    """An iterator is asked for: one whose workers were ended cannot begin again."""
    kept: Any = getattr(loader, "_iterator", None)
    if getattr(kept, "feedrate_closed", False):
        loader._iterator = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings about the number of workers or forks are about ours, not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def prefetched(loader: Any) -> int:
    """How many batches may be ready before they are asked for."""
    if other_loaders.is_pack_loader(loader):
        return int(getattr(loader, "_prefetch", 2))
    return int(loader.num_workers) * int(getattr(loader, "prefetch_factor", None) or 2)


def indices_of_last(iterator: Any, asked: list[Any]) -> Any:
    """Of the indices asked for so far (newest last), those of the batch just returned. None: not known."""
    ahead = 0
    if hasattr(iterator, "_send_idx"):
        if not getattr(iterator, "_in_order", True):
            return None
        ahead = iterator._send_idx - iterator._rcvd_idx
    return asked[-1 - ahead] if 0 <= ahead < len(asked) else None


class RandomStates:
    """Of the main process, to be put back: a dataset without workers draws from them."""

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]
        self._numpy = sys.modules.get("numpy.random")
        self._states = (
            random.getstate(),
            self._torch.get_rng_state(),
            None if self._numpy is None else self._numpy.get_state(),
        )

    def put_back(self) -> None:
        random.setstate(self._states[0])
        self._torch.set_rng_state(self._states[1])
        if self._numpy is not None:
            self._numpy.set_state(self._states[2])


def is_too_late() -> bool:
    """Once Python is leaving, torch does not end workers any more, and Python 3.12 starts no threads."""
    try:
        threading.Thread(target=id, args=(0,)).start()
    except RuntimeError:
        return True
    return bool(getattr(sys.modules.get("torch.utils.data._utils"), "python_exit_status", False))
