# SPDX-License-Identifier: Apache-2.0
"""What the training process sees of its loaders: each next(), and the making of iterators.

Patches torch's DataLoader, what derives from it, and feedrate's Loader.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from .. import clock, layout
from ..session import Noted, session
from ..wrapping import ByIdentity, caller, trail, unseen
from . import describe, loader_clone, opened_files, other_loaders, parts, samples, stacks, training
from .parts import here
from .training import device

_KEPT_INDICES = 400
_MOST_UNASKED = 4


class _Loader:
    """What is known about a loader, and about those that the script makes in its place for later epochs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = session.ring.name(name)
        self.has_told = False  # what its batches are
        self.notes: other_loaders.Notes | None = None  # of feedrate's Loader: what its stages did
        self.asked_ns = 0  # when its last batch, or iterator, was asked for


class _Making:
    """Where and when a loader was made."""

    def __init__(self) -> None:
        self.place = caller()
        self.trail = trail()
        self.time_ns = clock.wall_ns()


class _Iterator:
    def __init__(self, number: int, is_indexed: bool) -> None:
        self.number = number  # no other has it, as an address might
        self.is_indexed = is_indexed  # each batch is made from an index list
        self.loader: _Loader | None = None
        self.keeper: Any = None  # returns the user's loader, or None when it is gone
        self.indices: deque[Any] = deque(maxlen=_KEPT_INDICES)  # for the experiments
        self.sizes: deque[int] = deque(maxlen=_KEPT_INDICES)  # of the index lists; -1: they have none
        self.asked = 0  # index lists taken in this pass
        self.taken = 0  # batches given in this pass


