# SPDX-License-Identifier: Apache-2.0
"""A copy.json that is damaged stops no job whose source is there, and its copy can be deleted."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedrate
from feedrate.cli import main
from feedrate.scratch.commands import release_all
from support.images import read_tree
from support.scratch_copies import make_files, make_pack, names_in, stage

pytestmark = pytest.mark.usefixtures("no_fsync")

COUNT = 6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "set", COUNT)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scr"


@pytest.fixture
def marker(source: Path, scratch: Path) -> Path:
    """The marker of a copy that is whole."""
    path = Path(feedrate.stage(source, scratch).path).parent / "copy.json"
    release_all()
    return path


def read_all(source: Path, scratch: Path | None) -> list[Any]:
    with feedrate.Loader(
        source, 4, fields=("image", "number"), output="numpy", scratch=scratch, order="staged"
    ) as loader:
        return list(loader)


def without_check(path: Path) -> bytes:
    """Make it a marker of an earlier version, which has no checksum of itself; return its text."""
    document = json.loads(path.read_bytes())
    del document["check"]
    path.write_text(json.dumps(document, separators=(",", ":")))
    return path.read_bytes()


@pytest.mark.parametrize("is_old", [False, True], ids=["with its checksum", "of an earlier version"])
def test_no_flipped_bit_of_a_marker_stops_a_job_or_changes_what_it_reads(
    source: Path, scratch: Path, marker: Path, is_old: bool
) -> None:
    expected = read_all(source, None)
    text = without_check(marker) if is_old else marker.read_bytes()
    step = max(len(text) // 50, 1)
    for at in range(0, len(text), step):
        flipped = bytearray(text)
        flipped[at] ^= 1 << (at // step % 8)
        marker.write_bytes(flipped)
        np.testing.assert_equal(read_all(source, scratch), expected, err_msg=f"byte {at}")


def test_every_flipped_bit_is_noticed_and_the_marker_written_anew(
    source: Path, scratch: Path, marker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = marker.read_bytes()
    told = len(text) - len(b',"check":"00000000"}\n')
    for at in range(0, told, 7):
        flipped = bytearray(text)
        flipped[at] ^= 1 << (at % 8)
        marker.write_bytes(flipped)
        caplog.clear()
        result = feedrate.stage(source, scratch)
        release_all()
        (said,) = (record.getMessage() for record in caplog.records)
        assert said.startswith(f"{marker} is damaged"), f"byte {at}"
        assert said.endswith(f"it was written anew from the source, {source}")
        assert (result.copied_files, json.loads(marker.read_bytes())["source"]) == (0, str(source))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: os.truncate(path, 100),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a list": lambda path: path.write_bytes(b"[]"),
    "gone": lambda path: path.unlink(),
    "of another copy": lambda path: path.write_bytes(path.read_bytes().replace(b"shard-", b"other-")),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_job_says_once_that_a_marker_is_damaged_and_goes_on(
    source: Path, scratch: Path, marker: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = read_all(source, None)
    DAMAGES[damage](marker)
    for _ in range(2):
        np.testing.assert_equal(read_all(source, scratch), expected)
    said = [record.getMessage() for record in caplog.records if "written anew" in record.getMessage()]
    assert len(said) == 1


def test_plain_files_of_which_nothing_is_known_any_more_are_brought_anew(
    tmp_path: Path, scratch: Path
) -> None:
    source = make_files(tmp_path / "files")
    copy = stage(source, scratch)
    (copy.folder / "copy.json").write_bytes(b"{")
    (copy.path / "part-1" / "values.bin").write_bytes(bytes(1001))
    assert feedrate.stage(source, scratch).copied_files == 3
    release_all()
    assert read_tree(copy.path) == read_tree(source)


def test_a_marker_that_cannot_be_written_anew_is_said_and_the_source_is_read(
    source: Path,
    scratch: Path,
    marker: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    marker.write_bytes(b"{")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("feedrate.scratch.copy.Copy.update", refuse)
    expected = read_all(source, None)
    np.testing.assert_equal(read_all(source, scratch), expected)
    (said,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert said.startswith(f"{source} is read without a copy on scratch: {marker} is damaged")


def test_a_marker_of_a_later_version_is_left_alone_and_the_source_is_read(
    source: Path, scratch: Path, marker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_check(marker)
    text = marker.read_bytes().replace(b'"version":1', b'"version":2')
    marker.write_bytes(text)
    assert len(read_all(source, scratch)) == 2
    assert "is read without a copy on scratch" in caplog.text
    assert marker.read_bytes() == text
    with pytest.raises(feedrate.StorageError, match="is of version 2") as got:
        feedrate.stage(source, scratch)
    assert f"feedrate scratch rm {marker.parent}" in str(got.value.hint)


@pytest.mark.parametrize("command", ["rm", "gc"])
@pytest.mark.parametrize("has_notes", [True, False], ids=["noted", "not noted"])
def test_a_copy_with_a_damaged_marker_is_deleted_when_its_source_is_there(
    source: Path, scratch: Path, marker: Path, command: str, has_notes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = marker.read_bytes()
    marker.write_bytes(b"" if has_notes else text.replace(b'"digest"', b'"dig\xffst"'))
    if not has_notes:
        monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/none")
    before = read_tree(source)
    names = [marker.parent.name] if command == "rm" else []
    assert main(["scratch", command, *names, "--scratch", str(scratch)]) == 0
    assert names_in(scratch) == []
    assert read_tree(source) == before


@pytest.mark.parametrize("command", ["rm", "gc"])
def test_a_copy_with_a_damaged_marker_stays_when_its_source_is_gone(
    source: Path, scratch: Path, marker: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    marker.write_bytes(b"{")
    shutil.rmtree(source)
    before = read_tree(marker.parent)
    names = [marker.parent.name] if command == "rm" else []
    main(["scratch", command, *names, "--scratch", str(scratch)])
    assert "so nobody knows what it was copied from" in capsys.readouterr().out
    assert read_tree(marker.parent) == before


def test_a_copy_with_a_damaged_marker_goes_when_the_user_says_so(
    source: Path, scratch: Path, marker: Path
) -> None:
    marker.write_bytes(b"{")
    shutil.rmtree(source)
    words = ["scratch", "rm", marker.parent.name, "--scratch", str(scratch)]
    (marker.parent / "results.csv").write_text("precious")
    assert main([*words, "--even-if-the-source-is-gone"]) == 1
    assert (marker.parent / "data" / "pack.json").exists()
    (marker.parent / "results.csv").unlink()
    assert main([*words, "--even-if-the-source-is-gone"]) == 0
    assert names_in(scratch) == []


def test_a_copy_with_a_damaged_marker_that_is_in_use_stays(
    scratch: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker.write_bytes(b"{")
    with feedrate.Loader(marker.parent / "data", 2, fields=("number",), output="numpy"):
        assert main(["scratch", "rm", marker.parent.name, "--scratch", str(scratch)]) == 1
    assert "it is in use" in capsys.readouterr().out
