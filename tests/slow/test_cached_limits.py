# SPDX-License-Identifier: Apache-2.0
"""`cached` where a job ends badly: little memory, and SIGKILL at any moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.cache.persistent import home_of
from support.memory_limits import Ended, run_in_group

pytestmark = pytest.mark.slow

LIMIT_BYTES = 700 << 20
TRIALS = 200

# 120 samples of 8 MB: more than the job may have. They cost nothing to make, so that memory fills quickly.
JOB = """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader
import feedrate

class Large:
    def __len__(self):
        return 120
    def __getitem__(self, index):
        return np.full((1000, 8000), index, np.uint8)

class InDictionary(Large):
    def __init__(self):
        self.kept = {{}}
    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]

def corner(sample):
    assert sample[0, 0] == sample[-1, -1]
    return torch.tensor(int(sample[500, 4000]))

if __name__ == "__main__":
    torch.set_num_threads(1)
    dataset = {dataset}
    loader = DataLoader(
        dataset, 4, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context={method!r}
    )
    for epoch in range(3):
        seen = sorted(n for batch in loader for n in batch.reshape(len(batch), -1)[:, 0].tolist())
        assert seen == list(range(120)), seen
    if hasattr(dataset, "report"):
        print(dataset.report().kept, dataset.report().hits)
"""


def run_limited(program: Path) -> Ended:
    return run_in_group([sys.executable, str(program)], LIMIT_BYTES)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_a_job_with_little_memory_the_cache_fills_what_there_is_and_the_job_lives(
    tmp_path: Path, method: str
) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB.format(dataset="feedrate.cached(Large()).map(corner)", method=method))
    shown = run_limited(program)
    assert shown.how == "done", shown.errors
    kept, hits = map(int, shown.output.split())
    assert 5 < kept < 120
    assert hits >= kept


def test_a_dictionary_in_the_same_job_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB.format(dataset="InDictionary()", method="fork"))
    shown = run_limited(program)
    # One of its processes is. Of a worker torch says so in one of two ways, whichever it sees first.
    is_worker = any(words in shown.errors for words in ("killed by signal", "exited unexpectedly"))
    assert shown.how == "killed" or (shown.how == "failed" and is_worker), shown


# Kills as many jobs as it is told to, each with two processes that fill one cache, and lets one end in peace.
KILLER = """
import os, random, signal, sys, time
import numpy as np, feedrate

class Numbers:
    def __len__(self): return 400
    def __getitem__(self, index): return np.full(9000, index, np.float32), index

def check(sample):
    array, index = sample
    if not (array == index).all():
        os.write(2, b"a wrong sample")
        os._exit(3)
    return index

def fill(scratch, key, epochs, begun=None):
    data = feedrate.cached(Numbers(), ram="4MB", disk=scratch + ":100MB", key=key).map(check)
    if begun is not None:
        os.write(begun, b"x")
    is_parent = os.fork() != 0
    rng = random.Random(os.getpid())
    for epoch in range(epochs):
        order = rng.sample(range(400), 400)
        assert [n for start in range(0, 400, 8) for n in data.__getitems__(order[start:start + 8])] == order
        assert [data[n] for n in order] == order
    return data.report() if is_parent else os._exit(0)

feedrate.cached([0], ram="1MB").close()  # imported here, once
scratch, trials = sys.argv[1], int(sys.argv[2])
rng = random.Random(0)
for trial in range(trials):
    key = str(trial // 4)  # four that go on where the one before was killed, then a new one
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        fill(scratch, key, 1000, said)
    os.close(said)
    os.read(heard, 1)
    os.close(heard)
    time.sleep(rng.uniform(0, 0.12))
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(f"a job ended by itself: {status}")
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it had not come to setsid
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
try:
    while True:  # until nobody of the last job is left: it would still be the one that adds samples
        os.killpg(child, 0)
        time.sleep(0.001)
except ProcessLookupError:
    pass
os.environ["SLURM_JOB_ID"] = "last"
report = fill(scratch, key, 2)
os.wait()
print(report.kept)
"""


def test_a_cache_whose_jobs_are_killed_at_any_moment_never_gives_a_wrong_sample(tmp_path: Path) -> None:
    program, scratch = tmp_path / "kill.py", tmp_path / "scratch"
    program.write_text(KILLER)
    scratch.mkdir()
    shown = subprocess.run(
        [sys.executable, str(program), str(scratch), str(TRIALS)], capture_output=True, text=True, check=False
    )
    assert (shown.returncode, shown.stderr, shown.stdout) == (0, "", "400\n")
    # All of them together keep to the limit, but for places that killed writers had reserved.
    kept = [found / "data" for found in home_of(str(scratch)).iterdir()]
    assert len(kept) > 1
    # One that was killed while it removed a cache may have come as far as its data.
    assert sum(data.stat().st_blocks * 512 for data in kept if data.exists()) < 110_000_000
