# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor` on the command line: what it passes on, writes and returns. The diagnosis is made up."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.cli.output import check_target, dump_document
from feedrate.doctor.results import Diagnosis, Fact, RunFacts
from feedrate.errors import DoctorError, StorageError
from feedrate.machine.describe import describe_machine
from support.scratches import as_stranger


def make_diagnosis(**run: Any) -> Diagnosis:
    facts = RunFacts(
        mode="ended", exit_code=0, seconds=30.0, steps=110, warmup_steps=10, samples_per_step=32.0,
        seconds_per_step=0.1, samples_per_s=320.0, exposed_wait_share=0.2, device="cpu", ranks=1, workers=2,
        usable_cores=2.0, unseen=(), experiments=(),
    )  # fmt: skip
    return Diagnosis(
        command=("python", "train.py"), verdict="it waits", findings=(), remedies=(),
        run=dataclasses.replace(facts, **run), split=(), sample=(), hot_lines=(), rates=(), timeline=(),
        curves=(), facts=(), overhead=None, machine=describe_machine([]),
    )  # fmt: skip


class Examination:
    """Stands in for the examination and for the drawing; keeps what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.command: list[str] | None = None
        self.options: Any = None
        self.diagnosis: Diagnosis | DoctorError = make_diagnosis()
        self.replace(monkeypatch, "feedrate.doctor.examine", examine=self.examine)
        self.replace(
            monkeypatch, "feedrate.report.doctor", draw_diagnosis=lambda d: f"verdict: {d.verdict}\n"
        )
        self.replace(monkeypatch, "feedrate.report.doctor_page", draw_doctor_page=lambda _: "<page>")
        self.replace(monkeypatch, "feedrate.report.doctor_trace", draw_trace=lambda _: "{trace}")

    def replace(self, monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    def examine(self, command: list[str], options: Any, *, watch: Callable[[str], None]) -> Diagnosis:
        self.command, self.options = command, options
        watch("the command ended")
        if isinstance(self.diagnosis, DoctorError):
            raise self.diagnosis
        return self.diagnosis


@pytest.fixture
def examination(monkeypatch: pytest.MonkeyPatch) -> Examination:
    return Examination(monkeypatch)


def run(*words: object) -> int:
    return main(["doctor", *map(str, words)])


@pytest.mark.parametrize(
    "words", [["--", "true", "--steps", "3", "--", "x"], ["true", "--steps", "3", "--", "x"]]
)
def test_the_command_keeps_its_own_options_with_and_without_dashes_before_it(
    examination: Examination, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--passive", *words) == 0
    assert examination.command == ["true", "--steps", "3", "--", "x"]
    assert examination.options.passive
    assert examination.options.steps == 110
    assert capsys.readouterr().out == "verdict: it waits\n"


def test_options_reach_the_examination(examination: Examination, tmp_path: Path) -> None:
    assert run("--steps", 30, "--seconds", 5.5, "--scratch", tmp_path, "--", "true") == 0
    options = examination.options
    assert (options.steps, options.seconds, options.scratch) == (30, 5.5, tmp_path)
    assert options.ends_standstill
    assert run("--", "true") == 0
    assert (examination.options.seconds, examination.options.ends_standstill) == (45.0, False)


def test_it_says_what_it_will_do_and_that_the_run_is_spoilt(
    examination: Examination, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--", "true")
    assert capsys.readouterr().err == (
        "feedrate doctor: watching about 110 steps, then experiments of about 25 s; "
        "the run's weights are then spoilt and nothing more of it is written\n"
        "feedrate doctor: the command ended\n"
    )
    assert examination.command == ["true"]


@pytest.mark.usefixtures("examination")
def test_a_passive_run_is_announced_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    run("--passive", "--", "true")
    assert capsys.readouterr().err.startswith("feedrate doctor: watching the whole run, changing nothing\n")


@pytest.mark.parametrize("exit_code", [0, 2, 137])
@pytest.mark.parametrize("mode", ["ended", "passive"])
def test_the_commands_exit_code_is_the_doctors(
    examination: Examination, mode: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    examination.diagnosis = make_diagnosis(mode=mode, exit_code=exit_code)
    assert run("--", "true") == exit_code
    assert "exit code" not in capsys.readouterr().err


def test_a_command_that_the_doctor_ended_is_exit_code_3_so_that_nothing_goes_on_with_its_weights(
    examination: Examination, capsys: pytest.CaptureFixture[str]
) -> None:
    examination.diagnosis = make_diagnosis(mode="experiments", exit_code=None)
    assert run("--", "true") == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "feedrate doctor: exit code 3: the command was ended before its own end"


def test_a_run_with_nothing_to_examine_is_a_sentence_and_the_commands_exit_code(
    examination: Examination, capsys: pytest.CaptureFixture[str]
) -> None:
    examination.diagnosis = DoctorError("the command never imported torch", hint="do", exit_code=4)
    assert run("--", "true") == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("error: the command never imported torch\n\nhint: do\n")


@pytest.mark.usefixtures("examination")
def test_json_on_standard_output_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-", "--", "true") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["verdict"]) == ("doctor", "it waits")


@pytest.mark.usefixtures("examination")
def test_files_are_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, trace, document = (tmp_path / name for name in ("a.html", "a.trace", "a.json"))
    assert run("--html", html, "--trace", trace, "--json", document, "--", "true") == 0
    assert html.read_text() == "<page>"
    assert trace.read_text() == "{trace}"
    assert json.loads(document.read_text())["schema_version"] == 1
    assert f"wrote {html}\n" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--trace", "--json"])
def test_a_file_that_is_there_is_refused_before_the_command_runs(
    examination: Examination, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine"
    target.write_text("mine")
    assert run(option, target, "--", "true") == 1
    assert examination.command is None
    assert "is already there" in capsys.readouterr().err
    assert run(option, target, "--force", "--", "true") == 0
    assert target.read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "share", "exit_code", "word", "limit"),
    [
        (["--check"], 0.02, 0, "passed", "5%"),
        (["--check"], 0.20, 1, "failed", "5%"),
        (["--check", "--max-exposed-wait", "25%"], 0.20, 0, "passed", "25%"),
        (["--max-exposed-wait", "0.1"], 0.20, 1, "failed", "10%"),
    ],
)
def test_the_check_is_a_limit_on_the_exposed_wait(
    examination: Examination, words: list[str], share: float, exit_code: int, word: str, limit: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    examination.diagnosis = make_diagnosis(mode="experiments", exit_code=None, exposed_wait_share=share)
    assert run(*words, "--", "true") == exit_code
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"feedrate doctor: check {word}: ")
    assert f"(limit {limit})" in line


def test_a_failed_command_outranks_a_failed_check(examination: Examination) -> None:
    examination.diagnosis = make_diagnosis(exit_code=3)
    assert run("--check", "--", "true") == 3


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The document of an earlier run, twice as fast as the one that is made up here."""
    path = tmp_path / "before.json"
    path.write_text(dump_document("doctor", make_diagnosis(samples_per_s=640.0)))
    return path


