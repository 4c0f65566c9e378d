# SPDX-License-Identifier: Apache-2.0
"""The kernel's threads and signals: faults are told by faulthandler, all else is left to Python's threads."""

from __future__ import annotations

import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.packs import write_images

TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine())
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or TGKILL is None, reason="finds threads, and sends them signals, as Linux does"
)
FAULTS = [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT]
PROGRAM = """
import ctypes, faulthandler, os, resource, sys, threading
from feedrate import Loader, Resize
# Not all threads: it would stumble over the frames of those that run on meanwhile.
faulthandler.enable(all_threads=False)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
loader = Loader(sys.argv[1], 4, image=Resize(8), output="numpy", threads=2, prefetch=2)
batches = iter(loader)
next(batches)
known = {thread.native_id for thread in threading.enumerate()}
# Only the kernel's threads block SIGINT; one that only just begins, or is about to end, blocks all signals.
found = []
for thread in set(map(int, os.listdir("/proc/self/task"))) - known:
    with open(f"/proc/self/task/{thread}/status") as status:
        blocked = next(line.split()[1] for line in status if line.startswith("SigBlk"))
    if int(blocked, 16) & 1 << (2 - 1):
        found.append((bin(int(blocked, 16)).count("1"), blocked, thread))
if not found:
    sys.exit("no thread of the kernel")
_, blocked, thread = min(found)
if sys.argv[2] == "blocked":
    sys.exit(f"blocked: {blocked}")
ctypes.CDLL(None).syscall(int(sys.argv[3]), os.getpid(), thread, int(sys.argv[2]))
threading.Event().wait(20)
"""


def run(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    # More than are made ahead, so that the threads do not end meanwhile.
    pack = write_images(folder / "pack", count=100, side=8)
    command = [sys.executable, "-c", PROGRAM, pack, what, str(TGKILL)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_in_a_thread_of_the_kernel_is_told_by_faulthandler(
    fault: signal.Signals, tmp_path: Path
) -> None:
    ran = run(tmp_path, str(int(fault)))
    assert ran.returncode == -fault, ran.stderr
    assert ran.stderr.startswith("Fatal Python error: ")


def test_the_threads_of_the_kernel_block_all_other_signals(tmp_path: Path) -> None:
    found = re.fullmatch(r"blocked: ([0-9a-f]+)\n", run(tmp_path, "blocked").stderr)
    assert found is not None
    blocked = int(found[1], 16)
    left = {number for number in signal.valid_signals() if not blocked >> (number - 1) & 1}
    assert left == {signal.SIGKILL, signal.SIGSTOP, *FAULTS}
