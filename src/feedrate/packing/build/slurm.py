# SPDX-License-Identifier: Apache-2.0
"""Shards as an array of Slurm jobs.

Whether a job lives is asked of squeue, which every cluster has; sacct needs accounting. Tasks go to the nodes
inside the job script, which Slurm carries; results come back as JSON in a folder of the target that only its
owner can enter. So nothing that another user could put into the target is ever run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedrate import errors
from feedrate.errors import FeedrateError
from feedrate.files.atomic import explain_write_error
from feedrate.format.manifest import dump_field, load_field
from feedrate.machine.isolated import isolated_command
from feedrate.packing.build.engine import Job, write_shards
from feedrate.packing.build.plan import ShardTask
from feedrate.packing.build.shard import MapCost
from feedrate.packing.build.unfinished import JOBS_NAME
from feedrate.packing.mapping import Map
from feedrate.packing.options import Engine
from feedrate.packing.recode import Recode

_POLL_S = 2.0
_DEFAULT_MINUTES, _DEFAULT_ARRAY = 60, 16
# What tells the tasks of one pack apart; all else is said once.
_VARYING = ("number", "first", "last", "source_bytes", "expected_bytes")
_KINDS = (
    "AlreadyExists", "MissingExtra", "NotFound", "PackError", "SourceError", "StorageError", "UsageError",
)  # fmt: skip
_MOST_RESULT_BYTES = 2**20


@contextlib.contextmanager
def open_slurm(engine: Engine, target: Path, workers: int) -> Iterator[_Slurm]:
    """Yield the cluster that `sbatch` talks to.

    Raises:
        FeedrateError: there is no Slurm here.
    """
    if shutil.which("sbatch") is None:
        raise FeedrateError(
            "there is no Slurm here: 'sbatch' is not on the PATH",
            hint="run this on a login node of the cluster, or leave out --executor",
        )
    slurm = _Slurm(engine, target / JOBS_NAME, workers)
    try:
        yield slurm
    finally:
        slurm.cancel()


class _Slurm:
    def __init__(self, engine: Engine, folder: Path, workers: int) -> None:
        self.jobs_at_once: int | None = engine.array_size or _DEFAULT_ARRAY
        self._folder, self._workers = folder, workers
        self._living: set[str] = set()
        options = {
            "job-name": "feedrate-pack",
            "nodes": 1,
            "ntasks": 1,
            "cpus-per-task": workers,
            "time": engine.minutes or _DEFAULT_MINUTES,
            "partition": engine.partition,
            "mem": None if engine.memory_bytes is None else f"{-(-engine.memory_bytes // 2**20)}M",
            "output": f"{folder}/".replace("%", "%%") + "%A_%a.log",
            "open-mode": "append",
        }
        self._options = [f"--{name}={value}" for name, value in options.items() if value is not None]

    def submit(self, groups: Sequence[tuple[ShardTask, ...]]) -> list[Job]:
        try:
            self._folder.mkdir(0o700, exist_ok=True)
        except OSError as error:
            raise explain_write_error(error, self._folder) from error
        _check_folder(self._folder)
        array = f"--array=0-{len(groups) - 1}%{self.jobs_at_once}"
        tasks = dump_tasks(groups, self._workers)
        command = shlex.join(isolated_command("feedrate.packing.build.slurm:run_job"))
        script = f"#!/bin/bash\nexec {command} <<'TASKS'\n{tasks}\nTASKS\n"
        words = ["sbatch", "--parsable", array, *self._options]
        done = subprocess.run(words, input=script, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            raise FeedrateError(f"Slurm did not take the jobs: {words[-1] if words else done.returncode}")
        number = done.stdout.strip().partition(";")[0]
        jobs = [Job(tasks, f"{number}_{place}") for place, tasks in enumerate(groups)]
        self._living |= {job.handle for job in jobs}
        return jobs

    def wait(self, jobs: Sequence[Job]) -> list[Job]:
        time.sleep(_POLL_S)
        known = _list_jobs()
        if known is None:
            return []
        ended = [job for job in jobs if job.handle not in known]
        self._living -= {job.handle for job in ended}
        return ended

    def outcome(self, job: Job) -> MapCost | FeedrateError | str:
        with _open_folder(self._folder) as folder_fd:
            try:
                with open(_open_in(folder_fd, f"{job.handle}.json"), "rb") as file:
                    data = file.read(_MOST_RESULT_BYTES)
            except OSError:
                return f"Slurm job {job.handle} ended without a word; see {self._folder}/{job.handle}.log"
        try:
            return _load_result(json.loads(data))
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"Slurm job {job.handle} wrote a result that cannot be read"

    def cancel(self) -> None:
        if self._living:
            subprocess.run(["scancel", *sorted(self._living)], check=False, capture_output=True)


def run_job() -> None:
    """Do the tasks that the job script holds, on a node."""
    task_id = os.environ["SLURM_ARRAY_TASK_ID"]
    name = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task_id}.json"
    groups, workers = load_tasks(sys.stdin.read())
    tasks = groups[int(task_id)]
    _check_folder(Path(tasks[0].target) / JOBS_NAME)
    try:
        outcome = write_shards(tasks, workers)
    except Exception as error:
        _write_result(tasks[0].target, name, {"lost": f"{type(error).__name__}: {error}"})
        raise
    told: dict[str, Any]
    if isinstance(outcome, FeedrateError):
        told = {"error": type(outcome).__name__, "message": str(outcome), "hint": outcome.hint}
    else:
        told = {"samples": outcome[0], "seconds": outcome[1]}
    _write_result(tasks[0].target, name, told)


def dump_tasks(groups: Sequence[Sequence[ShardTask]], workers: int) -> str:
    """Return the tasks of one pack as one line of JSON."""
    task = groups[0][0]
    common = {
        **{name: value for name, value in task._asdict().items() if name not in _VARYING},
        "recode": dataclasses.asdict(task.recode),
        "map": None if task.map is None else task.map._replace(function=None),
        "made": [(field.name, dump_field(field)) for field in task.made],
    }
    varying = [[[getattr(task, name) for name in _VARYING] for task in tasks] for tasks in groups]
    return json.dumps({"workers": workers, "common": common, "tasks": varying})


def load_tasks(text: str) -> tuple[list[tuple[ShardTask, ...]], int]:
    """Return what `dump_tasks` was given."""
    document = json.loads(text)
    common = document["common"]
    common["recode"] = Recode(**common["recode"])
    if common["map"] is not None:
        found = Map(*common["map"])
        modules = None if found.modules is None else tuple((name, digest) for name, digest in found.modules)
        common["map"] = found._replace(modules=modules)
    common["made"] = tuple(load_field(name, field) for name, field in common["made"])
    groups = [
        tuple(ShardTask(**common, **dict(zip(_VARYING, task, strict=True))) for task in tasks)
        for tasks in document["tasks"]
    ]
    return groups, document["workers"]


def _load_result(document: dict[str, Any]) -> MapCost | FeedrateError | str:
    if "lost" in document:
        return f"a Slurm job ended with {document['lost']}"
    if "error" not in document:
        return int(document["samples"]), float(document["seconds"])
    kind = getattr(errors, document["error"]) if document["error"] in _KINDS else FeedrateError
    hint = document["hint"]
    error: FeedrateError = kind(str(document["message"]), hint=None if hint is None else str(hint))
    return error


def _write_result(target: str, name: str, document: dict[str, Any]) -> None:
    with _open_folder(Path(target) / JOBS_NAME) as folder_fd:
        with open(_open_in(folder_fd, f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            json.dump(document, file)
        os.replace(f".{name}", name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)


def _open_in(folder_fd: int, name: str, flags: int = os.O_RDONLY) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of the folder for jobs, which no other user can look or write into.

    Raises:
        FeedrateError: it is a link, or another user's.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _not_private(folder) from error
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise _not_private(folder)
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o700)  # an earlier version made it as the user's mask says
        if os.fstat(fd).st_mode & 0o022:
            raise _not_private(folder)
        yield fd
    finally:
        os.close(fd)


def _check_folder(folder: Path) -> None:
    with _open_folder(folder):
        pass


def _not_private(folder: Path) -> FeedrateError:
    return FeedrateError(
        f"{folder} is not a folder of yours alone, so results of jobs that lie there are not believed",
        hint="look at who put it there, and delete it; or pack to another folder",
    )


def _list_jobs() -> set[str] | None:
    """Return this user's jobs that wait, run or are about to end; None: Slurm does not answer right now."""
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return set(done.stdout.split()) if done.returncode == 0 else None
