# SPDX-License-Identifier: Apache-2.0
"""Walks through folders: what cannot be entered or read is left out, or named."""

from __future__ import annotations

import os
from pathlib import Path

from feedrate.files import tree
from feedrate.remote.addresses import Place


def test_links_that_lead_nowhere_or_in_a_circle_are_no_files_of_a_place(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"1")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.tar").write_bytes(b"12")
    os.symlink("a.tar", tmp_path / "c.tar")
    os.symlink("loop", tmp_path / "loop")
    os.symlink("gone", tmp_path / "lost")
    os.symlink("below", tmp_path / "other")
    found = [(file.path, file.size_bytes) for file in Place(str(tmp_path)).walk()]
    assert found == [(b"a.tar", 1), (b"c.tar", 1), (b"below/b.tar", 2)]


def test_sizes_are_measured_beside_what_cannot_be_read(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"12345")
    os.symlink(tmp_path / "a" / "f", tmp_path / "link")
    os.symlink("gone", tmp_path / "b" / "lost")
    assert tree.measure_files(tmp_path) == {"a/f": 5, "b/f": 5, "c/f": 5, "link": 5}
    assert tree.measure_files(tmp_path / "nothing") == {}
