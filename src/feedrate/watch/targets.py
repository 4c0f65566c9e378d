# SPDX-License-Identifier: Apache-2.0
"""The processes of a job: the meaning of a process number, the jobs of a user, and the roles in each."""

from __future__ import annotations

import itertools
import os
import pwd
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from feedrate.errors import NotFound, UsageError
from feedrate.machine.command import read_python_call
from feedrate.machine.process import (
    ProcessStat,
    list_processes,
    read_command_line,
    read_environ,
    read_file,
    read_stat,
    read_user,
)
from feedrate.machine.process_tree import Tree
from feedrate.machine.rates import name_user
from feedrate.machine.results import GpuProcess
from feedrate.units import shell_quote
from feedrate.watch.results import HELPER, TRAINER, WORKER, JobSummary

_INIT, _KERNEL_PARENT = 1, 2  # what kthreadd started is no program
# Programs that start jobs and are none: shells, terminals, schedulers, containers, notebooks.
_STARTERS = re.compile(
    r"(ba|da|z|tc|c|k|fi)?sh|login|sshd.*|su|sudo|runuser|tmux.*|screen|systemd.*|init|tini|dumb-init|docker-init"
    r"|conmon|containerd-shim.*|slurmstepd.*|slurm_script|srun|mpirun|mpiexec|pbs_.*|sge_.*|jupyter.*|node|code"
    r"|cron|crond|atd|supervisord|make"
)
_LEAST_CORES, _LEAST_BYTES = 0.02, 100e6  # a process that uses less is not worth a line
WORKER_NAME = "pt_data_worker"  # torch gives it to the workers of a DataLoader
_HELPERS = re.compile(
    r"multiprocessing\.(resource|semaphore)_tracker|(^|/)torch_shm_manager$|^torch\._inductor\b|/torch/_inductor/"
    r"|(^|/)tensorboard(\.main|\.py|\.exe)?$"
)
_STARTED_BY_PYTHON = re.compile(r"multiprocessing\.(spawn|forkserver)")
# By the libraries that a process has mapped; where these may not be read, by a word of its command line.
_LIBRARIES = (
    ("TensorFlow", b"libtensorflow"), ("PyTorch", b"libtorch_cpu"), ("PyTorch", b"libtorch_python"),
    ("JAX", b"/jaxlib/"), ("feedrate.Loader", b"/feedrate/_native"),
)  # fmt: skip
_SCHEDULED = ("SLURM_JOB_ID", "PBS_JOBID")  # variables that name the job of a process
_MOST_LISTED, _LONGEST = 8, 60
_WORDS = (("PyTorch", "torch"), ("TensorFlow", "tensorflow"), ("JAX", "jax"))


@dataclass(frozen=True, slots=True)
class Member:
    """The facts of a process that tell its role."""

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]


def find_target(text: str) -> tuple[int, tuple[str, ...]]:
    """Return the first process of the job that a number means, and a note where that is another process.

    Raises:
        UsageError: it is no number, or a process that cannot be watched.
        NotFound: there is no such process.
    """
    if not text.isdecimal() or int(text) == 0:
        hint = "feedrate watch 4242; 'feedrate watch --user NAME' lists a user's jobs"
        raise UsageError(f"'{text}' is not a process number", hint=hint)
    stat = read_stat(int(text)) if len(text) < 10 else None
    if stat is None:
        raise NotFound(
            f"there is no process {text}, or it may not be seen",
            hint="it has ended, or is on another machine; 'feedrate watch --user NAME' lists a user's jobs",
        )
    if stat.pid == _KERNEL_PARENT or stat.parent == _KERNEL_PARENT:
        raise UsageError(f"process {text} ({stat.name}) is a thread of Linux's kernel, and no job")
    if stat.is_over:
        raise UsageError(
            f"process {text} ({stat.name}) has ended; only its exit code waits for its parent",
            hint=f"its parent is {stat.parent}: feedrate watch {stat.parent}",
        )
    return _climb(stat, text)


