# SPDX-License-Identifier: Apache-2.0
"""`feedrate watch` on a GPU: one job alone, a starved one, two that share it; and what watching costs.

Needs torch with CUDA, and nvidia-ml-py: `PYTHONPATH=src python3 benchmarks/watch_gpu.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from feedrate.report.watch import draw_watched
from feedrate.watch.devices import Gpus
from feedrate.watch.results import WatchedJob
from feedrate.watch.sampling import JobSampler

TRAIN = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Photos(Dataset):
    def __len__(self):
        return 10**7
    def __getitem__(self, i):
        end = time.process_time() + float(sys.argv[1]) / 1e3
        while time.process_time() < end:
            pass
        return torch.zeros(4096)

if __name__ == "__main__":
    wide = int(sys.argv[2])
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(4096, wide), linear(wide, wide), linear(wide, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for n, x in enumerate(DataLoader(Photos(), batch_size=64, num_workers=4)):
        for _ in range(int(sys.argv[3])):
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
        if n == 3:
            print("trains", flush=True)
"""
STARVED, BUSY = ("5", "256", "1"), ("0.05", "8192", "20")  # ms per sample, width, steps per batch
GLANCE_S, INTERVAL_S = 0.2, 2.0  # as the live view has them


def start(kind: tuple[str, ...]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", TRAIN, *kind], stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"trains\n":
        raise SystemExit("the training did not start")
    return process


def watch(pid: int, seconds: float) -> tuple[WatchedJob, float]:
    """Watch as the live view does; return the last reading, and the share of a core that it took."""
    gpus = Gpus()
    gpus.refresh()
    sampler = JobSampler(pid, gpus)
    began_s, cpu_s, job = time.monotonic(), time.process_time(), None
    while time.monotonic() - began_s < seconds:
        due_s = time.monotonic() + INTERVAL_S
        while time.monotonic() < due_s:
            time.sleep(GLANCE_S)
            sampler.glance()
            gpus.glance()
        gpus.refresh()
        job = sampler.take()
        if job is None:
            raise SystemExit("the training has ended")
        draw_watched(job, 140)
    assert job is not None
    return job, (time.process_time() - cpu_s) / (time.monotonic() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="to watch each (default: 12)")
    seconds = parser.parse_args().seconds
    for title, kinds in (
        ("a job that keeps the GPU busy", [BUSY]),
        ("a job whose workers are too slow", [STARVED]),
        ("two jobs that share the GPU", [BUSY, BUSY]),
    ):
        jobs = [start(kind) for kind in kinds]
        try:
            job, cost = watch(jobs[0].pid, seconds)
        finally:
            for one in jobs:
                one.kill()
                one.wait()
        print(f"=== {title}; watching took {cost:.2%} of a core")
        for width in (80, 140):
            print(f"--- {width} columns\n{draw_watched(job, width)}", flush=True)


if __name__ == "__main__":
    main()
