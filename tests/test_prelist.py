# SPDX-License-Identifier: Apache-2.0
"""Folders that are listed before anybody asks for them are listed as they would be later."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from feedrate import _native, prelist
from feedrate.kernel import list_folder
from feedrate.prelist import listing_early, take_listed

SUFFIXES = [".jpg", ".png"]
WANTED = [b".jpg", b".png"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in ("a/1.jpg", "a/2.txt", "b/3.PNG", "b/deeper/4.jpg", "loose.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    return tmp_path


def as_lists(folder: bytes) -> list[object]:
    return [part if isinstance(part, bytes) else part.tolist() for part in list_folder(folder, SUFFIXES)]


def test_what_was_listed_early_is_what_would_be_listed_later(folder: Path) -> None:
    paths = [bytes(folder) + b"/", bytes(folder / "a"), bytes(folder / "b"), bytes(folder / "b/deeper")]
    later = [as_lists(path) for path in paths]
    with listing_early(str(folder), SUFFIXES):
        assert [as_lists(path) for path in paths] == later


def test_the_folder_and_those_in_it_are_given_once(folder: Path) -> None:
    with listing_early(str(folder), SUFFIXES):
        for path in (bytes(folder) + b"/", bytes(folder / "a"), bytes(folder / "b")):
            assert take_listed(path, WANTED) is not None
            assert take_listed(path, WANTED) is None
        assert take_listed(bytes(folder / "b/deeper"), WANTED) is None


def test_other_suffixes_are_another_question(folder: Path) -> None:
    with listing_early(str(folder), SUFFIXES):
        assert take_listed(bytes(folder) + b"/", [b".jpg"]) is None


def test_folders_beyond_the_most_names_are_left_to_who_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prelist, "_MOST_NAMES", 4)
    with listing_early(str(folder), SUFFIXES):
        assert take_listed(bytes(folder / "b"), WANTED) is None
        assert list_folder(bytes(folder / "b"), SUFFIXES).names == b"3.PNGdeeper"


def test_what_is_no_folder_is_refused_when_it_is_asked_for(folder: Path) -> None:
    with listing_early(str(folder / "loose.jpg"), SUFFIXES), pytest.raises(NotADirectoryError):
        list_folder(bytes(folder / "loose.jpg") + b"/", SUFFIXES)


def test_no_thread_is_left_behind_and_nothing_is_given_afterwards(folder: Path) -> None:
    before = set(threading.enumerate())
    with listing_early(str(folder), SUFFIXES):
        pass
    assert set(threading.enumerate()) <= before
    assert take_listed(bytes(folder) + b"/", WANTED) is None


def test_a_listing_ends_when_it_is_told_to_stop(folder: Path) -> None:
    assert _native.list_folder(bytes(folder), WANTED, 1, b"\1")[0] == errno.ECANCELED
