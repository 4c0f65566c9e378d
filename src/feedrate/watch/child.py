# SPDX-License-Identifier: Apache-2.0
"""A command that is started to be watched; what it writes to the terminal is kept until the view is closed.

It gets a terminal of its own for what would go to ours, so that it writes as it does without us: line by
line, with its progress bars. Streams that were redirected are left alone. It stays in our process group:
Ctrl-C in the terminal reaches it by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
from collections import deque
from collections.abc import Sequence

from feedrate.machine.command import explain_failure

_SPOOL_BYTES = 1 << 20  # in memory; more goes to a file without a name
_LAST_LINES = 50
_POLL_S = 0.1
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Child:
    """The command. With `is_kept`, what it writes to our terminal is kept, and shown by `pass_on`."""

    def __init__(self, command: Sequence[str], *, is_kept: bool) -> None:
        self._terminal: int | None = None
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._unfinished = b""
        self.is_full = False
        inner = None
        if is_kept:
            self._terminal, inner = pty.openpty()
            mode = termios.tcgetattr(inner)
            mode[1] &= ~termios.OPOST  # our terminal will turn "\n" into "\r\n": once is enough
            termios.tcsetattr(inner, termios.TCSANOW, mode)
            self.resize()
        try:
            self._process = subprocess.Popen(
                command,
                # The view reads the keys of the terminal.
                stdin=subprocess.DEVNULL if is_kept and os.isatty(0) else None,
                stdout=inner if inner is not None and os.isatty(1) else None,
                stderr=inner if inner is not None and os.isatty(2) else None,
            )
        except OSError as error:
            raise explain_failure(command[0], error) from error
        finally:
            if inner is not None:
                os.close(inner)
        # Unbuffered: of a full folder one learns at once, and not when all is over.
        self._spool = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, buffering=0)  # noqa: SIM115 (see pass_on)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptor(self) -> int | None:
        """What can be read from when the command has written; None: nothing is kept, or all has come."""
        return self._terminal

    def resize(self) -> None:
        """Make the command's terminal as large as ours is now."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(_find_terminal(), termios.TIOCGWINSZ, b"\0" * 8)
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _read(self) -> bytes:
        """Return what the command has written; empty: nothing, or it has closed its streams."""
        if self._terminal is None or not select.select([self._terminal], [], [], 0)[0]:
            return b""
        try:
            new = os.read(self._terminal, 1 << 16)
        except OSError:  # of a terminal that nobody writes to any more
            new = b""
        if not new:
            os.close(self._terminal)
            self._terminal = None
            return b""
        *lines, self._unfinished = (self._unfinished + new).split(b"\n")
        self._unfinished = self._unfinished[-4096:]
        self._last.extend(lines)
        return new

    def keep(self) -> None:
        """Take what the command has written."""
        new = self._read()
        try:
            self.is_full |= self._spool.write(new) < len(new)
        except OSError:  # the temporary folder is full
            self.is_full = True

    def list_last(self, count: int) -> list[str]:
        """Return the last lines of the output, as a terminal would show them."""
        lines = [*self._last, self._unfinished] if self._unfinished else list(self._last)
        plain = [_COLOURS.sub(b"", line).rstrip(b"\r").split(b"\r")[-1] for line in lines]
        return [line.decode(errors="replace") for line in plain[-count:]] if count else []

    def pass_on(self) -> int:
        """Write what was kept, then pass on what comes until the command ends; return its exit code.

        No signal ends this: the command has got Ctrl-C, too, and is sent SIGTERM; it decides.
        """
        out = _find_terminal()
        with self._spool:
            self._spool.seek(0)
            while True:
                try:
                    while part := self._spool.read(1 << 16):
                        _write(out, part)
                    if self._terminal is None:
                        return self._wait()
                    select.select([self._terminal], [], [], _POLL_S)
                    new = self._read()
                    if new:
                        _write(out, new)
                    elif self.has_ended():  # somebody whom it started may keep the terminal open
                        return self._wait()
                except KeyboardInterrupt:
                    continue
                except SystemExit:
                    self.end()

    def end(self) -> None:
        """Pass SIGTERM on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def _wait(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code


def _find_terminal() -> int:
    return 1 if os.isatty(1) else 2


def _write(descriptor: int, data: bytes) -> None:
    try:
        sys.stdout.flush()
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # the terminal is gone
        return
