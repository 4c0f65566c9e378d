# SPDX-License-Identifier: Apache-2.0
"""Shards made elsewhere: jobs that are lost, jobs that say what is wrong (real clusters: slow/)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedrate import Engine, PackOptions, pack
from feedrate.errors import FeedrateError, MissingExtra, StorageError, UsageError
from feedrate.packing import workers
from feedrate.packing.build import engine
from feedrate.packing.build.engine import Job, write_shards
from feedrate.packing.build.plan import ShardTask
from feedrate.progress import Tick
from support.images import read_tree

SLURM = PackOptions(shard_bytes=10_000, engine=Engine("slurm", array_size=2))


class FakeCluster:
    """Runs a job when it is asked how far it is; `lose` says after how many shards of a job it is lost."""

    def __init__(self, lose: Callable[[int], int | None]) -> None:
        self.jobs_at_once: int | None = 2
        self.lose, self.submitted = lose, 0
        self.made: list[int] = []

    def submit(self, groups: Sequence[tuple[ShardTask, ...]]) -> list[Job]:
        jobs = [Job(tasks, self.submitted + n) for n, tasks in enumerate(groups)]
        self.submitted += len(groups)
        return jobs

    def wait(self, jobs: Sequence[Job]) -> list[Job]:
        assert isinstance(jobs[0].handle, int)
        for task in jobs[0].tasks[: self.lose(jobs[0].handle)]:
            self.made.append(task.number)
            assert write_shards([task], 1) == (0, 0.0)
        return [jobs[0]]

    def outcome(self, job: Job) -> str:
        return f"node of job {job.handle} is gone"


def use(patch: pytest.MonkeyPatch, cluster: FakeCluster) -> None:
    @contextmanager
    def open_cluster(*_: object) -> Iterator[FakeCluster]:
        yield cluster

    patch.setattr(engine, "_open_cluster", open_cluster)


def test_lost_job_costs_what_it_had_not_finished(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(jpeg_folder, tmp_path / "local", PackOptions(shard_bytes=10_000, workers=1))
    cluster = FakeCluster(lambda job: 1 if job == 0 else None)
    use(monkeypatch, cluster)
    result = pack(jpeg_folder, tmp_path / "p", SLURM)
    assert cluster.submitted == 3
    assert sorted(cluster.made) == list(range(result.shards))
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "local")


def test_shard_that_no_job_finishes_is_given_up_by_name(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeCluster(lambda _: 0))
    with pytest.raises(
        FeedrateError, match=r"shard-0000\d\.tar was begun 3 times and never finished: node of"
    ):
        pack(jpeg_folder, tmp_path / "p", SLURM)


def test_progress_is_seen_by_what_lies_in_the_folder(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[Tick] = []
    use(monkeypatch, FakeCluster(lambda _: 1))
    pack(jpeg_folder, tmp_path / "p", SLURM, watch=ticks.append)
    done = [tick.done for tick in ticks if tick.stage == "packing"]
    assert done == sorted(done)
    assert len(set(done)) > 3
    assert done[-1] == 16


def test_job_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    from feedrate.packing.recode import Recode

    gone = str(tmp_path / "gone")
    task = ShardTask(gone, gone, 0, 0, 1, "", 0, Recode(), 1, 1)
    error = write_shards([task], 1)
    assert isinstance(error, StorageError)
    assert str(error).endswith(f"does not see {gone}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "spark"}, "executor must be local, slurm or dask://HOST:PORT, got 'spark'"),
        ({"name": "dask://nowhere"}, "executor must be local, slurm or dask://HOST:PORT"),
        ({"partition": "gpu"}, "--partition is for --executor slurm, not for 'local'"),
        ({"name": "slurm", "minutes": 0}, "--time must be at least 1, got 0"),
    ],
)
def test_senseless_executor_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Engine(**arguments)  # type: ignore[arg-type]


def test_engine_that_is_not_installed_is_named_with_the_command(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(MissingExtra, match="which is not installed") as caught:
        pack(jpeg_folder, tmp_path / "p", PackOptions(engine=Engine("dask://localhost:1")))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pip install 'feedrate[")


def test_machine_without_slurm_is_a_sentence(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FeedrateError, match="there is no Slurm here"):
        pack(jpeg_folder, tmp_path / "p", PackOptions(engine=Engine("slurm")))


def run_on_two_cores(begin: Callable[[int], Callable[[], int]], patch: pytest.MonkeyPatch) -> Iterator[int]:
    patch.setattr(workers, "count_usable_cores", lambda: 2)
    return workers.run_tasks(
        lambda task: begin(task)(), range(4), workers=None, size_bytes=0, watch=lambda *_: None, begin=begin
    )


def test_last_step_that_was_handed_over_is_done_although_the_next_task_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []

    def begin(task: int) -> Callable[[], int]:
        if task == 2:
            raise ValueError("two")
        return lambda: done.append(task) or task

    with pytest.raises(ValueError, match="two"):
        list(run_on_two_cores(begin, monkeypatch))
    assert done == [0, 1]


def test_last_step_that_fails_ends_the_run_and_what_was_begun_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []

    def begin(task: int) -> Callable[[], int]:
        return lambda: 1 // task and (done.append(task) or task)

    with pytest.raises(ZeroDivisionError):
        list(run_on_two_cores(begin, monkeypatch))
    assert done == [1]
