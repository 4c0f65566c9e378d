# SPDX-License-Identifier: Apache-2.0
"""When a source fails: try again, wait longer each time, say so once, and give up in a sentence."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from feedrate.errors import FeedrateError, StorageError
from feedrate.units import format_seconds

# Not `warnings`: the loop that would show one may be waiting for the very bytes that do not come.
log = logging.getLogger("feedrate")

# Of a server's refusals, those that another attempt may change: timeout, too early, too many requests.
_PASSING = (408, 425, 429)
_QUIET_S = 60.0
_SHORT_ATTEMPTS = 3


class EndsEarly(StorageError):
    """A file of the source is shorter than the pack says."""


class Refused(FeedrateError, OSError):
    """Asking again cannot help."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on with a source that fails.

    Attributes:
        stall_s: a request that brings nothing for so long has failed.
        give_up_s: how long after a request's first failure its last attempt may begin.
    """

    stall_s: float = 30.0
    give_up_s: float = 300.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 15.0

    def wait_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row; by chance, so that not all ask at once."""
        most = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 30))
        return most * random.uniform(0.5, 1.0)


class Trouble:
    """What goes wrong with one source; shared by all its requests. Speaks once per outage."""

    def __init__(self, address: str, patience: Patience) -> None:
        self.address, self.patience = address, patience
        self.retries = 0
        self._lock = threading.Lock()
        self._warned = -_QUIET_S
        self._is_out = False

    def note(self, error: BaseException) -> None:
        with self._lock:
            self.retries += 1
            now = time.monotonic()
            is_news = not self._is_out and now - self._warned >= _QUIET_S
            self._is_out = True
            if is_news:
                self._warned = now
        if is_news:
            log.warning(
                "%s does not answer as it should (%s); trying again for up to %s",
                self.address, say(error), format_seconds(self.patience.give_up_s),
            )  # fmt: skip

    def is_over(self) -> None:
        """A request succeeded."""
        if self._is_out:
            with self._lock:
                was_out, self._is_out = self._is_out, False
            if was_out:
                log.info("%s answers again", self.address)


class Attempts:
    """The attempts of one request."""

    def __init__(self, trouble: Trouble, address: str, patience: Patience | None = None) -> None:
        self._trouble, self._address = trouble, address
        self._patience = patience or trouble.patience
        self._failures, self._began = 0, 0.0

    def run(self, read: Callable[[], bytes]) -> bytes:
        """Return what `read` does, in this thread."""
        while True:
            try:
                data = read()
            except Exception as error:
                time.sleep(self.failed(error))
            else:
                self._trouble.is_over()
                return data

    def failed(self, error: BaseException) -> float:
        """Return how long to wait before the next attempt.

        Raises:
            StorageError: there is no point in another one.
        """
        if _is_final(error):
            raise self._explain(error) from error
        if not self._failures:
            self._began = time.monotonic()
        self._failures += 1
        spent_s = time.monotonic() - self._began
        wait_s = self._patience.wait_s(self._failures)
        is_short = isinstance(error, EndsEarly) and self._failures >= _SHORT_ATTEMPTS
        if is_short or spent_s + wait_s > self._patience.give_up_s:
            raise self._explain(error) from error
        self._trouble.note(error)
        return wait_s

    def _explain(self, error: BaseException) -> FeedrateError:
        if isinstance(error, FeedrateError) and (self._failures < 2 or not isinstance(error, StorageError)):
            return error
        tries = f", tried {self._failures} times" if self._failures > 1 else ""
        return StorageError(
            f"cannot read {self._address}: {say(error)}{tries}",
            hint="is it there, and are you allowed to read it? When it answers, go on from the last state",
        )


def say(error: BaseException) -> str:
    """Return an error of any storage in a few words."""
    words = getattr(error, "strerror", None) or " ".join(str(error).split())
    return (words or type(error).__name__)[:300]


def _is_final(error: BaseException) -> bool:
    if isinstance(error, (FileNotFoundError, PermissionError, ImportError, Refused)):
        return True
    if isinstance(error, FeedrateError) and not isinstance(error, StorageError):
        return True
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in _PASSING:
        return True
    # Of botocore and paramiko, which need not be installed.
    names = [type(one).__name__ for one in (error, error.__cause__)]
    return "InvalidRange" in str(error) or any("Authentication" in name for name in names)
