# SPDX-License-Identifier: Apache-2.0
r"""The experiments on a running training loop, from inside its next() calls.

    watching --enough seen, nobody writes--> guard up, drain, again (inside one next) --> feeding --> the end
        \--an error, or a writer that does not come to its end--> given up: the real run goes on untouched

Behind the guard the run is not the user's any more, so every way from there leads to the end of the process
(guard/processes.py).
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import layout
from ..guard import processes
from ..guard.guard import Guard, Scope
from ..guard.processes import Ending
from ..record import loader_clone, other_loaders
from ..session import session
from . import batches, watching
from .feeding import Feeding, LoopLeft
from .watching import Seen, Watching

WATCHING, BUSY, FEEDING, GIVEN_UP = range(4)
KEPT_BYTES = 1 << 30
AT_EXIT = 0.25  # of the usual time, for DRAIN and AGAIN after the script's own end
LEFT_S = 20.0  # without a next(): the loop has been left
LOOK_AT_STEP = 4  # by then the ranks know each other
NOT_COME = "another rank did not come"
FETCHES = "the loader fetches a remote pack, or fills scratch, which nothing may do beside the experiments"
STUCK_S = 120.0  # inside a next(): so long takes the start of workers at most


class Experiments:
    """One per training process of a run that is not passive."""

    def __init__(self) -> None:
        self._state = WATCHING
        self._watching = Watching()
        self._ranks = watching.Ranks()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._scope: Any = None
        self._ending: Any = None
        self._guard: Any = None
        self._feeding: Any = None
        self._is_inside = False
        self._last_call_s = 0.0
        self._idle_limit_s = LEFT_S
        self._older = frozenset(threading.enumerate())
        self._writers_s = float(session.settings.get("writers_seconds", processes.WAIT_S))
        # Called when the main module is over, before multiprocessing and torch put their things away.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(self.on_exit)

    def on_next(self, iterator: Any, take: Callable[[], Any]) -> Any:
        """In place of `take`, for every next() of every loader in this process."""
        if self._state == WATCHING:
            try:
                seen = self._watching.note(iterator)
                is_time = self._is_time(seen, iterator)
            except Exception as error:
                self._give_up("watching", error)
                return take()
            if not is_time:
                try:
                    return take()
                except StopIteration:
                    seen.nexts -= 1
                    if not self._is_last_chance(seen):
                        raise
            with self._lock:
                return self._begin(seen, iterator, take)
        if self._state == GIVEN_UP or (self._scope is not None and self._scope.is_own()):
            return take()
        with self._lock:
            return self._feed(iterator, take)

    def _is_time(self, seen: Seen, iterator: Any) -> bool:
        if seen.nexts == LOOK_AT_STEP:
            self._ranks.look()
        if self._ranks.size > 1:
            return self._is_agreed(seen, iterator)
        return self._watching.is_due(seen, iterator)

    def _is_last_chance(self, seen: Seen) -> bool:
        try:
            return self._ranks.size == 1 and self._watching.is_last_chance(seen)
        except Exception as error:
            self._give_up("watching", error)
            return False

    def _is_agreed(self, seen: Seen, iterator: Any) -> bool:
        """Rank 0 decides; all begin at the same step."""
        plan = self._ranks.plan()
        if plan is None:
            if self._ranks.rank == 0 and self._watching.is_due(seen, iterator):
                self._decide(seen)
            return False
        if self._watching.training() is not seen:
            return False
        if seen.nexts > plan["step"]:
            raise RuntimeError(f"rank {self._ranks.rank} was past step {plan['step']} already")
        return bool(seen.nexts == plan["step"])

    def _decide(self, seen: Seen) -> None:
        why = ""
        if self._ranks.count("rank") < self._ranks.size:
            why = "not every rank is watched with the same run folder"
        elif loader_clone.is_pipe(seen.loader()):
            why = "the ranks agree on the order of a data pipe whenever it begins"
        if why:
            self._skip_from(layout.DRAIN, why)
            raise RuntimeError(why)
        step_s = self._watching.step_s(seen)
        per_optimizer_step = math.ceil(seen.nexts / max(1, seen.optimizer_steps))
        margin = max(watching.MARGIN, 2 * per_optimizer_step)
        pace_s = session.pace_s
        count = max(8, min(max(20, int(pace_s / step_s)), int(2.4 * pace_s / step_s)))
        self._ranks.decide({"step": seen.nexts + margin, "replay": count, "half": min(15, count)})

    def _give_up(self, where: str, error: BaseException) -> None:
        self._state = GIVEN_UP
        session.note_error(f"experiments: {where}", error)
        self._ranks.withdraw()
        if self._ranks.size > 1 and self._ranks.plan() is not None:
            self._prepare()
            with self._scope.own():
                processes.wait_for_writers(self._scope, self._writers_s, self._older)
            self._ending.end(error)  # the others will stop, and this one would wait for them

    def _prepare(self) -> None:
        self._scope = Scope()
        self._ending = Ending(self._scope)
        self._ending.before.append(self._ranks.leave)
        self._ending.is_overdue = self._overdue
        self._guard = Guard(self._scope, self._ending)

    def _begin(self, seen: Seen, iterator: Any, take: Callable[[], Any]) -> Any:
        self._state = BUSY
        session.facts("watched")  # the last real step ends here
        session.loaders.note_stats(iterator)
        session.loaders.note_unasked()
        try:
            loader = session.loaders.loader_of(iterator)
            self._idle_limit_s = max(LEFT_S, 8 * self._watching.step_s(seen))
            self._prepare()
            with self._scope.own():
                reason = self._reason_not_to_begin()
        except Exception as error:
            self._give_up("beginning", error)
            return take()
        except BaseException:  # Ctrl-C while writers are waited for
            self._state = GIVEN_UP
            raise
        if reason:
            self._state = GIVEN_UP
            self._skip_from(layout.DRAIN, reason)
            return take()
        try:
            with self._scope.own():
                is_long_enough = self._watching.leaves(seen, iterator, session.pace_s)
                database = self._guard.open_database()
                self._ending.prepare()
                taken = self._take_before(loader, iterator)
                self._guard.put_up()
                session.phase = layout.DRAIN  # workers put up theirs when they see it
                kept = self._keep(taken) if taken else self._drain_and_again(loader, iterator, is_long_enough)
                self._spoil(loader, kept, seen, database)
            return self._feed(iterator, take)
        except BaseException as error:
            session.note_error("experiments: experiments", error)
            self._ending.end(error)

    def _reason_not_to_begin(self) -> str:
        """Wait for what the real run still writes. A sentence: the experiments would cut something off."""
        reason = (
            processes.wait_for_writers(self._scope, self._writers_s, self._older)
            or self._guard.reason_not_to()
            or ""
        )
        reason = self._agree("may-begin", reason)
        if reason == NOT_COME:  # it may begin all the same, later
            raise RuntimeError(reason)
        return reason

    def _agree(self, name: str, reason: str) -> str:
        """Return the reason that any of the ranks has."""
        answers = self._ranks.gather(name, {"reason": reason})
        if answers is None:
            return NOT_COME
        return next((str(answer["reason"]) for answer in answers if answer["reason"]), "")

    def _skip_from(self, first: int, reason: str) -> None:
        session.skip(reason, *(phase for phase in layout.EXPERIMENTS if phase >= first))

    def _take_before(self, loader: Any, iterator: Any) -> list[Any]:
        """Batches of a Loader that fetches its pack in threads of its own: the guard would cut those off."""
        if not (other_loaders.is_pack_loader(loader) and other_loaders.is_fetching(loader)):
            return []
        source = loader_clone.PackSource(loader, iterator)
        try:
            taken = [source.next() for _ in range(batches.KEPT)]
        finally:
            source.close()
        session.skip(FETCHES, layout.DRAIN, layout.AGAIN)
        return taken

    def _drain_and_again(self, loader: Any, iterator: Any, is_long_enough: bool) -> list[Any]:
        states = loader_clone.RandomStates()
        drained = batches.Drained()
        if other_loaders.is_pack_loader(loader):
            try:
                batches.drain_pack_loader(drained, loader, iterator)
            except Exception as error:
                session.failed(session.phase, error)
            states.put_back()
            return self._keep(list(drained.recent))
        try:
            source = loader_clone.Source(loader, iterator)
            if not is_long_enough:
                # Not the rest of an epoch and then a pause, but one epoch after the other.
                source.close()
                source = loader_clone.Source(loader_clone.copy_loader(loader, loader.num_workers))
            try:
                batches.drain(drained, loader, source)
            finally:
                # Workers would go on and prepare batches that nobody takes, beside what is measured next.
                source.close()
        except Exception as error:
            session.failed(layout.DRAIN, error)
        kept = self._keep(list(drained.recent))
        drained.recent.clear()
        try:
            batches.again(drained, loader)
        except Exception as error:
            session.failed(layout.AGAIN, error)
        states.put_back()
        return kept

    def _keep(self, recent: list[Any]) -> list[Any]:
        """Whole batches only, and no more of them than memory has room for."""
        most = max((batches.samples_of(batch) for batch in recent), default=0)
        kept: list[Any] = []
        used = 0
        for batch in reversed(recent):
            size = 2 * batches.bytes_of(batch)
            if batches.samples_of(batch) == most and (not kept or used + size <= KEPT_BYTES):
                try:
                    kept.append(batches.Kept(batch))
                    used += size
                except Exception as error:
                    session.note_error("experiments: keep", error)
        return kept

    def _spoil(self, loader: Any, kept: list[Any], seen: Seen, database: str | None) -> None:
        """Begin to feed the loop, if all ranks can; otherwise the run ends here."""
        reason = self._agree("may-spoil", database or ("" if kept else "no batch could be kept"))
        if reason:
            self._skip_from(layout.TRIAL, reason)
            self._ending.end(None)
        self._feeding = Feeding(self._scope, self._watching, training=seen)
        self._feeding.plan(loader, kept, self._ranks.plan())
        self._ending.first = self._feeding.cut
        self._state = FEEDING

    def _feed(self, iterator: Any, take: Callable[[], Any]) -> Any:
        """A next() of the user's loop. Whatever goes wrong ends the process."""
        self._is_inside, self._last_call_s = True, time.monotonic()
        try:
            batch = self._feeding.next(iterator, take)
            self._is_inside, self._last_call_s = False, time.monotonic()
        except LoopLeft as left:
            self._ending.end(str(left) or None)
        except BaseException as error:
            self._ending.end(error)
        return batch

    def _overdue(self) -> str | None:
        """Asked twice a second by the thread that will end the process."""
        if self._state != FEEDING:
            return None
        if time.monotonic() - self._last_call_s > (STUCK_S if self._is_inside else self._idle_limit_s):
            return "the loop was left: it took no batch any more"
        if self._ranks.size > 1 and self._ranks.has_ended():
            return "another rank has ended"
        return None

    def on_exit(self) -> None:
        """The script ended by itself before the experiments were due: the loader can still be measured."""
        if self._state != WATCHING or self._ranks.size > 1 or os.getpid() != self._pid:
            return
        # The main module may be over while a thread still trains.
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        if any(thread.is_alive() and not thread.daemon for thread in others):
            return
        self._state = GIVEN_UP
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        try:
            seen = self._watching.training()
            loader = None if seen is None else seen.loader()
            if error is not None or loader is None or other_loaders.is_pack_loader(loader):
                return
            if loader_clone.is_iterable_style(loader) or loader_clone.is_too_late():
                return
            if not (loader.num_workers or loader_clone.is_forking(loader)):
                return
            self._scope = Scope()
            with self._scope.own():
                session.phase = layout.DRAIN  # workers put up a guard when they see it
                session.pace_s *= AT_EXIT
                batches.after_the_end(loader)
        except Exception as error:
            session.note_error("experiments: exit", error)
        finally:
            session.phase = layout.REAL
