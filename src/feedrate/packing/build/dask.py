# SPDX-License-Identifier: Apache-2.0
"""Shards as tasks of a Dask cluster that is already there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

from feedrate.errors import FeedrateError, MissingExtra
from feedrate.packing.build.engine import Job, write_shards
from feedrate.packing.build.plan import ShardTask
from feedrate.packing.build.shard import MapCost

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
        ended, _ = wait([_future(job) for job in jobs], timeout=_POLL_S, return_when=FIRST_COMPLETED)
        return [job for job in jobs if _future(job) in ended]

    def outcome(self, job: Job) -> MapCost | FeedrateError | str:
        try:
            return _future(job).result()
        except Exception as error:  # KilledWorker and its like
            return (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error) else repr(error)
            )


def _future(job: Job) -> Future[MapCost | FeedrateError]:
    return cast("Future[MapCost | FeedrateError]", job.handle)
