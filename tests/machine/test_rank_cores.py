# SPDX-License-Identifier: Apache-2.0
"""How many cores a rank takes for its own, by what launchers set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedrate import Loader, Resize
from feedrate.machine import cpu
from feedrate.machine.cpu import count_local_ranks, count_rank_cores, share_cores
from support.packs import write_images


def in_step(tasks: str, node: str, **more: str) -> dict[str, str]:
    return {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node, **more}


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, 6),
        ({"MPI_LOCALNRANKS": "5"}, 5),
        (in_step("4(x2),3", "0"), 4),
        (in_step("4(x2),3", "1"), 4),
        (in_step("4(x2),3", "2"), 3),
        (in_step("2", "0"), 2),
        (in_step("1(x16)", "15"), 1),
        # torchrun and mpirun, started once on every node by srun
        (in_step("1(x2)", "1", LOCAL_WORLD_SIZE="8"), 8),
        (in_step("1(x2)", "1", OMPI_COMM_WORLD_LOCAL_SIZE="4"), 4),
        # a batch script, whose processes are no tasks
        ({"SLURM_TASKS_PER_NODE": "8", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, 1),
        # nothing that could be a number of ranks
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": "all"}, 1),
        (in_step("4(x2)", "2"), 1),
        (in_step("many", "0"), 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, 1),
    ],
)
def test_the_ranks_of_a_node_are_those_that_its_launcher_names(environ: dict[str, str], ranks: int) -> None:
    assert count_local_ranks(16, environ) == ranks


def test_tasks_that_train_alone_do_not_count_as_ranks() -> None:
    environ = in_step("4", "0", OMPI_COMM_WORLD_LOCAL_SIZE="4", MPI_LOCALNRANKS="4")
    assert count_local_ranks(1, environ) == 1


def test_processes_of_torchrun_count_also_where_loaders_have_ranks_of_their_own() -> None:
    # Two pipelines of four GPUs each: all eight processes load.
    assert count_local_ranks(1, {"LOCAL_WORLD_SIZE": "8"}) == 8


@pytest.mark.parametrize(
    ("own", "of_launcher", "quota", "ranks", "share"),
    [
        pytest.param(128, 128, None, 8, 16, id="they share all cores"),
        pytest.param(16, 128, None, 8, 16, id="each is bound to its own"),
        pytest.param(64, 128, None, 8, 16, id="each is bound to a socket, with three others"),
        pytest.param(4, 128, None, 8, 4, id="each is bound to less than its part"),
        pytest.param(128, 128, 32.0, 8, 4, id="a quota for all"),
        pytest.param(7, 7, None, 2, 3, id="a rest belongs to nobody"),
        pytest.param(2, 2, 1.5, 4, 1, id="more ranks than cores"),
    ],
)
def test_cores_are_divided_unless_each_rank_has_its_own(
    own: int, of_launcher: int, quota: float | None, ranks: int, share: int
) -> None:
    assert share_cores(own, of_launcher, quota, ranks) == share


def have_cores(monkeypatch: pytest.MonkeyPatch, own: int, of_parent: int) -> None:
    """Let this process and the one that started it be bound to so many cores, without a quota."""
    cores = {0: set(range(own)), os.getppid(): set(range(of_parent))}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores[pid], raising=False)
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: None)


def test_ranks_of_torchrun_divide_the_cores_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, own=16, of_parent=16)
    assert count_rank_cores(4, {"LOCAL_WORLD_SIZE": "4"}) == 4


def test_a_rank_that_torchrun_bound_to_a_socket_divides_that_with_the_others_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_cores(monkeypatch, own=8, of_parent=16)
    assert count_rank_cores(4, {"LOCAL_WORLD_SIZE": "4"}) == 4


def test_torchrun_in_a_batch_job_divides_its_own_cores_and_not_those_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_cores(monkeypatch, own=16, of_parent=16)
    environ = {"LOCAL_WORLD_SIZE": "4", "SLURM_CPUS_ON_NODE": "64", "SLURM_TASKS_PER_NODE": "1"}
    assert count_rank_cores(4, environ) == 4


def test_tasks_that_srun_bound_keep_their_cores_also_below_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, own=4, of_parent=4)
    assert count_rank_cores(8, in_step("4(x2)", "1", SLURM_CPUS_ON_NODE="16")) == 4


def test_tasks_that_srun_did_not_bind_divide_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, own=16, of_parent=128)
    assert count_rank_cores(8, in_step("4(x2)", "1", SLURM_CPUS_ON_NODE="16")) == 4


def test_a_launcher_that_cannot_be_seen_is_taken_to_have_the_cores_of_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hide_others(pid: int) -> set[int]:
        if pid:
            raise ProcessLookupError
        return set(range(16))

    monkeypatch.setattr(os, "sched_getaffinity", hide_others, raising=False)
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: None)
    assert count_rank_cores(4, {"LOCAL_WORLD_SIZE": "4"}) == 4


def test_a_loader_decodes_with_the_threads_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = write_images(tmp_path / "pack", count=16, side=16)
    have_cores(monkeypatch, own=12, of_parent=12)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    options = {"image": Resize(8), "output": "numpy", "rank": 0, "world_size": 4}
    with Loader(pack, 4, **options) as loader:
        assert loader.stats().threads == 3
        list(loader)
        assert loader.stats().threads == 3
    with Loader(pack, 4, threads=7, **options) as loader:
        list(loader)
        assert loader.stats().threads == 7


def test_a_process_group_that_appears_later_divides_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("torch.distributed")
    pack = write_images(tmp_path / "pack", count=16, side=16)
    have_cores(monkeypatch, own=12, of_parent=12)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    with Loader(pack, 4, image=Resize(8), output="numpy") as loader:
        assert loader.stats().threads == 12
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
        list(loader)
        assert loader.stats().threads == 6
