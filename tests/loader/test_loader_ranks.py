# SPDX-License-Identifier: Apache-2.0
"""Which rank a loader takes itself for: by arguments, torch.distributed, RANK and WORLD_SIZE."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import feedrate.jax
from feedrate import Loader
from feedrate.errors import UsageError
from support.packs import write_numbers

N = 97


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("packs") / "numbers", N)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def open_loader(pack: Path, **options) -> Loader:
    return Loader(pack, 5, fields=("number",), shuffle=False, output="numpy", threads=1, **options)


def count_given(loader: Loader) -> int:
    return sum(len(numbers) for (numbers,) in loader)


def begin_group(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)


def say_rank(monkeypatch: pytest.MonkeyPatch, rank: str, world: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)


def test_rank_and_world_size_of_the_environment_are_taken_and_said_once(pack, monkeypatch, caplog):
    say_rank(monkeypatch, "3", "4")
    with caplog.at_level(logging.WARNING, "feedrate"):
        for _ in range(2):
            with open_loader(pack) as loader:
                assert len(loader) == 5
                assert count_given(loader) == 24
    (said,) = caplog.messages
    assert "rank 3 of 4, as RANK and WORLD_SIZE say" in said


def test_a_world_of_one_is_nothing_to_speak_of(pack, monkeypatch, caplog):
    say_rank(monkeypatch, "0", "1")
    with caplog.at_level(logging.WARNING, "feedrate"), open_loader(pack) as loader:
        assert count_given(loader) == N
    assert not caplog.messages


def test_arguments_come_before_a_process_group_and_that_before_the_environment(pack, monkeypatch):
    say_rank(monkeypatch, "5", "8")
    begin_group(monkeypatch, 1, 4)
    with open_loader(pack) as loader:
        assert next(iter(loader))[0].tolist() == [5, 6, 7, 8, 9]
    with open_loader(pack, rank=1, world_size=2) as loader:
        assert len(loader) == 10


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("-1", "4"), ("one", "4"), ("0", "0")])
def test_variables_that_make_no_sense_are_refused(pack, monkeypatch, rank, world):
    say_rank(monkeypatch, rank, world)
    with pytest.raises(UsageError, match=f"RANK='{rank}' and WORLD_SIZE='{world}'"):
        open_loader(pack)


def test_several_tasks_of_slurm_alone_raise_with_the_lines_to_paste(pack, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(UsageError, match="task 1 of 2") as caught:
        open_loader(pack)
    assert 'rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_STEP_NUM_TASKS"])' in str(
        caught.value
    )
    assert "rank=0, world_size=1" in str(caught.value)
    with open_loader(pack, rank=0, world_size=1) as loader:
        assert count_given(loader) == N
    say_rank(monkeypatch, "0", "2")
    with open_loader(pack) as loader:
        assert count_given(loader) == 49


@pytest.mark.parametrize("tasks", ["1", None])
def test_one_task_of_slurm_or_a_batch_script_is_alone(pack, monkeypatch, tasks):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    if tasks:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    with open_loader(pack) as loader:
        assert count_given(loader) == N


def test_a_process_group_that_appears_before_the_first_use_is_taken(pack, monkeypatch):
    with open_loader(pack) as loader:
        begin_group(monkeypatch, 1, 4)
        assert len(loader) == 5
        assert count_given(loader) in (24, 25)


@pytest.mark.parametrize("use", [len, lambda loader: next(iter(loader))])
def test_a_process_group_that_appears_later_with_other_numbers_raises(pack, monkeypatch, use):
    with open_loader(pack) as loader:
        use(loader)
        begin_group(monkeypatch, 1, 4)
        with pytest.raises(
            UsageError, match=r"took itself for rank 0 of 1, and torch\.distributed says rank 1 of 4"
        ):
            iter(loader)


def test_a_process_group_that_contradicts_the_environment_raises(pack, monkeypatch):
    say_rank(monkeypatch, "2", "6")
    with open_loader(pack) as loader:
        begin_group(monkeypatch, 2, 6)
        assert len(loader) == 4
        begin_group(monkeypatch, 1, 6)
        with pytest.raises(UsageError, match="took itself for rank 2 of 6"):
            len(loader)


def test_a_rank_stays_what_it_was_when_the_process_group_is_gone(pack, monkeypatch):
    begin_group(monkeypatch, 1, 4)
    with open_loader(pack) as loader:
        monkeypatch.undo()
        assert count_given(loader) in (24, 25)


def fake_jax(index: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(
        process_index=lambda: index, process_count=lambda: count, device_put=lambda value, _device: value
    )


def test_batches_for_jax_are_those_of_this_process_of_jax(pack, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_jax(3, 4))
    assert sum(len(n) for (n,) in feedrate.jax.batches(pack, batch_size=5, fields=("number",))) == 24
    with open_loader(pack) as loader:
        assert sum(len(n) for (n,) in feedrate.jax.batches(loader)) == 24
    with open_loader(pack, rank=0, world_size=1) as loader:
        assert sum(len(n) for (n,) in feedrate.jax.batches(loader)) == N


def test_a_loader_that_was_used_as_another_rank_is_refused_for_jax(pack, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_jax(3, 4))
    with open_loader(pack) as loader:
        len(loader)
        with pytest.raises(UsageError, match="took itself for rank 0 of 1, and jax says rank 3 of 4"):
            feedrate.jax.batches(loader)


def test_one_process_of_jax_leaves_the_question_to_the_loader(pack, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_jax(0, 1))
    say_rank(monkeypatch, "3", "4")
    assert sum(len(n) for (n,) in feedrate.jax.batches(pack, batch_size=5, fields=("number",))) == 24


def test_the_rank_of_a_process_group_is_said_once_with_the_way_out(pack, monkeypatch, caplog):
    begin_group(monkeypatch, 0, 3)
    with caplog.at_level(logging.WARNING, "feedrate"):
        for _ in range(2):
            with open_loader(pack) as loader:
                assert count_given(loader) == 33
        with open_loader(pack, world_size=1) as loader:
            assert count_given(loader) == N
    (said,) = caplog.messages
    assert "rank 0 of 3, as the process group says" in said
    assert "world_size=1" in said