def _climb(stat: ProcessStat, text: str) -> tuple[int, tuple[str, ...]]:
    """Go from a thread to its process, and from a worker to the training that started it."""
    status = (read_file(f"/proc/{stat.pid}/status") or b"").split()
    group = int(status[status.index(b"Tgid:") + 1]) if b"Tgid:" in status else stat.pid
    pid = group
    while (found := read_stat(pid)) is not None and (above := read_stat(found.parent)) is not None:
        pair = {s.pid: Member(s.pid, s.parent, s.name, read_command_line(s.pid)) for s in (found, above)}
        # A process that another user started, as a launcher of the system does, is a job of its own.
        if assign_roles(pair)[pid] == TRAINER or read_user(pid) != read_user(above.pid):
            break
        pid = above.pid
    if pid != stat.pid:
        what = "a thread" if pid == group else "a worker"
        return pid, (f"{text} is {what} of process {pid}, which is shown",)
    return pid, ()


def assign_roles(members: Mapping[int, Member]) -> dict[int, str]:
    """Return which processes load data for another, or only help; any other may train.

    A worker is a fork of its parent (the same command line), or was started by Python's multiprocessing.
    """
    return {pid: _find_role(member, members.get(member.parent)) for pid, member in members.items()}


def _find_role(member: Member, parent: Member | None) -> str:
    program = _name_program(member.command)
    if _HELPERS.search(program) or member.name == "torch_shm_manage":
        return HELPER
    if member.name.startswith(WORKER_NAME):
        return WORKER
    is_fork = parent is not None and bool(member.command) and member.command == parent.command
    started = _STARTED_BY_PYTHON.search(program)
    if started is not None:
        # The server that forks workers is none itself, and waits.
        return WORKER if started.group(1) == "spawn" or is_fork else HELPER
    return WORKER if is_fork and read_python_call(member.command) is not None else TRAINER


def _name_program(command: tuple[str, ...]) -> str:
    """Return the program of a command line, and of Python's the script, the module or the code."""
    call = read_python_call(command)
    return (call and call.program) or "".join(command[:1])


def is_spawned(command: tuple[str, ...]) -> bool:
    """Return whether Python's multiprocessing started this process as a program of its own."""
    return _STARTED_BY_PYTHON.search(_name_program(command)) is not None


def promote_ranks(roles: dict[int, str], members: Mapping[int, ProcessStat], trains: Collection[int]) -> None:
    """Call those trainers that Python started as it starts workers, and that have workers, or train.

    `torch.multiprocessing.spawn` starts ranks so. `trains`: processes on a GPU, or that feed nobody.
    """
    above = {stat.parent for pid, stat in members.items() if roles[pid] == WORKER}
    for pid, stat in members.items():
        if roles[pid] == WORKER and not stat.name.startswith(WORKER_NAME) and (pid in above or pid in trains):
            roles[pid] = TRAINER


def find_frameworks(pid: int, command: Iterable[str]) -> tuple[str, ...]:
    """Return the frameworks that a process uses."""
    maps = read_file(f"/proc/{pid}/maps")
    if maps:
        return tuple(dict.fromkeys(name for name, library in _LIBRARIES if library in maps))
    line = " ".join(command).lower()
    return tuple(name for name, word in _WORDS if word in line)


def find_doctor(pid: int) -> int | None:
    """Return the `feedrate doctor` that a process is, or that started it."""
    while (stat := read_stat(pid)) is not None:
        command = read_command_line(pid)
        words = command[: command.index("--")] if "--" in command else command
        if any(os.path.basename(a) == "feedrate" and b == "doctor" for a, b in itertools.pairwise(words)):
            return pid
        pid = stat.parent
    return None


def choose_training(busy: list[JobSummary], user: str) -> tuple[JobSummary, str]:
    """Return the job that is meant where none is named, and why.

    That is one of this session or of this scheduler's job, and else the user's only training: several people
    may work under the same name.

    Raises:
        UsageError: there are several.
        NotFound: there is none.
    """
    here = [job for job in busy if _is_here(job.pid)]
    trainings = [job for job in busy if job.gpus or _has_framework(job.pid)]
    chosen = [job for job in here if job in trainings] or here or trainings
    if len(chosen) == 1:
        return chosen[0], f"{'started from here' if here else 'the only training'} of the jobs of {user}"
    if chosen:
        where = "in this session" if here else f"of {user}"
        raise UsageError(f"{len(chosen)} jobs {where} may be meant", hint=_list_lines(chosen))
    raise NotFound(
        f"no job was started from this session, and no other one of {user} is known to train",
        hint=_list_lines(busy),
    )


