# SPDX-License-Identifier: Apache-2.0
"""The command line itself: typing mistakes, help, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.cli import COMMANDS, GONE_COMMANDS, GONE_OPTIONS, main
from support.images import save_image


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: did you mean 'pack'?" in usage_error(capsys, "pakc", "a", "b")


@pytest.mark.parametrize("words", [["--workrs", "2"], ["--workrs=2"]], ids=["spaced", "joined"])
def test_a_mistyped_option_is_guessed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: did you mean '--workers'?" in usage_error(capsys, "pack", "a", "b", *words)


def test_a_value_that_is_refused_is_no_mistyped_option(capsys: pytest.CaptureFixture[str]) -> None:
    shown = usage_error(capsys, "stage", "p", "--keep", "soon")
    assert "'soon' is not a time; write it like 7d, 12h, 90min or 30s" in shown
    assert shown.endswith("hint: see 'feedrate stage --help'\n")


@pytest.mark.parametrize("words", sorted(GONE_COMMANDS))
def test_a_command_that_is_gone_is_answered_with_what_to_type(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = f"error: 'feedrate {words}' is gone\n\nhint: {GONE_COMMANDS[words]}\n"
    assert usage_error(capsys, *words.split(), "x") == told


@pytest.mark.parametrize(("command", "option"), sorted(GONE_OPTIONS))
def test_an_option_that_is_gone_is_answered_with_what_to_type(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = f"error: 'feedrate {command} {option}' is gone\n\nhint: {GONE_OPTIONS[command, option]}\n"
    assert usage_error(capsys, *command.split(), "x", "y", option, "1") == told
    assert usage_error(capsys, *command.split(), option, "python", "x.py", "--once") == told


@pytest.mark.parametrize("words", [["demo", "x"], ["ls", "a", "b"]])
def test_a_word_too_many_points_to_the_help_of_its_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(capsys, *words).endswith(f"hint: see 'feedrate {words[0]} --help'\n")


@pytest.mark.parametrize("words", [["--workers", "2"], ["--workers=2"]], ids=["spaced", "joined"])
def test_an_option_before_the_command_is_told_its_place(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(capsys, *words, "pack", "a", "b") == (
        f"error: {words[0]} stands before the command\n"
        f"\nhint: options come after it: feedrate COMMAND ... {words[0]}\n"
    )


def test_a_refused_value_before_the_paths_points_to_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert usage_error(capsys, "pack", "--workers", "0", "a", "b").endswith(
        "hint: see 'feedrate pack --help'\n"
    )


@pytest.mark.parametrize(
    ("words", "said", "meant"),
    [
        (["packs"], "there is no 'feedrate packs'", "pack"),
        (["help", "pakc"], "there is no 'feedrate pakc'", "pack"),
        (["scratch", "list"], "there is no 'feedrate scratch list'", "ls"),
    ],
)
def test_an_unknown_command_is_named_without_a_list_of_all(
    words: list[str], said: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(capsys, *words) == f"error: {said}\n\nhint: did you mean '{meant}'?\n"


def test_a_missing_argument_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: see 'feedrate pack --help'" in usage_error(capsys, "pack")


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {command}" in shown for command in COMMANDS)


def test_feedrate_alone_lists_the_commands_in_their_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    groups = [line for line in shown.out.splitlines() if line.endswith(":")]
    assert groups == ["train faster:", "find out:", "make:", "look:", "node:"]
    assert not shown.err


@pytest.mark.parametrize("command", ["scratch", "bench", "estimate"])
def test_a_command_that_wants_another_word_shows_which_there_are(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command])
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: feedrate {command} ")
    assert not shown.err


def test_help_is_what_the_option_help_shows(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for words in (["help"], ["--help"], ["help", "scratch", "ls"], ["scratch", "ls", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[2] == shown[3]
    assert shown[2].startswith("usage: feedrate scratch ls")


def test_a_mistyped_option_alone_is_called_unknown_not_the_word_that_its_value_displaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = usage_error(capsys, "pack", "--reszie", "256", "data", "X")
    assert shown == "error: unknown option: --reszie\n\nhint: did you mean '--resize'?\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_80_columns_but_for_examples_to_copy(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  feedrate ")] == []


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            ["pack", "photos/a.jpg", "q"],
            "photos/a.jpg is one image; a dataset is a folder of them",
            "name the folder: ",
        ),
        (
            ["pack", "photos", "q", "--labels", "labls.csv"],
            "cannot read the table labls.csv",
            "holds 'labels.csv'. Did you",
        ),
        (["ls", "p/pack.json"], "p/pack.json is a file; a pack is a folder", "name the folder: p\n"),
        (["ls", "photos"], "photos is not a pack", "make one of it: feedrate pack photos PACK\n"),
        (
            ["pack", "p", "q"],
            "p is a pack already",
            "feedrate ls p; to add it to another: feedrate append OTHER_PACK PACK\n",
        ),
        (["unpack", "p", "labels.csv"], "labels.csv is a file", "name a folder to unpack into"),
        (
            ["ls", "p", "--quality"],
            "p/quality.json is damaged: it is not what packing wrote",
            "pack the source again",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_dataset_or_pack_is_named_with_a_way_out(
    words: list[str],
    said: str,
    hint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "photos" / "a.jpg", 1)
    (tmp_path / "labels.csv").write_text("path,label\na.jpg,cat\n")
    assert main(["pack", "photos", "p", "--workers", "1"]) == 0
    (tmp_path / "p" / "quality.json").write_text("[]")
    capsys.readouterr()
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert f"error: {said}" in shown
    assert hint in shown.partition("hint: ")[2]


def test_a_mistyped_folder_is_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "imagenet").mkdir()
    assert main(["pack", str(tmp_path / "imgnet"), str(tmp_path / "pack")]) == 1
    assert f"hint: {tmp_path} holds 'imagenet'. Did you mean that?" in capsys.readouterr().err


def test_a_path_whose_parents_are_missing_too_is_shown_how_far_it_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(tmp_path / "no" / "such" / "pack")]) == 1
    assert f"hint: the path exists as far as {tmp_path}" in capsys.readouterr().err


def test_the_help_of_all_commands_loads_no_result_classes() -> None:
    code = (
        "import sys; from feedrate.cli import make_parser; make_parser().format_help();"
        "print([name for name in sys.modules if name.endswith('.results') or name == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
