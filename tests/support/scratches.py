# SPDX-License-Identifier: Apache-2.0
"""What tests of scratch share: copies and sources to try things on, and other processes that use them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from feedrate import kernel
from feedrate.remote.transfer import Stopped
from feedrate.scratch.marker import CopiedFile, Marker
from feedrate.scratch.staging import Staging
from support.trees import find_below

STRANGER, OTHER_STRANGER = 54321, 54322  # users that this machine does not have
NOT_ROOT = "changing the owner of a file needs root"


def make_marker(files: dict[str, bytes], **changes: Any) -> Marker:
    """Return the marker of a copy of these files."""
    entries = tuple(CopiedFile(name, len(data), kernel.crc32c(data)) for name, data in files.items())
    fields: dict[str, Any] = {"kind": "files", "source": "/data/set", "digest": "ab" * 32, "files": entries}
    return Marker(**{**fields, **changes})


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)


class Running:
    """A staging that runs in a thread; the staging is stopped at the end, and how it ended is in `error`."""

    def __init__(self, staging: Staging, order: Sequence[str] = ()) -> None:
        self.error: BaseException | None = None

        def run() -> None:
            try:
                staging.run(order)
            except Stopped:
                pass
            except BaseException as error:
                self.error = error

        self._staging, self._thread = staging, threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until it has ended by itself, and well."""
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self.error is None

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._staging.stop()
        self._thread.join(120)


def part_bytes(scratch: Path) -> int:
    """Return what has grown of x.bin; what is renamed while this looks counts the next time."""
    total = 0
    for path in find_below(scratch, ".x.bin.part"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@contextlib.contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code beside the test; killed at the end, if it still lives."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)


def as_stranger(work: Callable[[], Any], uid: int = STRANGER) -> Any:
    """Run something as another user; return what it returns, by way of JSON."""
    return begin_as_stranger(work, uid)()


def begin_as_stranger(work: Callable[[], Any], uid: int = STRANGER) -> Callable[[], Any]:
    """Begin to run something as another user; what is returned waits for its end, and returns its result."""
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
        os.write(send, answer.encode())
        os._exit(0)
    os.close(send)

    def finish() -> Any:
        with open(receive) as answers:
            text = answers.read()
        os.waitpid(child, 0)
        return json.loads(text)

    return finish
