# SPDX-License-Identifier: Apache-2.0
"""The command line itself: typing mistakes, help, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.cli import COMMANDS, main


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    return capsys.readouterr().err


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: did you mean 'pack'?" in usage_error(capsys, "pakc", "a", "b")


@pytest.mark.parametrize("words", [["--workrs", "2"], ["--workrs=2"]], ids=["spaced", "joined"])
def test_a_mistyped_option_is_guessed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: did you mean '--workers'?" in usage_error(capsys, "pack", "a", "b", *words)


def test_a_missing_argument_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hint: see 'feedrate pack --help'" in usage_error(capsys, "pack")


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {command}" in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_80_columns_but_for_examples_to_copy(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  feedrate ")] == []


def test_a_mistyped_folder_is_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "imagenet").mkdir()
    assert main(["pack", str(tmp_path / "imgnet"), str(tmp_path / "pack")]) == 1
    assert f"hint: {tmp_path} holds 'imagenet'. Did you mean that?" in capsys.readouterr().err


def test_a_path_whose_parents_are_missing_too_is_shown_how_far_it_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(tmp_path / "no" / "such" / "pack")]) == 1
    assert f"hint: the path exists as far as {tmp_path}" in capsys.readouterr().err
