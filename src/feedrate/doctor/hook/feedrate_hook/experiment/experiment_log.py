# SPDX-License-Identifier: Apache-2.0
"""What the experiments ask the hook's session for, and how they write down what they did."""

from __future__ import annotations

from typing import Any

from .. import layout
from ..record import loader_clone


class Book:
    """A view of the session: facts, records of batches taken, the phase, and what is known about loaders."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.settings: dict[str, Any] = session.settings
        self.pace_s = float(self.settings.get("experiment_seconds", 2.5))  # the usual time of one experiment
        self._remains: dict[int, loader_clone.Remains] = {}

    @property
    def run(self) -> str:
        return str(self.settings.get("run") or self._session.run)

    @property
    def phase(self) -> int:
        return int(self._session.phase)

    @phase.setter
    def phase(self, phase: int) -> None:
        self._session.phase = phase

    @property
    def optimizer_steps(self) -> int:
        return int(self._session.optimizer_steps)

    def fact(self, kind: str, **fields: Any) -> None:
        self._session.facts(dict(fields, kind=kind))

    def skipped(self, phase: int, why: str) -> None:
        self.fact("skipped", phase=phase, why=why)

    def failed(self, phase: int, error: BaseException) -> None:
        """A dataset that needs what it writes fails behind the guard."""
        self.trouble(layout.PHASES[phase], error)
        self.skipped(phase, f"it failed: {type(error).__name__}: {error}"[:300])

    def trouble(self, where: str, error: BaseException) -> None:
        self.fact("trouble", where=f"experiments: {where}", error=f"{type(error).__name__}: {error}"[:500])

    def measured(self, phase: int, span_ns: tuple[int, int], batches: int, detail: dict[str, Any]) -> None:
        """One finished stretch of a phase."""
        start, end = span_ns
        self.fact("phase", phase=phase, start_ns=start, end_ns=end, batches=batches, detail=detail)

    def take(self, iterator: Any) -> Any:
        """A batch that does not go to the user's loop, with a WAIT record."""
        return self._session.loaders.take(iterator, loader_clone.unhooked_next(iterator))

    def loader_of(self, iterator: Any) -> Any:
        """The iterator's loader, or what can be known about one that is gone."""
        loader = self._session.loader_of(iterator)
        if loader is not None:
            return loader
        remains = self._remains.get(id(iterator))
        if remains is None or not remains.are_of(iterator):
            remains = self._remains[id(iterator)] = loader_clone.Remains(iterator)
        return remains

    def name_of_loader(self, iterator: Any) -> Any:
        """Equal for loaders that a loop makes anew in every epoch; different for training and validation."""
        name = self._session.name_of_loader(iterator)
        return id(iterator) if name is None else name

    def note_stats(self, iterator: Any) -> None:
        if self._session.loaders is not None:
            self._session.loaders.note_stats(iterator)

    def recent_indices(self, iterator: Any) -> list[Any]:
        return list(self._session.recent_indices(iterator))
