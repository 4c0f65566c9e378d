# SPDX-License-Identifier: Apache-2.0
"""Show live what a running job uses and waits for: GPUs, cores, memory, disks, workers, and the verdict.

Of any job on this machine, of PyTorch, TensorFlow, JAX or anything else; it is only looked at. Without
arguments: your job of this terminal, or your only training. 'q' or Ctrl-C ends the view, and the job goes on.
What goes to a file or a pipe is one view, of one second.

  feedrate watch
  feedrate watch 4242
  feedrate watch --user alice
  feedrate watch -- python train.py --epochs 90
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
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
from feedrate.errors import NotFound, UsageError

if TYPE_CHECKING:
    from feedrate.report.watch import Row, Screen
    from feedrate.watch.child import Child
    from feedrate.watch.devices import Gpus
    from feedrate.watch.results import WatchedJob, WatchedUser
    from feedrate.watch.sampling import JobSampler, UserSampler

_INTERVAL_S = 2.0
_BLOCK_S = 30.0  # between two views in a file, of a command that is started
_ONCE_S = 1.0
_GLANCE_S = 0.2
_GLANCE_ONCE_S = 0.05
# Of one core, at most, for readings, and for glances: thousands of processes are looked at less often.
_SHARE = 0.009
_OUTPUT_LINES = 5  # of a command's output, below the view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "feedrate watch [options] [PID | --user NAME | -- COMMAND ...]"
    parser.takes_command = True  # type: ignore[attr-defined]
    add = parser.add_argument
    add(
        "pid",
        metavar="PID",
        nargs="?",
        help="a process of the job (default: this terminal's, or your only training)",
    )
    add("--user", metavar="NAME", help="all jobs of this user, a line each")
    default = f"{_INTERVAL_S:g}; of a command, without a terminal: {_BLOCK_S:g}"
    add("--interval", type=number, metavar="SECONDS", help=f"between two readings (default: {default})")
    add("--once", action="store_true", help="print one view, of one second, and end")
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    check(arguments)
    from feedrate.watch.devices import Gpus

    stream = find_terminal()
    if arguments.command is not None:
        from feedrate.machine.command import check_command

        check_command(arguments.command, "feedrate watch")
        return watch_command(arguments, stream)
    gpus = Gpus()
    gpus.refresh()
    sampler = choose(arguments, gpus)
    if arguments.once or stream is None:
        return watch_once(arguments, sampler, gpus)
    from feedrate.report.watch import Screen, draw_watched

    view = View(sampler, gpus)
    with contextlib.suppress(KeyboardInterrupt), ended_like_an_interrupt(), Screen(stream) as screen:
        follow(view, screen, arguments.interval or _INTERVAL_S)
    if view.has_ended:
        if view.last is not None:
            show_result(draw_watched, view.last)
        say(f"process {getattr(sampler, 'pid', '')} has ended; nothing more is to be seen of it")
    return 0


def check(arguments: argparse.Namespace) -> None:
    targets = {"a PID": arguments.pid, "--user": arguments.user, "a command": arguments.command}
    named = [name for name, value in targets.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} name two things to watch", hint="name one of them")
    if arguments.interval is not None and not 0.2 <= arguments.interval <= 3600:
        raise UsageError(f"--interval must be between 0.2 and 3600 seconds, got {arguments.interval:g}")
    if arguments.command is not None and (arguments.once or arguments.json):
        raise UsageError(
            "--once and --json are for a job that runs already",
            hint="start it in the background, then: feedrate watch --once --json view.json $!",
        )
    if arguments.json is not None and not arguments.once:
        raise UsageError("--json writes one view", hint="add --once")


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
    """What is drawn: the last reading, and after it the last lines of a command's output."""

    def __init__(self, sampler: JobSampler | UserSampler, gpus: Gpus, child: Child | None = None) -> None:
        self.sampler, self.gpus, self.child = sampler, gpus, child
        self.last: WatchedJob | WatchedUser | None = None
        self.has_ended = False

    def glance(self) -> None:
        self.sampler.glance()
        self.gpus.glance()

    def take(self) -> None:
        self.gpus.refresh()
        seen = self.sampler.take()
        self.has_ended = seen is None
        self.last = self.last if seen is None else clean_values(seen)

    def list_rows(self, columns: int, lines: int) -> list[Row]:
        from feedrate.report.watch import Row, list_rows

        output = [] if self.child is None else self.child.list_last(min(_OUTPUT_LINES, lines // 5))
        below = [Row("the last lines of its output:", "faint"), *map(Row, output)] if output else []
        if self.last is None:
            return [Row("reading ..."), *below]
        room = lines - len(below)
        rows = list_rows(self.last, columns, room)
        return [*rows[:room], *[Row("")] * (room - len(rows)), *below] if below else rows


def follow(
    view: View, screen: Screen | None, interval_s: float, tell: Callable[[], None] | None = None
) -> None:
    """Read and draw until the job ends or a key says so; `tell`: called after each reading instead."""
    due_s = time.monotonic() + min(_ONCE_S, interval_s) if screen else time.monotonic() + interval_s
    glance_s = time.monotonic()
    size: tuple[int, int] | None = None
    while not view.has_ended:
        child, sources = view.child, [] if screen is None or screen.keys is None else [screen.keys]
        kept = None if child is None else child.descriptor
        now_s = time.monotonic()
        ready = select.select(
            [*sources, *([] if kept is None else [kept])], [], [], max(0.0, min(glance_s, due_s) - now_s)
        )[0]
        if child is not None and kept in ready:
            child.keep()
        if sources and sources[0] in ready and os.read(sources[0], 64)[:1] in (b"q", b"Q", b"\x04", b""):
            return
        if child is not None and child.has_ended():
            return
        now_s = time.monotonic()
        began_s = time.process_time()
        if now_s >= due_s:
            view.take()
            size = None
        elif now_s >= glance_s:  # and not whenever a command writes a line
            view.glance()
            glance_s = now_s + max(_GLANCE_S, (time.process_time() - began_s) / _SHARE)
        if screen is not None and screen.measure() != size:
            size = screen.measure()
            if child is not None:
                child.resize()
            foot = f"q: quit   every {interval_s:g} s"
            screen.draw(view.list_rows(size[0] - 1, size[1] - 1), foot)
        elif tell is not None and now_s >= due_s and not view.has_ended:
            tell()
        if now_s >= due_s:
            due_s = now_s + max(interval_s, (time.process_time() - began_s) / _SHARE)


def watch_command(arguments: argparse.Namespace, stream: TextIO | None) -> int:
    """Start a command and watch it to its end; return its exit code."""
    from feedrate.report.watch import Screen, draw_watched
    from feedrate.watch.child import Child
    from feedrate.watch.devices import Gpus
    from feedrate.watch.sampling import JobSampler

    gpus = Gpus()
    gpus.refresh()
    with ended_like_an_interrupt():
        child = Child(arguments.command, is_kept=stream is not None)
        try:
            view = View(JobSampler(child.pid, gpus), gpus, child)
            if stream is None:
                tell = lambda: show_result(draw_watched, view.last, sys.stderr)  # noqa: E731
                follow(view, None, arguments.interval or _BLOCK_S, tell)
            else:
                with Screen(stream) as screen:
                    follow(view, screen, arguments.interval or _INTERVAL_S)
        except (KeyboardInterrupt, OSError):  # nobody looks any more, or nobody can
            pass
        except SystemExit:
            child.end()
        finally:  # whatever became of the view, the command goes on
            code = child.pass_on()
    if child.is_full:
        say("feedrate watch: the temporary folder was full, and some of the output above is missing")
    return code
