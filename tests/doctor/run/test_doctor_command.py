# SPDX-License-Identifier: Apache-2.0
"""Commands that cannot be run, and runs in which there was nothing to examine: a sentence each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.examine import judge_run
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.no_result import check_seen, describe_end
from feedrate.doctor.options import LEAST_STEPS, DoctorOptions
from feedrate.doctor.run import standstill as standstill_rules
from feedrate.doctor.run.launch import Observed
from feedrate.doctor.run.standstill import Standstill
from feedrate.errors import DoctorError, FeedrateError, NotFound, UsageError
from feedrate.hooking.launch import needs_shared_folder
from feedrate.machine.command import PythonCall, check_command, read_python_call
from support.doctor_runs import MS, FakeLoop, FakeProcess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "notes").write_text("x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "nothing to run", "feedrate doctor -- python train.py ..."),
        (["pyton3", "train.py"], "no program 'pyton3'", "did you mean 'python3'?"),
        (
            ["train.py", "--lr", "1"],
            "no program 'train.py'",
            "is a script: feedrate doctor -- python train.py --lr 1",
        ),
        (["./notes"], "no program './notes'", "./notes is a file, but not one that can be run"),
        (["."], "no program '.'", ". is a folder"),
        (["./trian.py"], "no program './trian.py'", "holds 'train.py'. Did you mean that?"),
        (["python3", "trian.py"], "no script at trian.py", "holds 'train.py'. Did you mean that?"),
        (["python3", "-u", "-W", "error", "gone.py"], "no script at gone.py", None),
        (["sbatch", "job.sh"], "sbatch only queues a job", "before the training command"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_command_that_cannot_run_is_refused_with_what_was_meant(
    words: list[str], message: str, hint: str | None
) -> None:
    with pytest.raises((NotFound, UsageError)) as caught:
        check_command(words, "feedrate doctor")
    assert message in str(caught.value)
    assert caught.value.hint is None if hint is None else hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "train.py"],
        ["python3", "-c", "gone.py"],
        ["python3", "-m", "gone"],
        ["python3", "-"],
        ["python3"],
        ["true", "gone.py"],
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_command_that_may_run_is_let_through(words: list[str]) -> None:
    check_command(words, "feedrate doctor")


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["python", "-uB", "x.py", "-c"], PythonCall("uB", "x.py")),
        (["/usr/bin/python3.11", "-X", "dev", "-Werror", "x.py"], PythonCall("", "x.py")),
        (["python", "-Ic", "code", "x.py"], PythonCall("I", None)),
        (["python", "-Im", "pkg"], PythonCall("I", None)),
        (["python", "-uX", "dev", "x.py"], PythonCall("u", "x.py")),
        (["python", "--check-hash-based-pycs", "never", "x.py"], PythonCall("", "x.py")),
        (["pythonic", "x.py"], None),
        (["torchrun", "x.py"], None),
    ],
)
def test_how_a_command_calls_python_is_read_as_python_does(words: list[str], call: PythonCall | None) -> None:
    assert read_python_call(words) == call


def test_other_nodes_and_containers_need_a_folder_that_they_see() -> None:
    assert needs_shared_folder(["/usr/bin/srun", "python"], {})
    assert needs_shared_folder(["apptainer", "exec", "image.sif", "python"], {})
    assert needs_shared_folder(["python"], {"SLURM_JOB_NUM_NODES": "2"})
    assert not needs_shared_folder(["python"], {"SLURM_JOB_NUM_NODES": "1"})
    assert not needs_shared_folder(["torchrun"], {})


def observe(run: Path, command: str = "python train.py", **more: Any) -> Observed:
    known: dict[str, Any] = {
        "exit_code": 0, "signal": None, "seconds": 1.0, "started_ns": 0, "interrupted": False,
        "ended_by_doctor": False,
    }  # fmt: skip
    return Observed(command=tuple(command.split()), run_folder=run, **{**known, **more})


def write_facts(run: Path, *facts: Mapping[str, Any]) -> None:
    (run / "5-1.facts").write_text("".join(json.dumps({"t_ns": 1, **fact}) + "\n" for fact in facts))


PROCESS, TORCH, LOADER, BATCH = ({"kind": kind} for kind in ("process", "torch", "loader", "batch"))
CRASH = {"kind": "end", "how": "exception", "exit": 1, "error": "KeyError: 'root'\nmore"}


@pytest.mark.parametrize(
    ("facts", "more", "message", "exit_code"),
    [
        ([PROCESS], {}, "the command never imported torch", 1),
        ([PROCESS, TORCH], {}, "the command never made a DataLoader or feedrate.Loader", 1),
        ([PROCESS, TORCH, LOADER], {}, "made a loader, but never took a batch", 1),
        (
            [PROCESS, TORCH, CRASH], {"exit_code": 1},
            "the command ended with exit code 1 before its first batch: KeyError: 'root'", 1,
        ),
        ([PROCESS], {"exit_code": 7}, "the command ended with exit code 7 before its first batch", 7),
        (
            [PROCESS, LOADER], {"exit_code": 137, "signal": 9},
            "the command was ended by SIGKILL (out of memory?) before its first batch", 137,
        ),
        (
            [PROCESS], {"exit_code": 130, "signal": 2, "interrupted": True},
            "interrupted before the first batch", 130,
        ),
    ],
)  # fmt: skip
def test_a_run_without_a_batch_is_explained_and_keeps_the_exit_code(
    tmp_path: Path, facts: list[Mapping[str, Any]], more: dict[str, Any], message: str, exit_code: int
) -> None:
    write_facts(tmp_path, *facts)
    with pytest.raises(DoctorError) as caught:
        check_seen(observe(tmp_path, **more))
    assert message in str(caught.value)
    assert "more" not in str(caught.value)
    assert caught.value.exit_code == exit_code


def train_alone(run: Path, *, looked_at: str = "", **end: Any) -> DoctorError:
    """Return what is said of ten optimizer steps of 10 ms whose data came from nowhere that can be seen."""
    process = FakeProcess(5)
    process.fact("torch")
    process.fact("no-loader", optimizer_steps=5, step_s=0.02)
    for step in range(10):
        start = step * 10 * MS
        process.record(layout.FORWARD, "", start + 5 * MS, 2 * MS)
        process.record(layout.BACKWARD, "", start + 7 * MS, 2 * MS)
        process.record(layout.OPTIMIZER, "SGD", start + 9 * MS, 1 * MS)
        if looked_at:
            process.record(layout.STACK, looked_at, start + 2 * MS, 0, a=layout.ON_CPU | layout.UNASKED)
    process.fact("no-loader", optimizer_steps=1200, step_s=0.01)
    process.write(run)
    with pytest.raises(DoctorError) as caught:
        check_seen(observe(run, **end))
    return caught.value


def test_of_a_training_without_a_loader_is_told_what_could_be_seen(tmp_path: Path) -> None:
    error = train_alone(tmp_path)
    assert str(error).startswith(
        "the command made 1,200 optimizer steps, 10.0 ms each, and asked no DataLoader or feedrate.Loader "
        "for a batch: forward 20%, backward 20%, optimizer 10%, all else 50%"
    )
    assert error.exit_code == 1


def test_a_training_without_a_loader_that_was_interrupted_is_told_of_all_the_same(tmp_path: Path) -> None:
    error = train_alone(tmp_path, exit_code=130, signal=2, interrupted=True)
    assert str(error).startswith("the command made 1,200 optimizer steps")
    assert error.exit_code == 130


def test_a_training_without_a_loader_is_told_so_while_it_runs_once(tmp_path: Path) -> None:
    said: list[str] = []
    standstill = Standstill(tmp_path, DoctorOptions(), is_shared=False, watch=said.append)
    standstill.look()
    assert said == []
    write_facts(tmp_path, PROCESS, TORCH, {"kind": "no-loader", "optimizer_steps": 5, "step_s": 0.012})
    for _ in range(2):
        standstill._asked_s = 0.0
        standstill.look()
    assert said == [
        "5 optimizer steps of 12.0 ms, and no DataLoader or feedrate.Loader so far: how it gets its data "
        "cannot be observed, what it does with them can"
    ]


def test_nothing_is_said_of_a_run_whose_loader_is_known(tmp_path: Path) -> None:
    said: list[str] = []
    standstill = Standstill(tmp_path, DoctorOptions(), is_shared=False, watch=said.append)
    write_facts(tmp_path, PROCESS, TORCH, LOADER, BATCH)
    standstill.look()
    assert said == []


@pytest.mark.parametrize(
    ("options", "more_facts", "is_ended"),
    [
        (DoctorOptions(seconds=30), (), True),
        (DoctorOptions(seconds=30, passive=True), (), False),
        (DoctorOptions(seconds=30), (LOADER,), False),
    ],
    ids=["after its seconds", "passive", "a loader came later"],
)
def test_a_training_without_a_loader_is_ended_after_the_seconds_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: DoctorOptions, more_facts: Any, is_ended: bool
) -> None:
    now, said = [1000.0], list[str]()
    monkeypatch.setattr(standstill_rules.time, "monotonic", lambda: now[0])
    standstill = Standstill(tmp_path, options, is_shared=False, watch=said.append)
    write_facts(tmp_path, PROCESS, TORCH, {"kind": "no-loader", "optimizer_steps": 5, "step_s": 0.012})
    ended = []
    for passed_s in (3, 27, 4):
        now[0] += passed_s
        ended.append(standstill.look())
        write_facts(
            tmp_path,
            PROCESS,
            TORCH,
            {"kind": "no-loader", "optimizer_steps": 9, "step_s": 0.012},
            *more_facts,
        )
    assert ended == [False, False, is_ended]
    assert (standstill.reason is not None) == is_ended
    assert not is_ended or said[-1].endswith("it is ended (--seconds)")


def test_of_a_training_without_a_loader_its_hottest_line_is_named(tmp_path: Path) -> None:
    error = train_alone(tmp_path, looked_at="/home/ada/train.py:17@4 make_batch;/home/ada/train.py:40 main")
    assert "100% of the looks at it are at /home/ada/train.py:17 (make_batch)" in str(error)


TENSORFLOW = {"kind": "framework", "module": "tensorflow", "version": "2.20.0"}


def write_readings(run: Path, *, cores: float | None, gpu: float | None, others: float | None = 0.0) -> None:
    """What the sampler writes: ten seconds of a run that uses so many cores and so much of a GPU."""
    gpus = [{"name": "H200", "utilisation": gpu}] if gpu is not None else []
    readings = [
        {
            "t_ns": second * 10**9, "passed_s": 1.0, "processes": [{"pid": 5, "start": 1}], "gpus": gpus,
            "cpu": {"ours": cores, "others": others}, "disks": {"sda": {"read_per_s": 2e8, "busy": 0.4}},
            "network": {"received_per_s": 0.0},
        }
        for second in range(10)
    ]  # fmt: skip
    (run / "machine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in readings))


def train_unseen(run: Path, *facts: Mapping[str, Any], **end: Any) -> DoctorError:
    write_facts(run, PROCESS, *(facts or (TENSORFLOW,)))
    with pytest.raises(DoctorError) as caught:
        check_seen(observe(run, seconds=10.0, **end))
    return caught.value


def test_of_another_framework_is_told_what_was_seen_from_outside_and_what_was_not(tmp_path: Path) -> None:
    write_readings(tmp_path, cores=0.5, gpu=0.31)
    error = train_unseen(tmp_path)
    assert str(error).startswith(
        "the command uses TensorFlow 2.20.0, and asked no DataLoader or feedrate.Loader for a batch: its "
        "steps, what they wait for and what a sample costs cannot be seen; from outside, in 10.0 s: it used "
        "0.5 of "
    )
    assert "disks gave 200 MB/s (the busiest 40% of the time)" in str(error)
    assert "GPU 0 was 31% busy" in str(error)
    assert str(error.hint).startswith("the GPU is idle for much of the time and neither cores nor disks are")
    assert "feedrate.tensorflow.dataset" in str(error.hint)
    assert error.exit_code == 1


@pytest.mark.parametrize(
    ("cores", "gpu", "hint"),
    [
        (0.5, 0.95, "the GPU is busy, so data is hardly what it waits for"),
        (1e4, 0.31, "the GPU is idle for much of the time and all cores are busy"),
        (1e4, None, "all cores are busy: they may be the limit"),
    ],
)
def test_the_next_step_follows_from_what_the_machine_did(
    tmp_path: Path, cores: float, gpu: float | None, hint: str
) -> None:
    write_readings(tmp_path, cores=cores, gpu=gpu)
    assert str(train_unseen(tmp_path).hint).startswith(hint)


def test_cores_that_were_not_read_are_not_called_idle(tmp_path: Path) -> None:
    write_readings(tmp_path, cores=None, gpu=None, others=None)
    assert str(train_unseen(tmp_path).hint).startswith("it is not known how busy cores and disks are")


def test_cores_that_other_processes_have_are_not_called_free(tmp_path: Path) -> None:
    write_readings(tmp_path, cores=0.5, gpu=None, others=1e4)
    assert "all cores are busy, 10000.0 of them with other processes" in str(train_unseen(tmp_path).hint)


def test_a_run_of_another_framework_that_was_interrupted_is_told_of_all_the_same(tmp_path: Path) -> None:
    write_readings(tmp_path, cores=0.5, gpu=None)
    error = train_unseen(tmp_path, {**TENSORFLOW, "module": "jax"}, exit_code=130, signal=2, interrupted=True)
    assert "uses JAX 2.20.0" in str(error)
    assert "how busy a GPU was is not known" in str(error)
    assert "feedrate.jax.batches" in str(error.hint)
    assert "& feedrate watch $!" in str(error.hint)
    assert error.exit_code == 130


def test_a_run_of_another_framework_that_was_over_at_once_is_told_so(tmp_path: Path) -> None:
    assert "it was too short to see what it used of the machine" in str(train_unseen(tmp_path))


def test_a_run_of_another_framework_that_failed_is_told_its_error(tmp_path: Path) -> None:
    error = train_unseen(tmp_path, TENSORFLOW, CRASH, exit_code=1)
    assert "before its first batch: KeyError: 'root'" in str(error)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("ls -l", "give it the training command"),
        ("python -I train.py", "Python started with -I ignores it"),
        ("python -uE train.py", "Python started with -E ignores it"),
        ("python train.py", "is PYTHONPATH changed"),
        ("sudo python train.py", "sudo drops the environment"),
        ("docker run image python train.py", "run feedrate doctor inside of it"),
        ("srun --export=NONE python train.py", "--export=ALL"),
    ],
)
def test_a_run_that_never_loaded_the_hook_is_explained(tmp_path: Path, command: str, hint: str) -> None:
    with pytest.raises(DoctorError, match="no Python process of this command loaded the hook") as caught:
        check_seen(observe(tmp_path, command))
    assert hint in str(caught.value.hint)
    assert str(caught.value.hint).endswith(f"from outside: {command} & feedrate watch $!")


def test_a_run_that_was_interrupted_before_it_loaded_the_hook_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="interrupted before a Python process of this command had loaded"):
        check_seen(observe(tmp_path, exit_code=1, interrupted=True))


def test_a_run_of_which_nothing_could_be_recorded_on_a_full_disk_is_explained(small_disk: Path) -> None:
    run = small_disk / "run"
    run.mkdir()
    with pytest.raises(DoctorError, match=f"^{small_disk} is full, so nothing could be recorded") as caught:
        check_seen(observe(run))
    assert "TMPDIR" in str(caught.value.hint)


def test_a_run_with_a_batch_is_examined(tmp_path: Path) -> None:
    write_facts(tmp_path, PROCESS, TORCH, LOADER, BATCH, CRASH)
    check_seen(observe(tmp_path, exit_code=1))


@pytest.mark.parametrize(("exit_code", "said"), [(0, 1), (7, 7)])
def test_a_verdict_is_not_given_from_a_few_steps(tmp_path: Path, exit_code: int, said: int) -> None:
    loop = FakeLoop(workers=0)
    for _ in range(9):
        loop.step(wait=5)
    loop.main.record(layout.WAIT, "loader-0", loop.now, MS, a=-1, b=9)
    for number in range(30):
        loop.main.record(layout.WAIT, "loader-1", loop.now + number * MS, MS, a=8, b=number)
    loop.main.write(tmp_path)
    ended = observe(tmp_path, exit_code=exit_code)
    with pytest.raises(DoctorError, match="too few steps to judge: 9 seen, at least 10 needed") as caught:
        judge_run(ended, read_run(tmp_path), read_machine(tmp_path), DoctorOptions())
    assert caught.value.exit_code == said


def test_a_verdict_is_given_from_the_least_steps(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0)
    for _ in range(LEAST_STEPS):
        loop.step(wait=5)
    loop.main.write(tmp_path)
    ended = observe(tmp_path, exit_code=0)
    diagnosis = judge_run(ended, read_run(tmp_path), read_machine(tmp_path), DoctorOptions())
    assert diagnosis.run.steps == 7


def test_a_signal_is_named(tmp_path: Path) -> None:
    assert describe_end(observe(tmp_path, exit_code=139, signal=11)) == "was ended by SIGSEGV"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 1}, "--steps must be at least 10, got 1"),
        ({"seconds": 0.0}, "--seconds must be above 0, got 0"),
        ({"seconds": float("nan")}, "--seconds must be above 0, got nan"),
        ({"scratch": Path("/no/such/folder")}, "no folder at /no/such/folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FeedrateError) as caught:
        DoctorOptions(**options)
    assert message in str(caught.value)


def test_a_short_look_has_a_short_warm_up() -> None:
    assert DoctorOptions().warmup_steps == 10
    assert DoctorOptions(steps=12).warmup_steps == 4