def test_an_earlier_document_is_compared_with(
    examination: Examination, before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examination.diagnosis = make_diagnosis(mode="experiments", exit_code=None)
    assert run("--verify", before, "--", "true") == 0
    assert "640" in capsys.readouterr().out.split("verdict: it waits\n")[1]


def test_a_remedy_that_the_earlier_run_did_not_predict_is_refused_before_the_command_runs(
    examination: Examination, before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--verify", before, "--applied", "luck", "--", "true") == 1
    assert "the earlier run predicted nothing for 'luck' (--applied)" in capsys.readouterr().err
    assert examination.command is None
    assert run("--applied", "pack", "--", "true") == 1
    assert "--applied compares with an earlier run" in capsys.readouterr().err


@pytest.mark.usefixtures("examination")
def test_json_stands_alone_also_beside_a_comparison(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--verify", before, "--check", "--json", "-", "--", "true") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["run"]["samples_per_s"] == 320.0
    assert "640" in captured.err
    assert "failed: " in captured.err


@pytest.mark.parametrize("more", [[], ["--max-slowdown", "90%"]])
def test_runs_of_different_things_are_not_compared_and_that_is_exit_code_1(
    examination: Examination, before: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    documents = (
        dataclasses.replace(
            make_diagnosis(), command=("python", f"{name}.py"),
            facts=(Fact("model", f"{name} on cpu"), Fact("dataset", f"{name}, 9 samples")),
        )
        for name in ("one", "two")
    )  # fmt: skip
    before.write_text(dump_document("doctor", next(documents)))
    examination.diagnosis = next(documents)
    kept = before.with_name("now.json")
    assert run("--verify", before, *more, "--json", kept, "--", "true") == 1
    assert "Not comparable: the two runs are of different things (script: one.py" in capsys.readouterr().out
    assert kept.exists()


@pytest.mark.parametrize(("limit", "exit_code"), [("40%", 1), ("60%", 0)])
@pytest.mark.usefixtures("examination")
def test_a_run_that_became_slower_than_allowed_is_exit_code_1(
    before: Path, limit: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--verify", before, "--max-slowdown", limit, "--", "true") == exit_code
    assert f"(limit {limit} slower)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no file at {before} (--verify)"),
        ("{", "cannot read {before} (--verify)"),
        ('{"command": "bench", "schema_version": 1}', "cannot compare with {before} (--verify): "),
        ("[]", "cannot compare with {before} (--verify): "),
    ],
)
def test_a_document_that_is_none_is_refused_before_the_command_runs(
    examination: Examination, tmp_path: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tmp_path / "before.json"
    if text is not None:
        before.write_text(text)
    assert run("--verify", before, "--", "true") == 1
    assert capsys.readouterr().err.startswith("error: " + said.format(before=before))
    assert examination.command is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "error: nothing to run\n\nhint: feedrate doctor -- python train.py ...\n"),
        ([], "error: nothing to run\n"),
        (["--", "pyton3", "x.py"], "error: no program 'pyton3'\n\nhint: did you mean 'python3'?\n"),
        (["python3", "gone.py"], "error: no script at gone.py\n"),
        (["--", "--passive", "true"], "error: '--passive' is not a command\n\nhint: options first"),
        (["--max-slowdown", "3%", "--", "true"], "error: --max-slowdown compares with an earlier run, "),
        (["--steps", "1", "--", "true"], "error: --steps must be at least 10, got 1\n"),
    ],
)
def test_bad_input_is_a_sentence(
    examination: Examination, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(said)
    assert captured.out == ""
    assert examination.command is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-exposed-wait", "7x"], "'7x' is not a share between 0 and 1: write 5% or 0.05"),
        (["--max-exposed-wait", "120%"], "'120%' is not a share between 0 and 1"),
        (["--seconds", "long"], "'long' is not a number"),
        (["--stepz", "4"], "hint: did you mean '--steps'?"),
    ],
)
def test_a_wrong_option_is_wrong_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*words, "--", "true")
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--json", "--trace"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    examination: Examination, small_disk: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "old").write_text("kept")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert run(option, small_disk / "new", "--", "true") == 1
    assert run(option, small_disk / "old", "--force", "--", "true") == 1
    assert capsys.readouterr().err == "".join(
        f"error: cannot write {small_disk / name}: Read-only file system\n\n"
        "hint: name a file in a folder that you may write to\n"
        for name in ("new", "old")
    )
    assert examination.command is None


