# SPDX-License-Identifier: Apache-2.0
"""Checksums of plain files: known when they were read, written down whatever ends the process that did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.errors import NotFound
from feedrate.remote.transfer import SMALL_BYTES
from feedrate.scratch.copy import Copy
from feedrate.scratch.eviction import Kept
from feedrate.scratch.staging import StagingOptions, open_staging
from support.scratch_copies import evict_copy, make_files, stage

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scr").mkdir()
    return tmp_path / "scr"


def rot(path: Path) -> None:
    """Change one byte, and neither size nor time of change."""
    info = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


# Ends itself as a power cut would when all files have landed, and their checksums are to be written down.
STAGE_BUT_FOR_CHECKSUMS = """
import os, signal, sys
from feedrate import stage
real, left = os.replace, [1]
def replace(source, target, **words):
    if str(target).endswith("copy.json"):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    real(source, target, **words)
os.replace = replace
stage(sys.argv[1], sys.argv[2])
"""


@pytest.fixture
def unnoted(tmp_path: Path, scratch: Path) -> Copy:
    """A copy of plain files that is complete, and knows no checksums."""
    source = make_files(tmp_path / "set")
    done = subprocess.run([sys.executable, "-c", STAGE_BUT_FOR_CHECKSUMS, source, scratch], check=False)
    assert done.returncode == -signal.SIGKILL
    copy = Copy.open(next(scratch.glob("feedrate-*/set-*")))
    assert copy.is_complete()
    assert {file.crc32c for file in copy.marker.files} == {None}
    return copy


def test_checksums_that_a_killed_stage_did_not_write_down_are_written_by_the_next(
    unnoted: Copy, tmp_path: Path, scratch: Path
) -> None:
    copy = stage(tmp_path / "set", scratch)
    assert copy.folder == unnoted.folder
    assert None not in {file.crc32c for file in copy.marker.files}
    rot(copy.path / "part-0" / "values.bin")
    evict_copy(copy)  # by its checksum the source is good, whatever became of the copy


def test_where_no_checksum_is_known_the_source_is_not_blamed_for_other_bytes(unnoted: Copy) -> None:
    rot(unnoted.path / "part-0" / "values.bin")
    with pytest.raises(Kept, match=r"part-0/values\.bin and its copy differ.* one of the two is damaged"):
        evict_copy(unnoted)


def test_what_landed_before_the_source_failed_has_its_checksum(tmp_path: Path, scratch: Path) -> None:
    source = make_files(tmp_path / "set")
    for name in ("a", "b"):
        (source / name).write_bytes(os.urandom(SMALL_BYTES + 1))
    with open_staging(source, scratch, options=StagingOptions(streams=1)) as staging:
        (source / "part-2" / "values.bin").unlink()
        with pytest.raises(NotFound):
            staging.run(["a", "b"])
    landed = {file.name for file in Copy.open(staging.copy.folder).marker.files if file.crc32c is not None}
    assert landed == {"a", "b"}


def test_who_waited_for_another_process_reads_nothing_again(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_staging(make_files(tmp_path / "set"), scratch) as waiting:
        stage(tmp_path / "set", scratch)
        monkeypatch.setattr("feedrate.scratch.staging.checksum_file", lambda path: pytest.fail(str(path)))
        waiting.run()
    assert None not in {file.crc32c for file in waiting.copy.marker.files}
