# SPDX-License-Identifier: Apache-2.0
"""The kernel's counters: parsed from texts as kernels write them, and read once from this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_machine import write

from feedrate.machine import process
from feedrate.machine.cpu import find_throttled_folder, read_throttling
from feedrate.machine.gpu import describe_gpus
from feedrate.machine.memory import MemoryUse, find_memory_group
from feedrate.machine.process import (
    is_alive,
    is_pending,
    parse_stat,
    read_command_line,
    read_environ,
    read_io,
    read_rollup,
    read_stat,
)
from support.nvml import make_nvml

NFS = """\
device proc mounted on /proc with fstype proc
device server:/export mounted on /home/my data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1000 200 0 0 900 150 3 1
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 100 100 0 20000 900000 5 300 320 0
\t     GETATTR: 50 50 0 8000 12000 1 75 80 0
device other:/x mounted on /x with fstype nfs
\tbytes:\t0 0 0 0 7 0 0 0
"""


def test_nfs_counters_are_summed_per_mount() -> None:
    mounts = process.parse_mountstats(NFS)
    assert set(mounts) == {"/home/my data", "/x"}
    home = mounts["/home/my data"]
    assert (home.operations, home.read_bytes, home.written_bytes) == (151, 900, 150)
    assert home.round_trip_s == pytest.approx(0.375)
    assert mounts["/x"].read_bytes == 7


def test_core_times_tell_busy_idle_waiting_and_stolen_apart() -> None:
    text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 100 100 500 50 0 50 25 0 0\ncpu7 1 0 0 9\nintr 12 3\n"
    cores = process.parse_core_times(text)
    assert set(cores) == {0, 7}
    assert cores[0] == process.CoreTimes(3.5, 5.0, 0.5, 0.25)


def test_pressure_is_read_or_unknown() -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n"
    assert process.parse_pressure(text) == 2.5
    assert process.parse_pressure("") is None


def test_disks_count_without_loops_and_ram_disks() -> None:
    text = " 8 0 sda 10 0 2000 5 20 0 4000 9 0 1500 14\n 7 0 loop0 1 0 8 0 0 0 0 0 0 0 0\n 1 0 ram0 1 0 8 0\n"
    disk = process.DiskCounters(1_024_000, 2_048_000, 1.5)
    assert process.parse_diskstats(text) == {"sda": disk}


def test_the_loopback_is_no_network() -> None:
    lines = [
        "Inter-|",
        " face |",
        "  lo: 5 1 0 0 0 0 0 0 5 1",
        "eth0:100 1 0 0 0 0 0 0 30 1",
        "ib0: 7 1 0 0 0 0 0 0 2 1",
    ]
    assert process.parse_network("\n".join(lines)) == (107, 32)


def test_this_machine_has_counters() -> None:
    assert process.read_core_times()[min(os.sched_getaffinity(0))].busy_s > 0
    assert process.read_memory_info()["MemTotal"] > 1_000_000
    assert process.read_vmstat()["pgmajfault"] >= 0
    assert process.read_network() >= (0, 0)
    assert isinstance(process.read_disks(), dict)


def test_a_process_name_with_blanks_and_brackets_is_no_trouble() -> None:
    fields = " ".join(str(n) for n in range(5, 60))
    stat = parse_stat(f"42 (a) b (c) S 1 {fields}".encode())
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.parent) == (42, "a) b (c", "S", 1)
    assert parse_stat(b"42 (short) S 1") is None


def test_this_process_can_be_read() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.parent == os.getppid()
    assert is_alive(stat.pid, stat.start)
    assert not is_alive(stat.pid, stat.start + 1)
    assert read_environ(os.getpid(), "PATH") is not None
    assert read_environ(os.getpid(), "NO_SUCH_VARIABLE") is None
    assert read_command_line(os.getpid())
    io, rollup = read_io(os.getpid()), read_rollup(os.getpid())
    assert io is not None
    assert io["rchar"] > 0
    assert rollup is not None
    assert rollup[0] >= rollup[1] > 1_000_000


def test_a_signal_that_has_not_arrived_is_seen_as_pending() -> None:
    code = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "print('blocked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_pending(process.pid, signal.SIGUSR1)
        process.send_signal(signal.SIGUSR1)
        assert is_pending(process.pid, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("group", "files", "used"),
    [
        (
            "0::/job\n",
            {
                "job/memory.max": "1000\n",
                "job/memory.current": "700\n",
                "job/memory.stat": "anon 300\nfile 400\nfile_mapped 9\nshmem 100\n",
            },
            MemoryUse(700, 1000, 300),
        ),
        (
            "4:memory:/job\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": "2000\n",
                "memory/job/memory.usage_in_bytes": "900\n",
                "memory/job/memory.stat": "cache 1\ntotal_cache 500\ntotal_shmem 0\n",
            },
            MemoryUse(900, 2000, 500),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_memory_inside_a_group_is_told_apart_from_its_page_cache(
    tmp_path: Path, group: str, files: dict[str, str], used: MemoryUse
) -> None:
    proc = write(tmp_path / "cgroup", group)
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    found = find_memory_group(proc, tmp_path / "root")
    assert found is not None
    assert found.read() == used


def test_throttling_is_counted_where_a_quota_stands(tmp_path: Path) -> None:
    proc = write(tmp_path / "cgroup", "0::/job/leaf\n")
    write(tmp_path / "root/job/leaf/cpu.max", "max 100000\n")
    write(tmp_path / "root/job/leaf/cpu.stat", "nr_throttled 0\nthrottled_usec 0\n")
    assert find_throttled_folder(proc, tmp_path / "root") is None
    write(tmp_path / "root/job/cpu.max", "50000 100000\n")
    write(tmp_path / "root/job/cpu.stat", "usage_usec 5\nnr_throttled 12\nthrottled_usec 3500000\n")
    folder = find_throttled_folder(proc, tmp_path / "root")
    assert folder == tmp_path / "root/job"
    throttling = read_throttling(folder)
    assert throttling is not None
    assert (throttling.times, throttling.seconds) == (12, 3.5)


def test_a_gpu_that_does_not_tell_everything_is_described_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = make_nvml(nvmlDeviceGetName=b"Fast GPU", nvmlDeviceGetPowerUsage=250_000)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (gpu,) = describe_gpus()
    assert (gpu.name, gpu.power_w, gpu.utilisation, gpu.memory_bytes) == ("Fast GPU", 250.0, None, None)


def test_utilisation_is_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, memory = SimpleNamespace(gpu=87), SimpleNamespace(used=5, total=10)
    nvml = make_nvml(nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetMemoryInfo=memory)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (gpu,) = describe_gpus()
    assert (gpu.utilisation, gpu.memory_used_bytes, gpu.memory_bytes) == (0.87, 5, 10)


def test_no_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert describe_gpus() == ()
