# SPDX-License-Identifier: Apache-2.0
"""Walks through folders: what cannot be entered or read is left out, or named."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

from feedrate.files import tree
from feedrate.files.tree import sample_folder
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


def test_a_sample_of_a_folder_counts_all_and_keeps_some_names(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number}.JPG").touch()
    (tmp_path / "table.csv").touch()
    (tmp_path / ".hidden.jpg").touch()
    (tmp_path / "inside").mkdir()
    found = sample_folder(str(tmp_path), frozenset({".jpg"}), keep=10, until=math.inf)
    assert found.is_whole
    assert (found.wanted, found.others, found.folders) == ({".jpg": 500}, {".csv": 1}, ["inside"])
    assert len(set(found.kept)) == 10
    assert all((tmp_path / name).exists() for name in found.kept)


def test_every_name_is_kept_as_likely_as_any_other(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jpg").touch()
    seen = Counter(
        name
        for _ in range(200)
        for name in sample_folder(str(tmp_path), frozenset({".jpg"}), keep=10, until=math.inf).kept
    )
    assert len(seen) == 40
    assert max(seen.values()) < 3 * min(seen.values())


def test_a_folder_that_takes_too_long_is_listed_in_part(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.jpg").touch()
    found = sample_folder(str(tmp_path), frozenset({".jpg"}), keep=10, until=0.0)
    assert not found.is_whole
    assert 0 < found.entries < 300
    assert len(found.kept) == 10
