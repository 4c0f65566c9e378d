# SPDX-License-Identifier: Apache-2.0
"""Locks end with their process, and tell whether another process holds a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.files.lock import Gone, is_locked, locked_if_free, take_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "lock"
    found.touch()
    return found


def test_a_file_that_is_held_is_not_free(path: Path) -> None:
    with locked_if_free(path) as is_free:
        assert is_free
        assert is_locked(path)
        assert take_lock(path, wait=False) is None
        with locked_if_free(path) as is_free_too:
            assert not is_free_too
    assert not is_locked(path)


def test_a_file_that_is_not_there_is_neither_held_nor_free(tmp_path: Path) -> None:
    with locked_if_free(tmp_path / "nothing") as is_free:
        assert not is_free
    assert not is_locked(tmp_path / "nothing")
    with pytest.raises(Gone):
        take_lock(tmp_path / "nothing", wait=False)
