# SPDX-License-Identifier: Apache-2.0
"""Stores as they are in the wild: slow by a known amount, hanging, full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import TESTS

pytestmark = pytest.mark.slow

SURROUNDINGS = TESTS / "doctor_corpus" / "surroundings.py"
NOT_ALLOWED = 77

MEASURE = """
import json, os, sys
from dataclasses import asdict
from feedrate.lab.store import measure_store
top = sys.argv[1]
files = [(os.path.join(top, name), os.stat(os.path.join(top, name)).st_size) for name in os.listdir(top)]
import time; time.sleep(4)  # until the kernel believes no name any more
print(json.dumps(asdict(measure_store(top, files))))
"""

# In a mount namespace of its own: a FUSE file system that nobody serves, or a tmpfs of a few MB.
ALONE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 1 << 18, None):
    sys.exit(77)
kind, folder = sys.argv[1], os.fsencode(sys.argv[2])
if kind == "hanging":
    device = os.open("/dev/fuse", os.O_RDWR)
    os.set_inheritable(device, True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    failed = libc.mount(b"dead", folder, b"fuse.dead", 0, options.encode())
else:
    failed = libc.mount(b"small", folder, b"tmpfs", 0, b"size=3m")
if failed:
    sys.exit(77)
from feedrate.cli import main
from feedrate.lab import store
store.call_patiently.__defaults__ = (2.0,)
sys.exit(main(sys.argv[3:]))
"""


def measure_slowly(folder: Path, target: Path) -> dict[str, Any]:
    """What is measured of a folder behind 2 ms for each call and 100 MB/s."""
    words = [
        "--slow",
        str(folder),
        str(target),
        "2",
        "2",
        "100",
        "--",
        sys.executable,
        "-c",
        MEASURE,
        str(target),
    ]
    done = subprocess.run(
        [sys.executable, str(SURROUNDINGS), *words], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == NOT_ALLOWED:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_alone(kind: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, kind, str(folder), *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode == NOT_ALLOWED:
        pytest.skip("mounts are not allowed")
    return done


@pytest.mark.parametrize(("count", "size_bytes"), [(600, 100_000), (1500, 1000), (20, 12_000_000)])
def test_a_store_is_never_faster_than_it_can_be(tmp_path: Path, count: int, size_bytes: int) -> None:
    for name in ("files", "mount"):
        (tmp_path / name).mkdir()
    for number in range(count):
        (tmp_path / "files" / str(number)).write_bytes(bytes(size_bytes))
    found = measure_slowly(tmp_path / "files", tmp_path / "mount")
    # A name and an open at least, two calls for a file; one for a read inside of one. Few files have been
    # asked for their sizes just before, so that their names are known.
    assert found["file_s"]["value"] > (0.0039 if count > 100 else 0.0019)
    assert found["read_s"]["value"] > 0.00199
    assert found["files_per_s"]["value"] < 16 / 0.0039
    if found["total_bytes_per_s"]["origin"] == "measured":
        assert found["total_bytes_per_s"]["value"] < 1.2e8
    assert found["keeps_pages"] is False
    assert found["kind"] == "fuse.slowfs"


def test_a_store_that_hangs_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    done = run_alone("hanging", tmp_path, "bench", "machine", "--quick", "--store", str(tmp_path))
    assert done.returncode == 1
    assert "did not answer for 2 s: the server or the disk behind it hangs" in done.stderr


def test_a_store_that_is_full_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    done = run_alone("small", tmp_path, "bench", "machine", "--quick", "--store", str(tmp_path))
    assert done.returncode == 1
    assert "too little room at" in done.stderr
    assert "3.15 MB free" in done.stderr
