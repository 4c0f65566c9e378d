# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of four nodes on loopback, for tests: started in a folder, and gone with it. Needs root."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo", "scancel", "munged")
NODES = 4

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
TaskPlugin=task/{task}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters={resources}
SchedulerParameters=batch_sched_delay=0
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ReturnToService=2
KillWait=2
MessageTimeout=60
BatchStartTimeout=60
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=4 RealMemory=1000
PartitionName=main Nodes={nodes} Default=YES MaxTime=10 State=UP
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
def cluster_or_skip(*, private_tmp: bool = False, memory_limits: bool = False) -> Iterator[dict[str, str]]:
    """Start a cluster in a folder of its own; skip the test, with the reason, where that cannot be done.

    `private_tmp`: every job has a /tmp of its own on every node. `memory_limits`: a job that takes more than
    its --mem is killed.
    """
    import pytest  # benchmarks start clusters too

    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # Not under pytest's folder: the path of a socket may have no more than 107 letters.
    # What jobs must see cannot lie in /tmp when each has its own.
    # The last steps of its jobs may still write there when the daemons are gone.
    place = "/var/tmp" if private_tmp else None
    with tempfile.TemporaryDirectory(prefix="slurm-", dir=place, ignore_cleanup_errors=True) as base:
        try:
            options = {"private_tmp": private_tmp, "memory_limits": memory_limits}
            with slurm_cluster(Path(base), **options) as environment:
                yield environment
        except ClusterFailed as error:
            pytest.skip(str(error))


@contextmanager
def slurm_cluster(
    base: Path, *, private_tmp: bool = False, memory_limits: bool = False
) -> Iterator[dict[str, str]]:
    """Start a cluster in `base`, a folder whose path is short; yield the environment of its users."""
    # Control groups have the names of nodes, and two clusters on a machine must not share any.
    prefix = f"n{os.getpid()}x" if memory_limits else "n"
    nodes = [f"{prefix}{number}" for number in range(1, NODES + 1)]
    (base / "munge").mkdir(parents=True)
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (base / name).mkdir()
    base.chmod(0o755)
    control, first = find_ports()
    text = CONFIGURATION.format(
        host=socket.gethostname().split(".")[0], base=base, nodes=f"{prefix}[1-{NODES}]",
        control=control, first=first, last=first + NODES - 1,
        task="cgroup" if memory_limits else "none",
        resources="CR_Core_Memory" if memory_limits else "CR_Core",
    )  # fmt: skip
    if private_tmp:
        text += PRIVATE_TMP
        (base / "job_container.conf").write_text(f"AutoBasePath=true\nBasePath={base}/tmp\n")
    (base / "slurm.conf").write_text(text)
    is_version_1 = Path("/sys/fs/cgroup/memory").is_dir()
    (base / "cgroup.conf").write_text(
        f"CgroupPlugin=cgroup/{'v1' if is_version_1 else 'v2'}\nCgroupMountpoint=/sys/fs/cgroup\n"
        + ("CgroupAutomount=no\n" if is_version_1 else "IgnoreSystemd=yes\n")
        + ("ConstrainRAMSpace=yes\n" if memory_limits else "")
    )
    environment = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}
    try:
        start_munge(base)
        start(["slurmctld", "-c"], base / "slurmctld.log", environment)
        for node in nodes:
            start(["slurmd", "-N", node], base / f"slurmd-{node}.log", environment)
        wait_for_nodes(environment)
        yield environment
        subprocess.run(["scancel", "-p", "main"], env=environment, check=False, capture_output=True)
    finally:
        stop_daemons(base)
        unmount_below(base)
        if memory_limits:
            remove_groups(nodes)


def submit(environment: dict[str, str], *words: str) -> str:
    """Submit a job by `sbatch` and return its number."""
    done = subprocess.run(
        ["sbatch", "--parsable", *words], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def wait_for_end(environment: dict[str, str], job: str, seconds: float = 300.0) -> list[str]:
    """Return how a job ended, or each job of an array: COMPLETED, FAILED, OUT_OF_MEMORY ..."""
    words = ["scontrol", "--oneliner", "show", "job", job]
    deadline = time.monotonic() + seconds
    while True:
        shown = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
        states = re.findall(r"\bJobState=(\w+)", shown)
        # `sbatch --wait` would look after 2 s, 4 s, 8 s ...
        if states and not {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}.intersection(states):
            return states
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {job} has not ended after {seconds:.0f} s: {shown}")
        time.sleep(0.05)


def find_ports() -> tuple[int, int]:
    """Return a port for the controller, and the first of as many in a row as there are nodes."""
    while True:
        with ExitStack() as stack:
            control, first = (stack.enter_context(socket.socket()) for _ in range(2))
            for one in (control, first):
                one.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                for number in range(1, NODES):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
                return control.getsockname()[1], port


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
    deadline = time.monotonic() + 120
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
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + 5
        while any(is_daemon(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)


def unmount_below(base: Path) -> None:
    """Unmount what jobs that were killed left: each of them had a /tmp of its own."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((p for p in mounted if p.startswith(f"{base}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def remove_groups(nodes: list[str]) -> None:
    """Remove the control groups that slurmd leaves (of version 1; in version 2 they are a service's)."""
    for node in nodes:
        for group in sorted(Path("/sys/fs/cgroup/memory").glob(f"slurm_{node}/**"), reverse=True):
            with suppress(OSError):
                group.rmdir()


def is_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("slurmctld", "slurmd", "munged")
    except OSError:
        return False
