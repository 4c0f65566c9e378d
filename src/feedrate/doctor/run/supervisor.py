# SPDX-License-Identifier: Apache-2.0
"""The processes of a run as the doctor sees them: the command, witness and sampler, and its own signals."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import feedrate
from feedrate.doctor.run import sampler
from feedrate.doctor.run.signal_relay import SIGNALS
from feedrate.errors import UsageError
from feedrate.machine.process import is_pending

_START_S = 10.0  # a loaded machine starts a Python process in seconds
_WITNESS_S = 0.05


class Child:
    """The user's command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # Python ignores these two, and a child would inherit that: `train | head` would never end.
        ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
        program = shutil.which(command[0]) or command[0]
        try:
            self.pid = os.posix_spawn(program, list(command), dict(environment), setsigdef=ignored)
        except OSError as error:
            raise UsageError(
                f"cannot run {command[0]}: {error.strerror}",
                hint="a script must begin with its interpreter: #!/usr/bin/env bash"
                if error.errno in (errno.ENOEXEC, errno.ENOENT)
                else None,
            ) from error
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


class Companion:
    """The witness and the sampler, as the doctor sees them; they end when it closes the pipe."""

    def __init__(self, run: Path) -> None:
        # Not -m: the working folder may hold a json.py. Not the environment: nor may PYTHONPATH.
        home = str(Path(feedrate.__file__).resolve().parents[1])
        path = [home, *(entry for entry in sys.path if entry and os.path.abspath(entry) != os.getcwd())]
        start = (
            "import sys; sys.path[:0] = sys.argv.pop(1).split('\\n'); "
            "from feedrate.doctor.run.signal_relay import main; sys.exit(main(sys.argv[1:]))"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start, "\n".join(path), str(run), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        # Of two signals that come together the later one may be asked about first.
        self._unclaimed: set[int] = set()
        self._wait_for(sampler.READY, _START_S)

    def saw(self, number: int) -> bool:
        """Return whether the whole process group got this signal."""
        if self._wait_for(number, _WITNESS_S):
            return True
        # On a loaded machine the witness may not have had a core since, or got one between two questions.
        seconds = _START_S if is_pending(self._process.pid, number) else _WITNESS_S
        return self._wait_for(number, seconds)

    def stop(self) -> None:
        """Let the sampler take its last sample."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(sampler.STOP)
        except OSError:
            return
        self._wait_for(sampler.STOPPED, _START_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_for(self, byte: int, seconds: float) -> bool:
        assert self._process.stdout is not None
        if byte in self._unclaimed:
            self._unclaimed.remove(byte)
            return True
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([descriptor], [], [], left)
            if ready:
                came = os.read(descriptor, 1)
                if came == b"":
                    return False
                if came[0] == byte:
                    return True
                self._unclaimed.add(came[0])
        return False


class Signals:
    """While it is entered, signals that would end the doctor are collected instead."""

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
