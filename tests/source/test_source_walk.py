# SPDX-License-Identifier: Apache-2.0
"""A dataset's folders are read one ahead of whoever uses them, in an order that does not depend on it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from feedrate.source import folders as walk
from feedrate.source.folders import FolderList, Walk

NAMES = ["a/1.jpg", "a/b/2.jpg", "a-b/3.jpg", "a/b-c/4.jpg", "c/5.jpg", "c/d/e/6.jpg"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    return tmp_path


def test_folders_come_by_class_and_then_by_path(folder: Path) -> None:
    found = [file.path.decode() for file in Walk(str(folder))]
    assert found == ["a/1.jpg", "a/b/2.jpg", "a/b-c/4.jpg", "a-b/3.jpg", "c/5.jpg", "c/d/e/6.jpg"]


def test_the_next_class_is_read_while_one_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_is_read = threading.Event()
    real = walk.list_folder

    def list_folder(path: bytes, suffixes: list[str]) -> FolderList:
        found = real(path, suffixes)
        if path.endswith(b"/a-b"):
            next_is_read.set()
        return found

    monkeypatch.setattr(walk, "list_folder", list_folder)
    folders = Walk(str(folder)).folders()
    assert [next(folders)[0] for _ in range(2)] == [b"", b"a"]
    assert next_is_read.wait(60)


def test_a_walk_that_is_left_early_leaves_no_thread(folder: Path) -> None:
    before = set(threading.enumerate())
    folders = Walk(str(folder)).folders()
    assert [next(folders)[0] for _ in range(2)] == [b"", b"a"]
    folders.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before


def test_a_folder_that_vanishes_before_it_is_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = walk.list_folder

    def list_folder(path: bytes, suffixes: list[str]) -> FolderList:
        if path.endswith(b"/c"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, suffixes)

    monkeypatch.setattr(walk, "list_folder", list_folder)
    walked = Walk(str(folder))
    assert [file.path for file in walked][-1] == b"a-b/3.jpg"
    assert walked.unlisted == {b"c": "folder cannot be listed: No such file or directory"}
