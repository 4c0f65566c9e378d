# SPDX-License-Identifier: Apache-2.0
"""When a source fails: try again, wait longer each time, say so once, and give up in a sentence."""

from __future__ import annotations

import errno
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from feedrate.errors import FeedrateError, StorageError
from feedrate.remote.addresses import Changed
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


Result = TypeVar("Result")

_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    Refused,
    Changed,
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on with a source that fails.

    Attributes:
        stall_s: a request that brings nothing for so long has failed.
        give_up_s: for how long a source is asked that brings nothing, once a request has failed; all its
            requests share this time. The first failure comes within `stall_s`, and so does the end of an
            attempt that is under way when it is over: a batch waits for these three at most.
        tries: how many attempts there are at most.
        spread: by which part waits are shorter, by chance, so that not all ask at once.
    """

    stall_s: float = 30.0
    give_up_s: float = 300.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 15.0
    tries: float = math.inf
    spread: float = 0.5

    def wait_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        most = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 30))
        return most * random.uniform(1.0 - self.spread, 1.0)


# A wrong address should not keep anybody waiting for minutes.
OPENING = RetryPolicy(give_up_s=15.0)


class Outage:
    """What goes wrong with one source; shared by all its requests. Speaks once per outage."""

    def __init__(self, address: str, policy: RetryPolicy) -> None:
        self.address, self.policy = address, policy
        self.retries = 0
        self._lock = threading.Lock()
        self._warned = -_QUIET_S
        self._is_out = self._is_said = False
        self._out_since = self._failed_at = -math.inf

    def note(self, error: BaseException, address: str, wait_s: float, give_up_s: float) -> None:  # noqa: ARG002
        """A request failed, and will be tried again after a while, for so long."""
        with self._lock:
            self.retries += 1
            now = time.monotonic()
            is_news = not self._is_out and now - self._warned >= _QUIET_S
            self._is_out = True
            if is_news:
                self._warned, self._is_said = now, True
        if is_news:
            log.warning(
                "%s does not answer as it should (%s); trying again for up to %s",
                self.address, say(error), format_seconds(give_up_s),
            )  # fmt: skip

    def measure_outage(self) -> float:
        """A request failed: return for how many seconds this source has brought nothing, by any request."""
        with self._lock:
            now = time.monotonic()
            # So long between two attempts: nobody has asked meanwhile.
            is_long_ago = now - self._failed_at > self.policy.stall_s + self.policy.longest_wait_s
            if not self._is_out or is_long_ago:
                self._out_since = now
            self._failed_at = now
            return now - self._out_since

    def is_over(self) -> None:
        """A request brought something."""
        if self._is_out:
            with self._lock:
                was_said, self._is_out, self._is_said = self._is_said, False, False
            if was_said:
                log.info("%s answers again", self.address)

    def explain(self, error: BaseException, address: str, failures: int) -> Exception:
        """Return what to raise when there is no point in another attempt."""
        if isinstance(error, Changed):
            return error
        if isinstance(error, FeedrateError) and (failures < 2 or not isinstance(error, StorageError)):
            return error
        tries = f", tried {failures} times" if failures > 1 else ""
        words = say(error).removeprefix(f"cannot read {address}: ")
        if isinstance(error, FileNotFoundError) and address.endswith(words):  # all that fsspec says
            words = os.strerror(errno.ENOENT)
        return StorageError(
            f"cannot read {address}: {words}{tries}",
            hint="is it there, and are you allowed to read it? When it answers, go on from the last state",
        )


class Retry:
    """The attempts of one request."""

    def __init__(self, outage: Outage, address: str, policy: RetryPolicy | None = None) -> None:
        self._outage, self._address = outage, address
        self._policy = policy or outage.policy
        self._failures, self._began = 0, 0.0
        self.left_s = self._policy.give_up_s  # until it is given up, when nothing comes

    def run(
        self,
        read: Callable[[], Result],
        wait: Callable[[float], object] = time.sleep,
        count: Callable[[], int] = lambda: 0,
    ) -> Result:
        """Return what `read` does, in this thread. `count`: how many bytes have come, in all attempts."""
        while True:
            before = count()
            try:
                data = read()
            except Exception as error:
                wait_s = self.failed(error, has_brought=count() > before)
            else:
                self._outage.is_over()
                return data
            wait(wait_s)

    def failed(self, error: BaseException, *, has_brought: bool = False) -> float:
        """Return how long to wait before the next attempt.

        Args:
            has_brought: bytes came, and were kept, before it failed: time and tries begin anew.

        Raises:
            StorageError: there is no point in another one.
        """
        if _is_final(error):
            self._give_up(error)
        if has_brought:
            self._failures = 0
            self._outage.is_over()
        if not self._failures:
            self._began = time.monotonic()
        self._failures += 1
        spent_s = max(time.monotonic() - self._began, self._outage.measure_outage())
        self.left_s = self._policy.give_up_s - spent_s
        wait_s = self._policy.wait_s(self._failures)
        is_short = isinstance(error, EndsEarly) and self._failures >= _SHORT_ATTEMPTS
        is_enough = self._failures >= self._policy.tries or wait_s > self.left_s
        if is_short or is_enough:
            self._give_up(error)
        self._outage.note(error, self._address, wait_s, self._policy.give_up_s)
        return wait_s

    def _give_up(self, error: BaseException) -> NoReturn:
        better = self._outage.explain(error, self._address, self._failures)
        if better is error:
            raise error
        raise better from error


def say(error: BaseException) -> str:
    """Return an error of any storage in a few words."""
    words = getattr(error, "strerror", None) or " ".join(str(error).split())
    return (words or type(error).__name__)[:300]


def _is_final(error: BaseException) -> bool:
    if isinstance(error, _FINAL) or isinstance(error.__cause__, _FINAL):
        return True
    if isinstance(error, FeedrateError) and not isinstance(error, StorageError):
        return True
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in _PASSING:
        return True
    # Of botocore and paramiko, which need not be installed.
    names = [type(one).__name__ for one in (error, error.__cause__)]
    return "InvalidRange" in str(error) or any("Authentication" in name for name in names)