@pytest.mark.parametrize(("name", "why"), [("a" * 300, "File name too long"), ("folder", "Is a directory")])
def test_a_name_that_no_file_can_have_is_refused_before_the_run(
    examination: Examination, tmp_path: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    assert run("--html", tmp_path / name, "--force", "--", "true") == 1
    assert f": {why}\n" in capsys.readouterr().err
    assert examination.command is None


def test_looking_whether_files_can_be_written_leaves_nothing_behind(
    examination: Examination, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.html"
    old.write_text("kept")
    examination.diagnosis = DoctorError("there was nothing to see")
    words = ["--html", old, "--json", tmp_path / "new.json", "--trace", tmp_path / "new.trace", "--force"]
    assert run(*words, "--", "true") == 1
    assert "there was nothing to see" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.html", "kept")]


def test_a_file_of_another_user_is_refused_before_the_run() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below tmp_path, which only we may enter
        os.chmod(folder, 0o755)
        target = Path(folder, "report.json")
        target.write_text("kept")
        answers = as_stranger(lambda: [refuse(target), refuse(target.with_name("new.json"))])
        assert answers == [f"cannot write {folder}/{n}.json: Permission denied" for n in ("report", "new")]


def refuse(target: Path) -> str:
    with pytest.raises(StorageError) as caught:
        check_target(target, force=True)
    return str(caught.value)