class Loaders:
    """All loaders of this process."""

    def __init__(self) -> None:
        self._loaders = ByIdentity()
        self._iterators = ByIdentity()
        self._makings = ByIdentity()
        self._remains = ByIdentity()  # of loaders that are gone, by their iterators
        self._has_told = False
        self._by_making: dict[Any, _Loader] = {}
        self._count = 0
        self._iterators_seen = 0
        self._last_batch: Any = None  # what was recorded last: (batch, end of its wait)

    def loader_of(self, iterator: Any) -> Any:
        """Return the iterator's loader, or what can be known about one that is gone."""
        known: _Iterator | None = self._iterators.get(iterator)
        loader = known.keeper() if known is not None and known.keeper is not None else None
        if loader is None:
            loader = self._remains.get(iterator)
            if loader is None:
                loader = loader_clone.Remains(iterator)
                self._remains.put(iterator, loader)
        return loader

    def name_of(self, iterator: Any) -> Any:
        """Return the name that its loader has in the records; loaders that follow each other share one.

        Of one without a loader, what no other has.
        """
        known: _Iterator | None = self._iterators.get(iterator)
        return id(iterator) if known is None or known.loader is None else known.loader.name

    def note_stats(self, iterator: Any) -> None:
        """Of feedrate's Loader: measured steps end here, so note what its stages have done by now."""
        mine = self._iterators.get(iterator) if session.phase == layout.REAL else None
        if mine is not None and mine.loader is not None and mine.loader.notes is not None:
            mine.loader.notes.write(mine.keeper(), mine.loader.name)

    def recent_indices(self, iterator: Any) -> list[Any]:
        """Return the index lists that an iterator has asked its dataset for, oldest first."""
        known = self._iterators.get(iterator)
        return list(known.indices) if known is not None else []

    def note_made(self, loader: Any) -> None:
        self._makings.put(loader, _Making())

    def note_unasked(self) -> None:
        """Tell of DataLoaders that were made and not asked by now: validation often comes later."""
        if self._has_told:
            return
        self._has_told = True
        made = [(loader, making) for loader, making in self._makings.alive() if not self._loaders.get(loader)]
        made = [(loader, making) for loader, making in made if hasattr(loader, "dataset")]
        for number, (loader, making) in enumerate(made[:_MOST_UNASKED]):
            with Noted("unasked loader"):
                told = describe.describe_loader(loader, None, f"unasked-{number}", making.place)
                pipeline = describe.describe_pipeline(loader, None)
                session.facts("unasked", told=told, pipeline=pipeline)

    def begin_iterator(self, loader: Any) -> None:
        """An iterator will be made, or a persistent one begins again and asks for its first indices."""
        parts.end_prelude()
        loader_clone.forget_closed(loader)
        mine = self._iterators.get(getattr(loader, "_iterator", None))
        if mine is not None:
            mine.asked = 0

    def made(self, loader: Any, iterator: Any, start: clock.Reading) -> None:
        spent = clock.since(start)
        session.become("main")
        opened_files.watch()
        mine = self._iterator(iterator)
        mine.loader = known = self._know(loader, iterator)
        if mine.keeper is None:
            # A persistent iterator belongs to its loader, and some are their own loader: to hold on to the
            # loader would keep both alive.
            is_owned = iterator is loader or getattr(loader, "_iterator", None) is iterator
            mine.keeper = weakref.ref(loader) if is_owned else lambda: loader
        mine.taken = 0
        known.asked_ns = start[0]
        session.ring.write(layout.ITERATOR, known.number, start[0], *spent)
        workers = [w.pid for w in getattr(iterator, "_workers", ())]
        if workers:
            session.facts("workers", loader=known.name, pids=workers)

    def _iterator(self, iterator: Any) -> _Iterator:
        mine: _Iterator | None = self._iterators.get(iterator)
        if mine is None:
            is_of_map = getattr(iterator, "_dataset_kind", 1) == 0
            is_indexed = is_of_map and getattr(iterator, "_auto_collation", False)
            self._iterators_seen += 1
            mine = _Iterator(self._iterators_seen, is_indexed)
            self._iterators.put(iterator, mine)
        return mine

    def _know(self, loader: Any, iterator: Any) -> _Loader:
        known: _Loader | None = self._loaders.get(loader)
        if known is not None:
            return known
        making: _Making | None = self._makings.get(loader)
        name, place = f"loader-{self._count}", making.place if making is not None else ""
        is_of_pack = other_loaders.is_pack_loader(loader)
        if is_of_pack:
            facts = other_loaders.describe_pack_loader(loader, name, place)
        else:
            facts = describe.describe_loader(loader, iterator, name, place)
        if making is not None:
            # Some scripts make a loader for every epoch: in the same way, of the same things, and not used
            # any more when the next one is made. Those for training and validation that one function makes
            # are both made before they are used.
            kind = making.trail, repr({name: value for name, value in facts.items() if name != "loader"})
            known = self._by_making.get(kind)
            known = known if known is not None and known.asked_ns < making.time_ns else None
        if known is not None:
            session.facts("loader-anew", loader=known.name)
        else:
            known = _Loader(name)
            self._count += 1
            session.facts("loader", **facts)
            if self._count == 1 and session.torch is not None:
                session.facts("torch", **describe.describe_torch())
            if is_of_pack:
                known.notes = other_loaders.Notes()
                other_loaders.leave_alone(facts)
            else:
                with Noted("pipeline"):  # nothing else of the loader shall be missing for it
                    told = describe.describe_pipeline(loader, iterator)
                    session.facts("pipeline", loader=name, tables=list(opened_files.Seen.tables), **told)
        if making is not None:
            self._by_making[kind] = known
        self._loaders.put(loader, known)
        return known

    def note_index(self, iterator: Any, index: Any) -> None:
        mine = self._iterator(iterator)
        mine.sizes.append(len(index) if hasattr(index, "__len__") else -1)
        mine.asked += 1
        if not session.is_passive:
            mine.indices.append(index)

    @unseen
    def next(self, iterator: Any, original: Any) -> Any:
        """One next() as the user's loop sees it."""
        experiments = None if session.is_passive else session.experiments()
        if experiments is None:
            return self.take(iterator, original)
        self._last_batch = None
        start = clock.wall_ns()
        batch = experiments.on_next(iterator, lambda: self.take(iterator, original))
        # No reference stays here: feedrate's Loader has its memory back when the user lets go of a batch.
        last, self._last_batch = self._last_batch, None
        if last is None or last[0] is not batch:
            # The batch came out of an experiment's memory, not out of the loader.
            try:
                session.begin_step(self._iterator(iterator).number)
                device.wait_begins()
                start = max(start, last[1]) if last is not None else start
                end = clock.wall_ns()
                device.wait_ends(start, end)
                self._record(iterator, start, (end - start, 0, 0), batch)
                training.batch_arrived()
            except Exception as error:
                session.note_error("next", error)
        return batch

    @unseen
    def take(self, iterator: Any, original: Any) -> Any:
        """Take a batch from the loader, and record the wait."""
        start = (0, 0, 0)
        is_probed = False
        try:
            mine = self._iterator(iterator)
            session.begin_step(mine.number)
            is_probed = session.probing
            if is_probed:
                samples.taken_from(mine.loader.name if mine.loader is not None else None)
                stacks.start()
            if is_probed or device.arrival is not None:
                device.wait_begins()
            start = clock.read() if is_probed else (clock.wall_ns(), 0, 0)
        except Exception as error:
            session.note_error("next", error)
        session.waiting = True
        try:
            batch = original(iterator)
        except StopIteration:
            session.waiting = False
            self._end_of_pass(iterator, start[0])
            raise
        finally:
            session.waiting = False
        try:
            if is_probed:
                spent = clock.since(start)
                device.wait_ends(start[0], start[0] + spent[0])
                self._record(iterator, start[0], spent, batch)
                training.batch_arrived()
            else:
                self._record(iterator, start[0], (clock.wall_ns() - start[0], 0, 0), batch)
        except Exception as error:
            session.note_error("next", error)
        return batch

    def _record(self, iterator: Any, start: int, spent: clock.Reading, batch: Any) -> None:
        mine, known = self._known(iterator)
        number = mine.taken
        mine.taken = number + 1
        back = mine.asked - number  # from the end of the sizes that were kept
        count = mine.sizes[-back] if mine.is_indexed and 0 < back <= len(mine.sizes) else -1
        if count < 0:
            count = (describe if known.notes is None else other_loaders).count_samples(batch)
        session.ring.write(
            layout.WAIT, known.number, start, *spent, count, number, layout.PROBED * session.probing
        )
        if not session.is_passive:
            self._last_batch = (batch, start + spent[0])
        known.asked_ns = start
        if not known.has_told:
            known.has_told = True
            ranges: list[Any] = []
            with Noted("ranges"):  # the shapes shall not be missing for it
                ranges = describe.describe_ranges(batch)
            find = describe.tensors_of if known.notes is None else other_loaders.arrays_of
            session.facts(
                "batch", loader=known.name, tensors=describe.describe_arrays(find(batch)), samples=count,
                asked_at=caller(), form=describe.describe_form(batch), ranges=ranges,
            )  # fmt: skip
        if known.notes is not None and session.phase == layout.REAL:
            known.notes.gave(mine.keeper() if mine.keeper is not None else None, known.name)

    def _known(self, iterator: Any) -> tuple[_Iterator, _Loader]:
        mine = self._iterator(iterator)
        if mine.loader is None:
            # Made past DataLoader.__iter__ (fastai does): the iterator stands for its loader.
            parts.end_prelude()
            session.become("main")
            mine.loader = self._know(iterator, iterator)
        return mine, mine.loader

    def _end_of_pass(self, iterator: Any, start: int) -> None:
        try:
            mine, known = self._known(iterator)
            bits = layout.PROBED * session.probing
            wall = clock.wall_ns() - start
            session.ring.write(layout.WAIT, known.number, start, wall, 0, 0, -1, mine.taken, bits)
            self.note_stats(iterator)
        except Exception as error:
            session.note_error("next", error)


