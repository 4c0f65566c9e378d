# SPDX-License-Identifier: Apache-2.0
"""Show live what a running job uses and waits for: GPUs, cores, memory, disks, workers, and the verdict.

Of any job on this machine, of PyTorch, TensorFlow, JAX or anything else; it is only looked at. Without
arguments: your job of this terminal, or your only training. 'q' or Ctrl-C ends the view, and the job goes on.
What goes to a file or a pipe is one view, of one second.

  feedrate watch
  feedrate watch 4242
  feedrate watch --user alice
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from feedrate.cli.arguments import number
from feedrate.cli.output import (
    add_json_arguments,
    clean_values,
    emit,
    ended_like_an_interrupt,
    say,
    show_result,
)
from feedrate.errors import NotFound, UsageError, need

if TYPE_CHECKING:
    from feedrate.watch.devices import Gpus
    from feedrate.watch.results import WatchedJob, WatchedUser
    from feedrate.watch.sampling import JobSampler, UserSampler

_INTERVAL_S = 2.0
_ONCE_S = 1.0
_GLANCE_S = 0.2
_GLANCE_ONCE_S = 0.05
# Of one core, at most, for readings, and for glances: thousands of processes are looked at less often.
_SHARE = 0.009


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "feedrate watch [options] [PID | --user NAME]"
    add = parser.add_argument
    add(
        "pid",
        metavar="PID",
        nargs="?",
        help="a process of the job (default: this terminal's, or your only training)",
    )
    add("--user", metavar="NAME", help="all jobs of this user, a line each")
    default = f"between two readings (default: {_INTERVAL_S:g})"
    add("--interval", type=number, metavar="SECONDS", default=_INTERVAL_S, help=default)
    add("--once", action="store_true", help="print one view, of one second, and end")
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.pid is not None and arguments.user is not None:
        raise UsageError("a PID and --user name two things to watch", hint="name one of them")
    if not 0.2 <= arguments.interval <= 3600:
        raise UsageError(f"--interval must be between 0.2 and 3600 seconds, got {arguments.interval:g}")
    if arguments.json is not None and not arguments.once:
        raise UsageError("--json writes one view", hint="add --once")
    from feedrate.watch.devices import Gpus

    gpus = Gpus()
    gpus.refresh()
    sampler = choose(arguments, gpus)
    stream = find_terminal()
    if arguments.once or stream is None:
        return watch_once(arguments, sampler, gpus)
    view = View(sampler, gpus)
    with contextlib.suppress(KeyboardInterrupt), ended_like_an_interrupt():
        view.follow(stream, arguments.interval)
    if view.has_ended:
        from feedrate.report.watch import draw_watched

        if view.last is not None:
            show_result(draw_watched, view.last)
        say(f"process {getattr(sampler, 'pid', '')} has ended; nothing more is to be seen of it")
    return 0


def find_terminal() -> TextIO | None:
    """Return the stream that a view can be drawn on again and again; None: there is none."""
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return None
    return next((one for one in (sys.stdout, sys.stderr) if one is not None and one.isatty()), None)


def choose(arguments: argparse.Namespace, gpus: Gpus) -> JobSampler | UserSampler:
    from feedrate.watch.sampling import JobSampler, UserSampler, choose_job
    from feedrate.watch.targets import find_target, find_user

    if arguments.user is not None:
        return UserSampler(find_user(arguments.user), gpus)
    if arguments.pid is None:
        return choose_job(os.getuid(), gpus, lambda: time.sleep(_ONCE_S))
    pid, notes = find_target(arguments.pid)
    return JobSampler(pid, gpus, notes)


def watch_once(arguments: argparse.Namespace, sampler: JobSampler | UserSampler, gpus: Gpus) -> int:
    from feedrate.report.watch import draw_watched

    end_s = time.monotonic() + _ONCE_S
    while time.monotonic() < end_s:
        time.sleep(_GLANCE_ONCE_S)
        sampler.glance()
        gpus.glance()
    gpus.refresh()
    seen = sampler.take()
    if seen is None:
        raise NotFound(f"process {getattr(sampler, 'pid', '')} has ended before the second reading")
    return emit(arguments, "watch", seen, draw_watched)


class View:
    """A live view; `last` is the last reading, whatever ended it."""

    def __init__(self, sampler: JobSampler | UserSampler, gpus: Gpus) -> None:
        self._sampler, self._gpus = sampler, gpus
        self.last: WatchedJob | WatchedUser | None = None
        self.has_ended = False

    def follow(self, stream: TextIO, interval_s: float) -> None:
        """Read and draw until the job ends or a key says so."""
        need("rich")
        from rich.console import Console
        from rich.live import Live

        from feedrate.report.watch import paint_watched

        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]
        console = Console(file=stream, highlight=False)
        due_s = time.monotonic() + min(_ONCE_S, interval_s)
        live = Live("reading ...", console=console, screen=True, auto_refresh=False)
        with live, read_keys() as key:
            while True:
                now_s, began_s = time.monotonic(), time.process_time()
                if now_s >= due_s:
                    self._gpus.refresh()
                    seen = self._sampler.take()
                    if seen is None:
                        self.has_ended = True
                        return
                    self.last = clean_values(seen)
                    live.update(paint_watched(self.last, console.width, console.height), refresh=True)
                    due_s = now_s + max(interval_s, (time.process_time() - began_s) / _SHARE)
                else:
                    self._sampler.glance()
                    self._gpus.glance()
                pause_s = max(_GLANCE_S, (time.process_time() - began_s) / _SHARE)
                pause_s = max(min(pause_s, due_s - time.monotonic()), 0.0)
                if select.select(key, [], [], pause_s)[0] and os.read(key[0], 64)[:1] in b"qQ\x04":
                    return


@contextlib.contextmanager
def read_keys() -> Iterator[list[int]]:
    """Let keys of the terminal arrive at once; yield the descriptor that they come from, if there is one."""
    import termios
    import tty

    if sys.stdin is None or not sys.stdin.isatty():
        yield []
        return
    key = sys.stdin.fileno()
    before = termios.tcgetattr(key)
    tty.setcbreak(key)
    try:
        mode = termios.tcgetattr(key)
        for stop in (termios.VSUSP, termios.VQUIT):  # would leave the second screen to the shell
            mode[6][stop] = b"\0"
        termios.tcsetattr(key, termios.TCSANOW, mode)
        yield [key]
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(key, termios.TCSADRAIN, before)
