# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of two nodes on the loopback, for tests: started in a folder, and gone with it. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo", "scancel", "munged")
NODES = 2

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={base}/munge/socket
SlurmctldPort={control}
SlurmctldPidFile={base}/slurmctld.pid
SlurmctldLogFile={base}/slurmctld.log
StateSaveLocation={base}/state
SlurmdPidFile={base}/slurmd-%n.pid
SlurmdLogFile={base}/slurmd-%n.log
SlurmdSpoolDir={base}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ReturnToService=2
KillWait=2
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{second} CPUs=2 RealMemory=500
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=10 State=UP
"""


PRIVATE_TMP = """\
JobContainerType=job_container/tmpfs
PrologFlags=Contain
"""


class ClusterFailed(Exception):
    """It does not start on this machine."""


def why_not() -> str | None:
    """Return why no cluster can be started here; None: one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: slurm-wlm, slurm-client, munge)"
    return None if os.geteuid() == 0 else "starting Slurm needs root"


@contextmanager
def cluster_or_skip(*, private_tmp: bool = False) -> Iterator[dict[str, str]]:
    """Start a cluster in a folder of its own; skip the test, with the reason, where that cannot be done.

    `private_tmp`: every job has a /tmp of its own on every node.
    """
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # Not under pytest's folder: the path of a socket may have no more than 107 letters.
    # What jobs must see cannot lie in /tmp when each has its own.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/var/tmp" if private_tmp else None) as base:
        try:
            with slurm_cluster(Path(base), private_tmp=private_tmp) as environment:
                yield environment
        except ClusterFailed as error:
            pytest.skip(str(error))


@contextmanager
def slurm_cluster(base: Path, *, private_tmp: bool = False) -> Iterator[dict[str, str]]:
    """Start a cluster in `base`, a folder whose path is short; yield the environment of its users."""
    (base / "munge").mkdir(parents=True)
    for name in ("state", *(f"spool-n{number}" for number in range(1, NODES + 1))):
        (base / name).mkdir()
    base.chmod(0o755)
    control, first, second = find_ports()
    text = CONFIGURATION.format(
        host=socket.gethostname().split(".")[0], base=base, control=control, first=first, second=second
    )
    if private_tmp:
        text += PRIVATE_TMP
        (base / "job_container.conf").write_text(f"AutoBasePath=true\nBasePath={base}/tmp\n")
    (base / "slurm.conf").write_text(text)
    is_version_1 = Path("/sys/fs/cgroup/memory").is_dir()
    (base / "cgroup.conf").write_text(
        f"CgroupPlugin=cgroup/{'v1' if is_version_1 else 'v2'}\nCgroupMountpoint=/sys/fs/cgroup\n"
        + ("CgroupAutomount=no\n" if is_version_1 else "IgnoreSystemd=yes\n")
    )
    environment = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}
    try:
        start_munge(base)
        start(["slurmctld", "-c"], base / "slurmctld.log", environment)
        for number in range(1, NODES + 1):
            start(["slurmd", "-N", f"n{number}"], base / f"slurmd-n{number}.log", environment)
        wait_for_nodes(environment)
        yield environment
        subprocess.run(["scancel", "-p", "main"], env=environment, check=False, capture_output=True)
    finally:
        stop_daemons(base)
        unmount_below(base)


def find_ports() -> list[int]:
    """Return a port for the controller and two in a row for the nodes."""
    while True:
        sockets = [socket.socket() for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        control, first = (one.getsockname()[1] for one in sockets)
        with socket.socket() as third:
            try:
                third.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            finally:
                for one in sockets:
                    one.close()
        return [control, first, first + 1]


def start_munge(base: Path) -> None:
    key = base / "munge" / "key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    words = ["munged", "--force", f"--key-file={key}", "--num-threads=1"]
    words += [
        f"--{name}={base}/munge/{file}"
        for name, file in (
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        )
    ]
    start(words, base / "munge" / "log", dict(os.environ))


def start(words: list[str], log: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        last = log.read_text().splitlines()[-1:] if log.exists() else []
        raise ClusterFailed(f"{words[0]} does not start here: {' '.join([done.stderr.strip(), *last])}")


def wait_for_nodes(environment: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
    while True:
        words = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        shown = subprocess.run(words, env=environment, check=False, capture_output=True, text=True).stdout
        if shown.strip() == str(NODES):
            return
        if time.monotonic() > deadline:
            raise ClusterFailed(f"the nodes do not come up here: {shown!r}")
        time.sleep(0.1)


def stop_daemons(base: Path) -> None:
    files = [*base.glob("slurmd-*.pid"), base / "slurmctld.pid", base / "munge" / "pid"]
    pids = [int(file.read_text()) for file in files if file.exists()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            # A slurmd with a job that is about to end ignores the first one.
            if is_daemon(pid):
                os.kill(pid, number)
        deadline = time.monotonic() + 5
        while any(is_daemon(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)


def unmount_below(base: Path) -> None:
    """Unmount what jobs that were killed left: each of them had a /tmp of its own."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((p for p in mounted if p.startswith(f"{base}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def is_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("slurmctld", "slurmd", "munged")
    except OSError:
        return False
