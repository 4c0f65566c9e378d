# SPDX-License-Identifier: Apache-2.0
"""What is staged where is remembered in the home folder, and no outage there troubles anybody."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from feedrate.machine.describe import find_node
from feedrate.scratch.commands import list_everywhere
from feedrate.scratch.listing import find_registry, forget, recall, remember
from feedrate.scratch.results import StagedCopy
from support.scratch_copies import evict_copy, make_pack, stage

pytestmark = pytest.mark.usefixtures("no_fsync")

ENTRY = StagedCopy("n1", "/scr", "/scr/feedrate/7/a-1", "/scr/feedrate/7/a-1/data", "/nfs/a", 10, 5.0, None)


def test_what_is_remembered_is_recalled_by_node_and_folder() -> None:
    other = replace(ENTRY, node="n0", keep_s=3.5)
    assert remember(ENTRY)
    assert remember(other)
    assert recall() == [other, ENTRY]


def test_the_same_copy_is_remembered_once() -> None:
    remember(ENTRY)
    remember(replace(ENTRY, size_bytes=20))
    assert [copy.size_bytes for copy in recall()] == [20]


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    remember(ENTRY)
    forget(ENTRY.node, ENTRY.folder)
    forget(ENTRY.node, ENTRY.folder)
    assert list(find_registry().iterdir()) == []


@pytest.mark.parametrize("node", ["..", ".", "a/b", "ü", ""])
def test_any_name_of_a_node_stays_inside_the_registry(node: str) -> None:
    before = sorted(find_registry().parent.parent.rglob("*"))
    remember(replace(ENTRY, node=node))
    assert [copy.node for copy in recall()] == [node]
    new = set(find_registry().parent.parent.rglob("*")) - set(before)
    assert all(path.is_relative_to(find_registry()) or find_registry().is_relative_to(path) for path in new)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"node": 1}', b"\xff", b"[" * 5000])
def test_an_entry_that_cannot_be_read_is_passed_over(text: bytes) -> None:
    remember(ENTRY)
    (next(find_registry().glob("node-*")) / "x.json").write_bytes(text)
    assert recall() == [ENTRY]


def test_a_folder_that_goes_away_while_it_is_read_or_written_troubles_nobody() -> None:
    other = replace(ENTRY, folder="/scr/feedrate/7/b-2")
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            remember(other)
            forget(other.node, other.folder)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(1000):
            assert remember(ENTRY)
            assert ENTRY in recall()
            forget(ENTRY.node, ENTRY.folder)
            recall()
    finally:
        is_over.set()
        thread.join()


def test_a_home_folder_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "file")
    assert not remember(ENTRY)
    assert recall() == []
    assert stage(make_pack(tmp_path / "p"), tmp_path / "scr").is_complete()


def test_staging_remembers_and_evicting_forgets(tmp_path: Path) -> None:
    copy = stage(make_pack(tmp_path / "p"), tmp_path / "scr", keep_s=60.0)
    (entry,) = list_everywhere().copies
    assert (entry.node, entry.path, entry.source) == (find_node(), str(copy.path), str(tmp_path / "p"))
    assert (entry.keep_s, entry.size_bytes) == (60.0, copy.marker.size_bytes)
    evict_copy(copy)
    assert list_everywhere().copies == ()


def test_copies_of_other_nodes_are_listed_though_they_are_not_seen_here() -> None:
    remember(ENTRY)
    assert list_everywhere().copies == (ENTRY,)


def test_entries_are_plain_json_of_the_user_alone() -> None:
    remember(ENTRY)
    (path,) = find_registry().glob("*/*.json")
    assert json.loads(path.read_text())["source"] == "/nfs/a"
