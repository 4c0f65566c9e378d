# SPDX-License-Identifier: Apache-2.0
"""Fetch what coming batches need, in their order, while earlier ones are decoded and trained on.

One thread plans. It takes batches in groups, each planned and asked for as a whole, so that samples of
several batches that are close together come in one request. The first group is one batch, to begin at once;
each further one is twice as long, until two fill the budget. It is forgotten when its last batch is made.

A group:  PLANNED --requests are on their way--> ARRIVING --its batches are made--> FORGOTTEN
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from feedrate.errors import FeedrateError
from feedrate.kernel import I64
from feedrate.machine.memory import count_usable_memory_bytes
from feedrate.remote.fetch import PendingFetch
from feedrate.remote.pack import BatchBytes, FetchedFiles, IsKept, RemotePack

LARGEST_BUDGET_BYTES = 1 << 30
SMALLEST_BUDGET_BYTES = 32 << 20
# Of what is near already, only the rows of the index are kept; they take room too.
LONGEST_GROUP, MOST_GROUPS = 64, 3
STOP_S = 2.0


def choose_budget() -> int:
    """Return how many bytes may be ready or be on their way: a share of the memory that the job may use."""
    return max(SMALLEST_BUDGET_BYTES, min(LARGEST_BUDGET_BYTES, count_usable_memory_bytes() // 16))


@dataclass(slots=True)
class _Group:
    first: int
    batches: list[BatchBytes]
    pending: PendingFetch
    files: FetchedFiles
    unmade: set[int] = field(default_factory=set)


class Ahead:
    """What is ready for the batches of one epoch.

    Args:
        positions: of a step's samples.
        fields: whose values are needed.
        follows_flow: batches come in the order in which the pack flows to scratch: what is about to come
            there is not fetched twice.
        is_kept: what a cache has.
    """

    def __init__(
        self,
        pack: RemotePack,
        steps: int,
        positions: Callable[[int], I64],
        fields: Sequence[str],
        budget_bytes: int | None = None,
        follows_flow: bool = False,
        is_kept: IsKept | None = None,
    ) -> None:
        self._pack, self._steps, self._positions, self._fields = pack, steps, positions, fields
        self._budget_bytes = budget_bytes or choose_budget()
        self._follows_flow, self._is_kept = follows_flow, is_kept
        self._changed = threading.Condition()
        self._groups: list[_Group] = []
        self._planned = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="feedrate-ahead", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; who waits gets an error. May be called by anyone, any number of times."""
        with self._changed:
            self._stopped = True
            groups, self._groups = self._groups, []
            self._changed.notify_all()
        for group in groups:
            group.pending.stop()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            # It may wait for a source that does not answer; then it ends when the pack is closed.
            self._thread.join(STOP_S)

    @contextmanager
    def batch(self, step: int) -> Iterator[RemotePack]:
        """Yield the pack to make a batch from, with what was fetched for it. Called once per step."""
        group = self._find(step)
        try:
            group.pending.wait(step - group.first)
            with self._pack.holding(group.batches[step - group.first], group.files) as pack:
                yield pack
        finally:
            with self._changed:
                group.unmade.discard(step)
                if not group.unmade and group in self._groups:
                    self._groups.remove(group)
                self._changed.notify_all()

    def _find(self, step: int) -> _Group:
        with self._changed:
            while not self._stopped and step >= self._planned and self._error is None:
                self._changed.wait()
            for group in self._groups:
                if step in group.unmade:
                    return group
            raise self._error or RuntimeError("reading ahead was stopped")

    def _run(self) -> None:
        try:
            step, length = 0, 1
            while step < self._steps:
                step, length = self._plan(step, length), 2 * length
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _plan(self, first: int, length: int) -> int:
        """Plan batches from `first` on, about `length` of them; return which one is next."""
        batches, total = [], 0
        for step in range(first, min(first + length, first + LONGEST_GROUP, self._steps)):
            batch = self._pack.look_up(self._positions(step), self._fields, self._is_kept)
            batches.append(batch)
            total += batch.size_bytes
            if total >= self._budget_bytes // 2 or self._stopped:
                break
        with self._changed:
            # Whatever its size, one group may always be there: else nothing would ever come.
            while not self._stopped and self._groups and not self._has_room(total):
                self._changed.wait()
            if self._stopped:
                return self._steps
        wants = [batch.pieces for batch in batches]
        pending = self._pack.fetch(wants, may_wait=self._follows_flow and first > 0)
        files = FetchedFiles(self._pack, pending.fetched)
        group = _Group(first, batches, pending, files, set(range(first, first + len(batches))))
        with self._changed:
            if self._stopped:
                pending.stop()
                return self._steps
            self._groups.append(group)
            self._planned = first + len(batches)
            self._changed.notify_all()
        if first == 0:
            # The first batch has the line to itself; only then the rest may flow.
            with contextlib.suppress(FeedrateError):  # told to who waits for it
                pending.wait()
            if self._pack.copy is not None:
                self._pack.copy.let_flow()
        return self._planned

    def _has_room(self, size_bytes: int) -> bool:
        return len(self._groups) < MOST_GROUPS and self.held_bytes + size_bytes <= self._budget_bytes

    @property
    def held_bytes(self) -> int:
        """How many bytes are ready or are on their way."""
        return sum(group.files.fetched.size_bytes for group in self._groups)
