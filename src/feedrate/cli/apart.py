# SPDX-License-Identifier: Apache-2.0
"""A command that calls code of the user's runs in a process of its own, whose end is told in a sentence."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def go_apart(function: str) -> int | None:
    """Go on in a new process, where this returns None; in the old one return its exit code when it has ended.

    Code that ends a process on the spot (`os._exit`, a crash of compiled code) leaves nothing that could say
    so. To be called before there are threads.
    """
    living, alive = os.pipe()  # the new process reads from it, and finds its end when the old one is gone
    done, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # signals come once, from the old process, not again from the terminal
        os.close(alive)
        os.close(done)
        threading.Thread(target=_end_with_parent, args=(living,), daemon=True).start()
        atexit.register(os.write, telling, b".")
        return None
    os.close(living)
    os.close(telling)
    sent: list[int] = []
    _forward_signals(child, sent)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with open(done, "rb") as end:
        is_well = end.read() == b"."
    os.close(alive)
    if is_well:
        return code
    if -code in sent:
        return 128 - code
    from feedrate.cli import EXIT_FAILED, say_error

    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    say_error(
        f"{function} seems to have ended the process that packs, {how}",
        "try it on one sample in Python first; the same command goes on where this one ended",
    )
    return EXIT_FAILED


def _forward_signals(child: int, sent: list[int]) -> None:
    def forward(number: int, _: FrameType | None) -> None:
        sent.append(number)
        os.kill(child, number)

    def stop(number: int, _: FrameType | None) -> None:
        os.kill(child, number)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, stop)


def _end_with_parent(living: int) -> None:
    os.read(living, 1)
    os._exit(1)
