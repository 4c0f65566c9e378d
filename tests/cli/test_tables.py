# SPDX-License-Identifier: Apache-2.0
"""Reports in a terminal: wrapped between words, aligned by what it shows. Piped, a row is a line."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from feedrate.cli import main
from feedrate.report.lines import Chosen, Command, Number, count_cells, lay_out, wrap
from support.images import save_image

CAT, SQUIRREL, HANGUL = "猫", "e\u0301cureuil", "\u1112\u1161\u11ab\u1100\u1173\u11af"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_in_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with contextlib.redirect_stdout(stream):
        assert main(words) == 0
    return stream.getvalue()


@pytest.fixture
def animals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in the current one: classes of all widths, a long name, an empty image, many other files."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate([CAT, CAT, SQUIRREL, HANGUL, "dog", "dog", "🐈"]):
        save_image(tmp_path / "animals" / name / f"{number}.jpg", number)
    long = tmp_path / "animals" / "a-class-name-of-four-words-that-is-longer-than-half-a-line-of-the-terminal"
    save_image(long / "7.jpg", 7)
    (tmp_path / "animals" / "dog" / "empty.jpg").touch()
    for suffix in ("annotations", "checkpoint", "description", "configuration", "thumbnails", "embedding"):
        (tmp_path / "animals" / "dog" / f"other.{suffix}").touch()
    return "animals"


def test_a_report_in_a_terminal_of_80_columns_breaks_no_word(animals: str, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-m", "feedrate", "pack", animals, "p", "--workers", "1"],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env=environ,
        cwd=tmp_path,
    ) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # what Linux says at the end of a terminal
            while block := os.read(master, 4096):
                shown += block
    os.close(master)
    assert process.returncode == 0
    lines = shown.decode().splitlines()
    assert max(map(count_cells, lines)) <= 80
    ignored = next(number for number, line in enumerate(lines) if line.startswith("  ignored"))
    assert lines[ignored : ignored + 2] == [
        "  ignored  1 .annotations, 1 .checkpoint, 1 .configuration, 1 .description, 1",
        "           .embedding, 1 other file",
    ]


def test_a_report_in_a_pipe_has_a_line_per_row(animals: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", animals, "p", "--workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = "  ignored  1 .annotations, 1 .checkpoint, 1 .configuration, 1 .description, 1 .embedding, "
    assert f"{row}1 other file" in lines


def test_what_a_command_says_meanwhile_is_wrapped_too(
    animals: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "animals")
    with contextlib.redirect_stderr(stream):
        assert main(["stage", str(tmp_path / animals), "--scratch", str(tmp_path / "scratch")]) == 0
    said = stream.getvalue()
    assert "already lies on that disk: the copy will be no faster" in " ".join(said.split())
    long = [
        line for line in said.replace("\r", "\n").splitlines() if "on that disk" in line or "faster" in line
    ]
    assert max(map(count_cells, long)) <= 80


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("words", [["ls", "p", "--samples", "9"], ["ls", "p", "--quality"], ["verify", "p"]])
def test_a_narrow_terminal_shows_the_same_words(
    words: list[str],
    columns: int,
    animals: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["pack", animals, "p", "--workers", "1"]) == 0
    capsys.readouterr()
    assert main(words) == 0
    piped = capsys.readouterr().out
    shown = run_in_terminal(words, monkeypatch, columns)
    assert [w for w in shown.split() if w[0].isalpha()] == [w for w in piped.split() if w[0].isalpha()]
    too_long = [line for line in shown.splitlines() if count_cells(line) > columns]
    assert [line for line in too_long if count_cells(line.split()[-1]) <= columns] == []


def test_columns_begin_at_the_same_cell_after_wide_characters_and_marks(
    animals: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", animals, "p", "--workers", "1"]) == 0
    capsys.readouterr()
    assert main(["ls", "p", "--quality"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("KB") and "#" in line]
    assert [row.split()[0] for row in rows][:2] == ["dog", CAT]
    assert len(rows) == 6
    assert len({count_cells(row[: row.index("#")]) for row in rows}) == 1


def test_parts_of_a_split_are_aligned_by_cells(
    animals: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pack", animals, "p", "--workers", "1"]) == 0
    capsys.readouterr()
    lines = run_in_terminal(["split", "p", "训练=4", "val=rest"], monkeypatch).splitlines()
    assert [line.split("sample")[0] for line in lines[1:]][:1] == ["  训练  4 "]
    assert any(line.startswith("  val   4 samples") for line in lines)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("cat", 3),
        (CAT, 2),
        (SQUIRREL, 8),
        (HANGUL, 4),
        ("🐈", 2),
        ("\uff21\uff22", 4),
        ("ｱ", 1),
        ("ü", 1),
        ("", 0),
    ],
)
def test_cells_are_what_a_terminal_shows(text: str, cells: int) -> None:
    assert count_cells(text) == cells


def test_what_goes_on_stands_under_the_text_of_its_row() -> None:
    rows = [("size", "12 MB in three shards, from 11 MB of files"), ("decoder", "all by the kernel")]
    assert lay_out(["packed it", *rows], 40) == (
        "packed it\n"
        "  size     12 MB in three shards, from\n"
        "           11 MB of files\n"
        "  decoder  all by the kernel\n"
    )


def test_a_sentence_goes_on_two_cells_further_in() -> None:
    assert lay_out(["one two three", "  four five six"], 9) == "one two\n  three\n  four\n    five\n    six\n"


def test_a_word_that_fits_a_line_is_moved_to_the_left_until_it_does() -> None:
    assert wrap("a /long/path b", 11, "name  ", " " * 6) == ["name  a", " /long/path", "      b"]


def test_a_word_longer_than_the_line_is_left_whole_to_be_copied() -> None:
    assert wrap("in /a/very/long/path", 10, "", "  ") == ["in", "  /a/very/long/path"]


def test_a_word_longer_than_the_line_is_cut_where_no_line_may_be_wider() -> None:
    assert wrap("in /a/very/long/path it is", 10, "", "  ", cuts=True) == [
        "in /a/very",
        "  /long/pa",
        "  th it is",
    ]


def test_what_is_to_be_typed_stays_one_line() -> None:
    assert lay_out([Command("next: feedrate verify 'a b'")], 10) == "next: feedrate verify 'a b'\n"


def test_one_wide_cell_leaves_the_other_rows_as_they_are() -> None:
    rows = [("name", "bytes", "label"), ("a", "12", "x"), ("a/very/long/name", "3", "y")]
    assert lay_out(rows, 20).splitlines() == [
        "  name  bytes  label",
        "  a     12     x",
        "  a/very/long/name",
        "        3      y",
    ]


def test_columns_that_are_too_wide_together_break_at_the_same_one_in_every_row() -> None:
    rows = [
        ("NAME", "SIZE", "SOURCE"),
        ("one-copy", "1 MB", "/data/source-1"),
        ("two-copy", "2 MB", "/data/2"),
    ]
    assert lay_out(rows, 22).splitlines() == [
        "  NAME      SIZE",
        "    SOURCE",
        "  one-copy  1 MB",
        "    /data/source-1",
        "  two-copy  2 MB",
        "    /data/2",
    ]


NUMBERS = [
    ("", Number("images/s"), Number("CPU")),
    ("torch's DataLoader with Pillow", Number("900"), Number("1 ms")),
    (Chosen("feedrate.Loader"), Number("12,000"), Number("80 µs")),
]


def test_numbers_end_at_the_right_edge_of_their_column() -> None:
    assert lay_out(NUMBERS).splitlines() == [
        "                                  images/s    CPU",
        "  torch's DataLoader with Pillow       900   1 ms",
        "> feedrate.Loader                   12,000  80 µs",
    ]


def test_names_are_wrapped_beside_their_numbers_and_stand_above_them_in_few_columns() -> None:
    assert lay_out(NUMBERS, 40).splitlines() == [
        "                         images/s    CPU",
        "  torch's DataLoader          900   1 ms",
        "    with Pillow",
        "> feedrate.Loader          12,000  80 µs",
    ]
    assert lay_out(NUMBERS[1:], 28).splitlines()[:2] == ["  torch's DataLoader with", "    Pillow"]
