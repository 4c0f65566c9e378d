# SPDX-License-Identifier: Apache-2.0
"""A disk that is full at any of the moments when it is written to: a sentence, and the pack as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from feedrate import AppendOptions, PackOptions, add_column, append, pack, set_entries, split, verify
from feedrate.errors import StorageError
from support.images import read_tree, save_image

ACTIONS: dict[str, Callable[[Path], object]] = {
    "split": lambda home: split(home / "p", {"a": 0.5, "b": 0.5}),
    "add-column": lambda home: add_column(home / "p", home / "t.csv"),
    "append": lambda home: append(home / "new", home / "p", AppendOptions(workers=1)),
    "entries": lambda home: set_entries(home / "p", 16, workers=1),
    "another pack": lambda home: append(home / "q", home / "p"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for number in range(4):
        save_image(tmp_path / "old" / "dog" / f"{number}.jpg", number)
        save_image(tmp_path / "new" / "dog" / f"n{number}.jpg", 20 + number)
    for source, target in (("old", "p"), ("new", "q")):
        pack(tmp_path / source, tmp_path / target, PackOptions(workers=1))
    (tmp_path / "t.csv").write_text("path,age\n" + "".join(f"dog/{n}.jpg,{n}\n" for n in range(4)))
    return tmp_path


@pytest.mark.parametrize("name", list(ACTIONS))
def test_a_full_disk_at_any_write_leaves_the_packs_as_they_were_and_goes_on_later(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = {file: data for file, data in read_tree(home).items() if file.startswith(("p/", "q/"))}
    real = os.fsync

    def is_done_with(syncs: int) -> bool:
        def fsync(fd: int) -> None:
            nonlocal syncs
            syncs -= 1
            if syncs < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            said = ""
            try:
                ACTIONS[name](home)
            except StorageError as error:
                said = str(error)
        if not said:
            return True
        assert "the disk is full" in said
        now = read_tree(home)
        assert not [file for file in now if file.endswith(".tmp")]
        if now["p/pack.json"] != before["p/pack.json"]:
            return True  # all but the last steps are done
        assert {file: now[file] for file in before} == before
        return False

    assert [is_done_with(syncs) for syncs in (0, 1)] == [False, False]
    assert any(is_done_with(syncs) for syncs in (2, 3, 5, 7, 9, 11, 1000))
    assert verify(home / "p", workers=1).problems == ()