def _is_here(pid: int) -> bool:
    """Return whether a process is of this session, which a terminal has, or of this job of a scheduler."""
    stat = read_stat(pid)
    if stat is not None and stat.session == os.getsid(0):
        return True
    return any(own == read_environ(pid, name) for name in _SCHEDULED if (own := os.environ.get(name)))


def _has_framework(root: int) -> bool:
    pids = (root, *Tree(root, ignored={os.getpid()}).look())
    return any(find_frameworks(pid, read_command_line(pid)) for pid in pids)


def _list_lines(jobs: list[JobSummary]) -> str:
    """Return the command that watches each job."""
    lines = [
        f"feedrate watch {job.pid}  # {' '.join(map(shell_quote, job.command))[:_LONGEST]}"
        for job in jobs[:_MOST_LISTED]
    ]
    return "name one:\n" + "\n".join(lines)


def find_user(name: str) -> int:
    """Return the number of a user.

    Raises:
        NotFound: there is none of that name.
    """
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        if name.isdecimal() and int(name) < 2**32:
            return int(name)
    import difflib

    near = difflib.get_close_matches(name, [one.pw_name for one in pwd.getpwall()], n=1)
    hint = f"did you mean '{near[0]}'?" if near else None
    raise NotFound(f"there is no user '{name}' on this machine", hint=hint)


class JobFinder:
    """Finds the jobs of a user; cores are those used since the finder was made.

    A job is a process with all that it started, as far up as processes are that user's, and no shell.
    """

    def __init__(self, user: int, clock_s: float) -> None:
        self._user, self._began_s = user, clock_s
        self._before = {(s.pid, s.start): s.cpu_s for s in self._read()}

    def _read(self) -> list[ProcessStat]:
        mine = (pid for pid in list_processes() if read_user(pid) == self._user and pid != os.getpid())
        return [s for pid in mine if (s := read_stat(pid)) is not None and not s.is_over]

    def find(self, clock_s: float, on_gpus: Iterable[GpuProcess]) -> list[JobSummary]:
        """Return the jobs, those on GPUs first, then those that use the most cores; small ones left out."""
        stats = {s.pid: s for s in self._read()}
        trees: dict[int, list[ProcessStat]] = {}
        for stat in stats.values():
            root = find_root(stat, stats)
            if root is not None:
                trees.setdefault(root, []).append(stat)
        passed_s = max(clock_s - self._began_s, 1e-3)
        jobs = [self._summarise(root, tree, passed_s, list(on_gpus)) for root, tree in trees.items()]
        jobs = [
            job for job in jobs if job.gpus or job.cores >= _LEAST_CORES or job.resident_bytes >= _LEAST_BYTES
        ]
        return sorted(jobs, key=lambda job: (-job.gpu_memory_bytes, -len(job.gpus), -job.cores))

    def _summarise(
        self, root: int, tree: list[ProcessStat], passed_s: float, on_gpus: list[GpuProcess]
    ) -> JobSummary:
        grown = sum(max(0.0, s.cpu_s - self._before.get((s.pid, s.start), 0.0)) for s in tree)
        pids = {s.pid for s in tree}
        held = [one for one in on_gpus if one.pid in pids]
        return JobSummary(
            pid=root,
            user=name_user(self._user) or "",
            command=read_command_line(root),
            cores=grown / passed_s,
            gpus=tuple(sorted({one.gpu for one in held})),
            gpu_memory_bytes=sum(one.memory_bytes or 0 for one in held),
            resident_bytes=sum(s.rss_bytes for s in tree),
        )


def find_root(stat: ProcessStat, stats: Mapping[int, ProcessStat]) -> int | None:
    """Return the first process of the job that a process belongs to; None: it starts jobs and is none."""
    if not _may_be_job(stat):
        return None
    while (above := stats.get(stat.parent)) is not None and _may_be_job(above):
        stat = above
    return stat.pid


def _may_be_job(stat: ProcessStat) -> bool:
    is_system = stat.pid in (_INIT, _KERNEL_PARENT) or stat.parent == _KERNEL_PARENT
    return not is_system and _STARTERS.fullmatch(stat.name) is None