loaders = Loaders()
session.loaders = loaders


def after_fork() -> None:
    loaders.__init__()  # type: ignore[misc]


def _made_by(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with Noted("DataLoader"):
            loaders.note_made(self)

    return __init__


def _iterated(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        if session.is_worker or here.is_fetching:
            return original(self)
        start = clock.read()
        with Noted("iter"):
            loaders.begin_iterator(self)
        iterator = original(self)
        with Noted("iter"):
            loaders.made(self, iterator, start)
        return iterator

    return __iter__


def _next(original: Any) -> Any:
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
            session.note_error("next_index", error)
        return index

    return _next_index


PATCHES: dict[str, Any] = {
    "torch.utils.data.dataloader": [
        ("_BaseDataLoaderIter.__next__", _next),
        ("_BaseDataLoaderIter._next_index", _indexed),
        ("DataLoader.__iter__", _iterated),
        ("DataLoader.__init__", _made_by),
    ],
    # Its iterators derive from torch's, its own __iter__ makes them.
    "torchdata.stateful_dataloader.stateful_dataloader": [
        ("StatefulDataLoader.__iter__", _iterated),
        ("StatefulDataLoader.__init__", _made_by),
    ],
    "feedrate.loader.loader": [("Loader.__init__", _made_by), ("Loader.__iter__", _iterated)],
    "feedrate.loader.iteration": [("LoaderIterator.__next__", _next)],
}
