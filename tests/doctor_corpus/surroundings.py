# SPDX-License-Identifier: Apache-2.0
"""Runs a command on a machine that is worse than this one: slow server, slow disk, little memory, a crowd.

    python surroundings.py [--slow SOURCE TARGET META_MS READ_MS MB_PER_S] [--kept BYTES] [--pages-stay]
                           [--shm BYTES] [--memory BYTES] [--disk FOLDER MB_PER_S] [--crowd PROCESSES]
                           -- COMMAND ...

Mounts live in a mount namespace of their own, limits in control groups of their own: nothing is left
behind. Needs root, except for --crowd. The command's exit code is passed on; 77 says that the machine does
not allow it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from slowfs import LIBC, Slowness, mount

NOT_ALLOWED = 77
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1
MB = 1_000_000
CGROUP = Path("/sys/fs/cgroup")


def main() -> int:
    arguments = parse()
    with ExitStack() as stack:
        try:
            groups = prepare(arguments, stack)
        except OSError as error:
            sys.stderr.write(f"surroundings: {error}\n")
            return NOT_ALLOWED
        process = subprocess.Popen(arguments.command, preexec_fn=joiner(groups))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: process.send_signal(number))
        code = process.wait()
    return code if code >= 0 else 128 - code


def prepare(arguments: argparse.Namespace, stack: ExitStack) -> list[Path]:
    """Make the machine worse; return the control groups that the command has to join."""
    if arguments.slow or arguments.shm:
        check(LIBC.unshare(CLONE_NEWNS), "a mount namespace")
        check(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "a private mount namespace")
    if arguments.slow:
        source, target, *numbers = arguments.slow
        meta_ms, read_ms, rate = map(float, numbers)
        Path(target).mkdir(parents=True, exist_ok=True)
        slowness = Slowness(meta_ms / 1e3, read_ms / 1e3, rate * MB, arguments.kept, arguments.pages_stay)
        mount(Path(source), Path(target), slowness)
    if arguments.shm:
        size = f"size={arguments.shm}".encode()
        check(LIBC.mount(b"shm", b"/dev/shm", b"tmpfs", 0, size), "a small /dev/shm")
    groups = []
    if arguments.memory:
        groups.append(stack.enter_context(make_group("memory", lambda g: limit_memory(g, arguments.memory))))
    if arguments.disk:
        folder, rate = arguments.disk
        limit = int(float(rate) * MB)
        groups.append(stack.enter_context(make_group("blkio", lambda g: limit_reads(g, folder, limit))))
    for _ in range(arguments.crowd):
        stack.enter_context(burn())
    return groups


def check(failed: int, what: str) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), f"{what} is not allowed: {os.strerror(ctypes.get_errno())}")


@contextmanager
def make_group(controller: str, limit: Callable[[Path], None]) -> Iterator[Path]:
    """A control group below the one that this process is in, so that its limits hold as well."""
    group = own_group(controller) / f"feedrate-corpus-{os.getpid()}"
    group.mkdir()
    try:
        limit(group)
        yield group
    finally:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)  # the kernel is still taking the last process out


def own_group(controller: str) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return CGROUP / controller / path.lstrip("/")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return CGROUP / line[3:].lstrip("/")
    raise OSError(f"no control group for {controller}")


def limit_memory(group: Path, size_bytes: int) -> None:
    is_first = (group / "memory.limit_in_bytes").exists()
    (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(size_bytes))


def limit_reads(group: Path, folder: str, bytes_per_s: int) -> None:
    device = os.stat(folder).st_dev
    disk = whole_disk(f"{os.major(device)}:{os.minor(device)}")
    if (group / "blkio.throttle.read_bps_device").exists():
        (group / "blkio.throttle.read_bps_device").write_text(f"{disk} {bytes_per_s}")
    else:
        (group / "io.max").write_text(f"{disk} rbps={bytes_per_s}")


def whole_disk(numbers: str) -> str:
    """A limit belongs to a disk, a file system may be on a partition of it."""
    place = Path(f"/sys/dev/block/{numbers}").resolve()
    if (place / "partition").exists():
        return (place.parent / "dev").read_text().strip()
    return numbers


@contextmanager
def burn() -> Iterator[None]:
    """Somebody else's process that uses a core, as long as this one lives."""
    code = "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def joiner(groups: list[Path]) -> Callable[[], None]:
    def join() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    return join


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slow", nargs=5)
    parser.add_argument("--kept", type=float, default=float("inf"), help="the page cache keeps smaller files")
    parser.add_argument("--pages-stay", action="store_true", help="also when a file is opened again")
    parser.add_argument("--shm", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--disk", nargs=2)
    parser.add_argument("--crowd", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
