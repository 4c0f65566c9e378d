# SPDX-License-Identifier: Apache-2.0
"""Jobs as `feedrate watch` sees them, made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedrate.watch.results import (
    TRAINER,
    WORKER,
    CoreUse,
    GpuUse,
    MemoryUse,
    Shares,
    StoreUse,
    Verdict,
    WatchedJob,
    WatchedProcess,
)

GB = 10**9


def make_process(
    pid: int,
    role: str = TRAINER,
    *,
    computing: float = 0.0,
    queued: float = 0.0,
    storage: float = 0.0,
    **more: Any,
) -> WatchedProcess:
    shares = Shares(computing, queued, storage, 1.0 - computing - queued - storage)
    facts: dict[str, Any] = {
        "name": "python", "cores": computing, "shares": shares, "doing": shares.doing, "threads": 2,
        "resident_bytes": 10**8, "swap_bytes": 0, "read_bytes_per_s": 0.0, "disk_bytes_per_s": 0.0,
        "written_bytes_per_s": 0.0,
    }  # fmt: skip
    return WatchedProcess(pid=pid, role=role, **{**facts, **more})


def make_workers(count: int, **shares: float) -> tuple[WatchedProcess, ...]:
    return tuple(make_process(100 + number, WORKER, **shares) for number in range(count))


def make_gpu(utilisation: float | None, **more: Any) -> GpuUse:
    gpu = GpuUse(0, "NVIDIA H200", utilisation, 2 * GB, 140 * GB, 600.0, 700.0)
    return replace(gpu, **more)


def make_store(**more: Any) -> StoreUse:
    return replace(StoreUse("vda", "disk", ("/",), 1e6, 0.0, 0.1, None, None), **more)


def make_job(*processes: WatchedProcess, **more: Any) -> WatchedJob:
    """Return a job of 8 cores, of which most are idle, and plenty of memory. `cores`, `memory`: changes."""
    used = sum(one.cores for one in processes)
    cores = CoreUse(16, 8, None, used, 0.0, max(0.0, 8 - used), 0.0, None, None)
    memory = MemoryUse(9 * GB, 64 * GB, 4 * GB, True, 4 * GB, 0, 0, 0.0, 0.0, 0.0)
    facts: dict[str, Any] = {
        "pid": 4242, "user": "alice", "command": ("python", "train.py"), "frameworks": ("PyTorch",),
        "age_s": 100.0, "seconds": 2.0, "processes": processes, "helpers": 0, "threads": (), "gpus": (),
        "free_gpus": (), "cores": replace(cores, **more.pop("cores", {})),
        "memory": replace(memory, **more.pop("memory", {})), "stores": (make_store(),),
        "received_bytes_per_s": 0.0, "sent_bytes_per_s": 0.0, "verdict": Verdict((), "", "", "", ""),
    }  # fmt: skip
    return WatchedJob(**{**facts, **more})
