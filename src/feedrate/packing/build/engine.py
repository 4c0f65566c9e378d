# SPDX-License-Identifier: Apache-2.0
"""Who runs shard tasks: processes of this machine, Slurm, or a Dask cluster that is already there.

What counts is what the target folder holds: a task has ended when its shard and its index part are there,
so neither a lost job nor a lost message can lose or repeat more than the shard that was being written.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feedrate.errors import FeedrateError, MissingExtra, StorageError
from feedrate.files.atomic import is_temporary
from feedrate.packing.build.listing import Listing
from feedrate.packing.build.plan import ShardTask
from feedrate.packing.build.shard import MapCost, begin_shard, find_done, goes_in_bulk, write_shard
from feedrate.packing.options import Engine
from feedrate.packing.workers import Watch, run_tasks
from feedrate.units import format_count

# A job that ends so often without a shard will not do better the next time.
_MOST_LOSSES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Some tasks that were handed over together; `handle` is what the cluster knows them by."""

    tasks: tuple[ShardTask, ...]
    handle: Any


class Cluster(Protocol):
    """Runs jobs elsewhere. Jobs that are still there when the block ends are cancelled."""

    jobs_at_once: int | None  # None: as many as there are tasks

    def submit(self, groups: Sequence[tuple[ShardTask, ...]]) -> list[Job]: ...

    def wait(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have ended, after a moment at most."""
        ...

    def outcome(self, job: Job) -> MapCost | FeedrateError | str:
        """Return what `write_shards` returned, or words about how the job was lost."""
        ...


def run_shards(
    tasks: Sequence[ShardTask], engine: Engine, *, workers: int | None, watch: Watch, listing: Listing
) -> MapCost:
    """Make all shards, wherever `engine` says; return over how many samples a map ran, and for how long.

    Raises:
        FeedrateError: a shard could not be made; the others that were begun are given up.
    """
    if engine.name == "local" or not tasks:
        done = run_tasks(
            write_shard,
            tasks,
            workers=workers,
            size_bytes=sum(task.source_bytes for task in tasks),
            watch=watch,
            begin=lambda task: begin_shard(task, listing),
            have_threads=lambda: goes_in_bulk(tasks[0]),
        )
        return _add_up(done)
    with _open_cluster(engine, Path(tasks[0].target), workers or 1) as cluster:
        return _run_remote(cluster, tasks, watch)


def _open_cluster(engine: Engine, target: Path, workers: int) -> AbstractContextManager[Cluster]:
    if engine.name == "slurm":
        from feedrate.packing.build.slurm import open_slurm

        return open_slurm(engine, target, workers)
    return open_dask(engine.name, workers)


def _add_up(costs: Iterable[MapCost]) -> MapCost:
    every = list(costs)
    return sum(samples for samples, _ in every), sum((seconds for _, seconds in every), 0.0)


def _run_remote(cluster: Cluster, tasks: Sequence[ShardTask], watch: Watch) -> MapCost:
    count = min(cluster.jobs_at_once or len(tasks), len(tasks))
    running = cluster.submit([tuple(tasks[start::count]) for start in range(count)])
    losses: Counter[int] = Counter()
    costs: list[MapCost] = []
    while running:
        for job in cluster.wait(running):
            running.remove(job)
            left = tuple(task for task in job.tasks if find_done(task) is None)
            outcome = cluster.outcome(job)
            if isinstance(outcome, FeedrateError):
                raise outcome
            if isinstance(outcome, tuple):
                costs.append(outcome)
            if not left:
                continue
            losses[left[0].number] += 1
            if losses[left[0].number] >= _MOST_LOSSES:
                raise FeedrateError(
                    f"{left[0].shard_name} was begun {format_count(_MOST_LOSSES, 'time')} and never "
                    f"finished{f': {outcome}' if isinstance(outcome, str) else ''}",
                    hint="run the same command again to go on",
                )
            running += cluster.submit([left])
        watch(*_measure(tasks))
    return _add_up(costs)


def write_shards(tasks: Sequence[ShardTask], workers: int) -> MapCost | FeedrateError:
    """Make shards, in a job, that are not there yet; returns what went wrong, since not all engines carry
    exceptions as they are."""
    if not os.path.exists(tasks[0].listing):
        return StorageError(
            f"{os.uname().nodename} does not see {tasks[0].target}",
            hint="source and pack must lie where every node finds them under the same path",
        )
    left = [task for task in tasks if find_done(task) is None]
    try:
        return _add_up(run_tasks(write_shard, left, workers=workers, size_bytes=0, watch=lambda *_: None))
    except FeedrateError as error:
        return error


def _measure(tasks: Sequence[ShardTask]) -> tuple[int, int]:
    """Return samples and bytes of what has been made so far, by the sizes of the files in the target."""
    # Of a shard that is whole the half of a lost job may be beside it: the whole one counts.
    made: dict[str, tuple[bool, int]] = {}
    for path in Path(tasks[0].target).iterdir():
        with contextlib.suppress(OSError):
            is_whole = not is_temporary(path.name)
            # `.shard-00003.tar.4711-0123abcd.tmp` grows to be `shard-00003.tar`.
            name = path.name if is_whole else path.name[1:].rsplit(".", 2)[0]
            made[name] = max(made.get(name, (False, 0)), (is_whole, path.stat().st_size))
    shares = [min(1.0, made.get(t.shard_name, (False, 0))[1] / t.expected_bytes) for t in tasks]
    done = [(share * t.samples, share * t.source_bytes) for t, share in zip(tasks, shares, strict=True)]
    samples, size_bytes = map(sum, zip(*done, strict=True))
    return int(samples), int(size_bytes)


_POLL_S = 1.0
_CONNECT_S = 10


@contextlib.contextmanager
def open_dask(address: str, workers: int) -> Iterator[_Dask]:
    """Yield the cluster whose scheduler answers at `dask://HOST:PORT`.

    Raises:
        MissingExtra: distributed is not installed.
        FeedrateError: nobody answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtra(
            "--executor dask needs dask.distributed, which is not installed",
            hint="pip install 'feedrate[dask]'",
        ) from None
    try:
        client = Client(address.replace("dask://", "tcp://"), timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise FeedrateError(
            f"no Dask scheduler answers at {address}",
            hint="start one with 'dask scheduler', and workers with 'dask worker HOST:PORT'",
        ) from error
    with client:
        executor = client.get_executor(pure=False)
        try:
            yield _Dask(executor, workers)
        finally:
            executor.shutdown(wait=False)


class _Dask:
    jobs_at_once: int | None = None

    def __init__(self, executor: Any, workers: int) -> None:
        self._executor, self._workers = executor, workers

    def submit(self, groups: Sequence[tuple[ShardTask, ...]]) -> list[Job]:
        return [Job(tasks, self._executor.submit(write_shards, tasks, self._workers)) for tasks in groups]

    def wait(self, jobs: Sequence[Job]) -> list[Job]:
        from concurrent.futures import FIRST_COMPLETED, wait

        ended, _ = wait([job.handle for job in jobs], timeout=_POLL_S, return_when=FIRST_COMPLETED)
        return [job for job in jobs if job.handle in ended]

    def outcome(self, job: Job) -> MapCost | FeedrateError | str:
        try:
            return job.handle.result()  # type: ignore[no-any-return]
        except Exception as error:  # KilledWorker and its like
            words = str(error).strip().splitlines()
            return f"{type(error).__name__}: {words[0]}" if words else repr(error)
