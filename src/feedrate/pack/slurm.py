# SPDX-License-Identifier: Apache-2.0
"""Shards as an array of Slurm jobs, handed over by submitit.

Whether a job lives is asked of squeue, which every cluster has; sacct needs accounting. What submitit keeps
of jobs lies in the target until the pack is finished, since the nodes must see it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedrate.errors import FeedrateError, MissingExtra
from feedrate.pack.engine import Job, write_shards
from feedrate.pack.options import Engine
from feedrate.pack.plan import ShardTask
from feedrate.pack.shard import MapCost
from feedrate.pack.unfinished import JOBS_NAME

_POLL_S = 2.0
_DEFAULT_MINUTES, _DEFAULT_ARRAY = 60, 16


@contextlib.contextmanager
def open_slurm(engine: Engine, target: Path, workers: int) -> Iterator[_Slurm]:
    """Yield the cluster that `sbatch` talks to.

    Raises:
        MissingExtra: submitit is not installed.
        FeedrateError: there is no Slurm here, or it did not take the jobs.
    """
    try:
        import submitit
    except ImportError:
        raise MissingExtra(
            "--executor slurm needs submitit, which is not installed", hint="pip install 'feedrate[slurm]'"
        ) from None
    try:
        executor = submitit.SlurmExecutor(folder=target / JOBS_NAME)
    except RuntimeError:
        raise FeedrateError(
            "there is no Slurm here: 'srun' is not on the PATH",
            hint="run this on a login node of the cluster, or leave out --executor",
        ) from None
    parameters: dict[str, Any] = {
        "job_name": "feedrate-pack",
        "time": engine.minutes or _DEFAULT_MINUTES,
        "cpus_per_task": workers,
        "array_parallelism": engine.array_size or _DEFAULT_ARRAY,
        "partition": engine.partition,
        "mem": None if engine.memory_bytes is None else f"{-(-engine.memory_bytes // 2**20)}M",
    }
    executor.update_parameters(**{name: value for name, value in parameters.items() if value is not None})
    slurm = _Slurm(executor, engine.array_size or _DEFAULT_ARRAY, workers)
    try:
        yield slurm
    finally:
        slurm.cancel()


class _Slurm:
    def __init__(self, executor: Any, jobs_at_once: int, workers: int) -> None:
        self.jobs_at_once: int | None = jobs_at_once
        self._executor, self._workers = executor, workers
        self._living: set[str] = set()

    def submit(self, groups: Sequence[tuple[ShardTask, ...]]) -> list[Job]:
        try:
            handles = self._executor.map_array(write_shards, groups, [self._workers] * len(groups))
        except Exception as error:  # submitit has its own, and subprocess's
            words = str(error).strip().splitlines()
            raise FeedrateError(f"Slurm did not take the jobs: {words[-1] if words else error}") from error
        self._living |= {handle.job_id for handle in handles}
        return [Job(tasks, handle) for tasks, handle in zip(groups, handles, strict=True)]

    def wait(self, jobs: Sequence[Job]) -> list[Job]:
        time.sleep(_POLL_S)
        known = _list_jobs()
        if known is None:
            return []
        ended = [job for job in jobs if _id(job) not in known]
        self._living -= {_id(job) for job in ended}
        return ended

    def outcome(self, job: Job) -> MapCost | FeedrateError | str:
        handle: Any = job.handle
        if not handle.paths.result_pickle.exists():
            return f"Slurm job {handle.job_id} ended without a word; see {handle.paths.stderr}"
        try:
            result: MapCost | FeedrateError = handle.result()
        except Exception as error:  # of any kind: it is what the job died of
            return f"Slurm job {handle.job_id}: {str(error).strip().splitlines()[-1]}"
        return result

    def cancel(self) -> None:
        if self._living:
            subprocess.run(["scancel", *sorted(self._living)], check=False, capture_output=True)


def _id(job: Job) -> str:
    handle: Any = job.handle
    return str(handle.job_id)


def _list_jobs() -> set[str] | None:
    """Return this user's jobs that wait, run or are about to end; None: Slurm does not answer right now."""
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return set(done.stdout.split()) if done.returncode == 0 else None
