# SPDX-License-Identifier: Apache-2.0
"""Tells a signal that the whole process group got from one that was sent to us alone.

Ctrl-C reaches the command by itself, `kill PID` reaches us only: what is passed on to the command is what a
process of the same group did not see.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from feedrate.hooking.launch import SIGNALS
from feedrate.machine.process import is_pending

_RELAY_S, _PENDING_S = 0.05, 10.0


class GroupWitness:
    """A process of our group that tells which signals it got, and ends with us."""

    def __init__(self) -> None:
        self._told, tell = os.pipe()
        living, self._living = os.pipe()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._told)
                os.close(self._living)
                _watch(tell, living, blocked)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(tell)
        os.close(living)
        # Of two signals that come together the later one may be asked about first.
        self._unclaimed: set[int] = set()

    def saw(self, number: int) -> bool:
        """Return whether the whole process group got this signal."""
        self._read(number, _RELAY_S)
        if number not in self._unclaimed:
            # On a loaded machine it had no core since, or at this moment only.
            self._read(number, _PENDING_S if is_pending(self._pid, number) else _RELAY_S)
        is_seen = number in self._unclaimed
        self._unclaimed.discard(number)
        return is_seen

    def _read(self, number: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while number not in self._unclaimed:
            if not select.select([self._told], [], [], max(until - time.monotonic(), 0.0))[0]:
                break
            came = os.read(self._told, 64)
            if not came:
                break
            self._unclaimed.update(came)

    def close(self) -> None:
        os.close(self._living)
        os.close(self._told)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _watch(tell: int, living: int, blocked: set[int | signal.Signals]) -> None:
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for descriptor in (0, 1, 2):  # a pipe of ours that somebody reads to its end must not stay open
        with contextlib.suppress(OSError):
            os.close(descriptor)
    os.read(living, 1)  # ends when nobody can write to it any more
