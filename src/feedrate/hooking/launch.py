# SPDX-License-Identifier: Apache-2.0
"""A command with our hook inside: its environment, its folder, its process, and the signals that are its own.

The command gets our terminal, our standard streams and our process group.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.machine.command import explain_failure

# Signals that would end us, and are to reach the command.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
_STARTUP = Path(__file__).resolve().parent / "startup"
_LAUNCHERS = {"srun", "salloc", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "aprun"}
# They pass the environment on and see the working folder, but not the rest of this machine.
_CONTAINERS = {"apptainer", "singularity", "ch-run", "enroot"}


@dataclass(frozen=True, slots=True)
class Hook:
    """What runs inside the user's processes.

    Attributes:
        name: of the command that brings it: "doctor".
        variable: of the environment: it names the run folder, and begins the hook (startup/sitecustomize.py).
        folder: where the hook's package lies.
    """

    name: str
    variable: str
    folder: Path


def needs_shared_folder(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether processes of the command may run on other nodes, or in a container of other folders."""
    if os.path.basename(command[0]) in _LAUNCHERS | _CONTAINERS:
        return True
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    return nodes.isdigit() and int(nodes) > 1


def make_run_folder(hook: Hook, is_shared: bool) -> Path:
    """Make a folder that only this user can enter: in the working folder, if other nodes have to see it."""
    try:
        if is_shared:
            return Path(tempfile.mkdtemp(prefix=f".feedrate-{hook.name}-", dir=Path.cwd()))
        return Path(tempfile.mkdtemp(prefix=f"feedrate-{hook.name}-")).resolve()
    except OSError as error:
        where = "the working folder" if is_shared else tempfile.gettempdir()
        raise StorageError(
            f"cannot make a folder in {where} for what is measured: {error.strerror}",
            hint="start it where you may write" if is_shared else "set TMPDIR to a folder with room",
        ) from error


def make_environment(
    hook: Hook, run: Path, is_shared: bool, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment that brings a hook into every Python process of the command."""
    folders = [_STARTUP, hook.folder]
    if is_shared:
        # Another node, or a container on it, need not have feedrate where this one has it.
        for folder in folders:
            no_caches = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder, run / "hook", ignore=no_caches, dirs_exist_ok=True)
        folders = [run / "hook"]
    # An empty entry would mean the working folder.
    path = [*map(str, folders), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, hook.variable: str(run), "PYTHONPATH": os.pathsep.join(path)}


class Child:
    """The user's command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Python ignores these two, and a child would inherit that: `train | head` would never end.
        ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
        program = shutil.which(command[0]) or command[0]
        try:
            self.pid = os.posix_spawn(program, list(command), dict(environment), setsigdef=ignored)
        except OSError as error:
            raise explain_failure(command[0], error) from error
        self.signal: int | None = None
        self.exit_code = 0
        self._is_running = True

    def has_ended(self) -> bool:
        if self._is_running:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._is_running = False
                code = os.waitstatus_to_exitcode(status)
                self.signal = -code if code < 0 else None
                self.exit_code = 128 - code if code < 0 else code
        return not self._is_running

    def send(self, number: int) -> None:
        if self._is_running:
            os.kill(self.pid, number)


class Signals:
    """While it is entered, signals that would end us are collected instead."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        # Python's handlers run in the main thread only, which may be waiting while another thread gets the
        # signal; the pipe wakes it up.
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGCHLD)}
        for number, handler in self._before.items():
            # What was ignored (nohup) stays ignored, here and in the command.
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def wait(self) -> list[int]:
        """Wait until something happens, or half a second; return the signals that came, without SIGCHLD."""
        ready, _, _ = select.select([self._read], [], [], 0.5)
        numbers = [n for n in os.read(self._read, 4096) if n != signal.SIGCHLD] if ready else []
        self.seen += numbers
        return numbers
