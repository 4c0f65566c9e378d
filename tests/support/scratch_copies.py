# SPDX-License-Identifier: Apache-2.0
"""Copies on scratch for tests: small sources, staged in this process or used by others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedrate.scratch.clearing import opened_home
from feedrate.scratch.copy import Copy
from feedrate.scratch.eviction import evict
from feedrate.scratch.listing import list_copies
from feedrate.scratch.results import CopyInfo
from feedrate.scratch.staging import StagingOptions, open_staging
from support.packs import write_images


def make_pack(folder: Path, count: int = 6) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return write_images(folder, count, shards=2)


def make_files(folder: Path, count: int = 3) -> Path:
    for number in range(count):
        path = folder / f"part-{number}" / "values.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (1000 + number))
    return folder


def stage(
    source: Path | str, scratch: Path, *, keep_s: float | None = None, used: float | None = None
) -> Copy:
    """Stage all of it; `used`: when it was used last."""
    scratch.mkdir(exist_ok=True)
    with open_staging(source, scratch, options=StagingOptions(keep_s=keep_s)) as staging:
        staging.run()
    if used is not None:
        os.utime(staging.copy.folder / "used", (used, used))
    return staging.copy


def stage_half(source: Path, scratch: Path) -> Copy:
    """Stage the small files, as a process that was killed would."""
    scratch.mkdir(exist_ok=True)
    with open_staging(source, scratch) as staging:
        staging.bring(list(staging.copy.files)[:2])
        fd = staging.copy.open_part(list(staging.copy.files)[-1])
        os.write(fd, b"half")
        os.close(fd)
    assert not staging.copy.is_complete()
    return staging.copy


def evict_copy(copy: Copy, **options: Any) -> None:
    with opened_home(copy.folder.parent.parent) as home:
        assert home is not None
        evict(home, copy.folder.name, **options)


def names_in(scratch: Path) -> list[str]:
    """Return what lies in this user's folder."""
    folder = scratch / f"feedrate-{os.getuid()}"
    return sorted(os.listdir(folder)) if folder.exists() else []


def find_copy(scratch: Path) -> CopyInfo:
    (copy,) = list_copies(scratch)
    return copy


@contextlib.contextmanager
def held_by_another(copy: Copy, what: str = "lease") -> Iterator[int]:
    """Let another process, whose number is yielded, hold a lease or the writer's lock in the block."""
    told, telling = os.pipe()
    process = os.fork()
    if not process:
        held = copy.lease() if what == "lease" else copy.take_writer()
        os.write(telling, b"!" if held is not None else b"?")
        while True:
            signal.pause()
    os.close(telling)
    try:
        assert os.read(told, 1) == b"!"
        yield process
    finally:
        os.close(told)
        end(process)


def end(process: int) -> None:
    """Kill a process that `held_by_another` made, and wait for its end; harmless when it has ended."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
