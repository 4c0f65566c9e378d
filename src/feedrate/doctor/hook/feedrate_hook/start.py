# SPDX-License-Identifier: Apache-2.0
"""Begins the hook in a process: a finder in sys.meta_path, and nothing more until a module has a patch."""

from __future__ import annotations

import atexit
import os
import sys

from . import layout
from .session import Noted, session

# Programs that start others and train nothing. Their children are the ranks: those have LOCAL_RANK.
_LAUNCHER_SCRIPTS = {"torchrun", "deepspeed", "torchx", "horovodrun", "accelerate-launch"}
_LAUNCHER_MODULES = {
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher",
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner", "deepspeed.launcher.launch",
}  # fmt: skip
# `-c` programs that multiprocessing starts for its own use.
_TRACKERS = ("from multiprocessing.resource_tracker", "from multiprocessing.semaphore_tracker")

_begun = False


def begin() -> None:
    """Begin in this process, unless it is one that only starts others."""
    global _begun
    run = os.environ.get(layout.ENVIRONMENT)
    if not run or _begun or not os.path.isdir(run):
        return
    arguments = _command_line()
    if is_launcher(arguments, dict(os.environ)):
        return
    _begun = True
    session.start(run)
    session.describe_process()
    try:
        from . import patches
        from .record import parts, stacks

        patches.watch()
        patches.install()
        parts.begin_prelude()
        # It may be a loop without torch, where the doctor has started it itself: others may prepare one.
        session.load_settings()
        if session.settings.get("doctor") == os.getppid():
            stacks.start_plain()
    except Exception as error:
        session.note_error("start", error)
        return

    def before_fork() -> None:
        with Noted("fork"):
            stacks.stop()

    def after_fork_in_child() -> None:
        with Noted("fork"):
            session.after_fork()
            patches.after_fork()

    # In the parent, the thread that looks at stacks starts again at the next batch.
    os.register_at_fork(before=before_fork, after_in_child=after_fork_in_child)
    atexit.register(_at_exit, os.getpid())


def is_launcher(arguments: list[str], environment: dict[str, str]) -> bool:
    """Return whether a command line is that of a supervisor (or a tracker), not of a program that trains."""
    program, rest = _program(arguments)
    if program.startswith(_TRACKERS):
        return True
    if "LOCAL_RANK" in environment:
        return False
    script = os.path.basename(program)
    if script in ("accelerate", "accelerate.commands.accelerate_cli"):
        return rest[:1] == ["launch"]
    return program in _LAUNCHER_MODULES or script in _LAUNCHER_SCRIPTS


def _program(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the script, the module after -m or the text after -c, and what follows."""
    position = 1
    while position < len(arguments):
        argument = arguments[position]
        if argument in ("-m", "-c"):
            return "".join(arguments[position + 1 : position + 2]), arguments[position + 2 :]
        if argument in ("-W", "-X", "--check-hash-based-pycs"):
            position += 1
        elif not argument.startswith("-") or argument == "-":
            return argument, arguments[position + 1 :]
        position += 1
    return "", []


def _command_line() -> list[str]:
    # At this moment sys.argv does not hold the module of `-m`, and sys.orig_argv came with Python 3.10.
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", []))


def _at_exit(pid: int) -> None:
    """Registered first, so it runs last: whatever the program does at its end has been seen."""
    if os.getpid() != pid and session.role == "other":
        return
    with Noted("exit"):
        from . import patches

        patches.at_exit()
        session.forget_experiments()
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if session.phase == layout.REAL:
            session.finish(
                "exception" if error is not None else "script",
                _shorten(f"{type(error).__name__}: {error}") if error is not None else None,
            )


def _shorten(text: str) -> str:
    """Keep both ends: a worker's exception carries its traceback, and says what happened in the last line."""
    return text if len(text) <= 1000 else f"{text[:300]} ... {text[-700:]}"
