# SPDX-License-Identifier: Apache-2.0
"""Entry points that `feedrate run` keeps: listed, and deleted when nobody uses them; only what is ours."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from feedrate.cache.entry_folder import LOCK, delete_entries
from feedrate.report.scratch import draw_cleared, draw_scratch
from feedrate.run.inside.entries import open_cache
from feedrate.run.merging import find_folder, merge
from feedrate.scratch.commands import collect_garbage, list_scratch, remove_copies
from feedrate.scratch.results import CacheInfo
from support.entry_caches import count_good, entries_file, fill, make_place
from support.scratches import process

DAYS = 86400.0
USE = """
import sys
sys.path.insert(0, sys.argv[2])
from support.entry_caches import add_all, open_cache
mine = open_cache(sys.argv[1])
if len(sys.argv) > 3:
    add_all(mine, range(5))
print("open", flush=True)
sys.stdin.read()
"""
TESTS = Path(__file__).parent.parent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = make_place(tmp_path)
    fill(made, range(12))
    merge(made)
    return made


def caches(scratch: Path) -> tuple[CacheInfo, ...]:
    (folder,) = list_scratch(str(scratch)).folders
    return folder.caches


def test_entry_points_are_listed_with_their_size_and_when_they_were_used(place: Path) -> None:
    then = time.time() - 2 * DAYS
    os.utime(place / LOCK, (then, then))
    (cache,) = caches(place.parent)
    assert (cache.path, cache.samples, cache.users, cache.is_being_filled) == (str(place), 12, (), False)
    assert cache.size_bytes == sum(path.stat().st_size for path in place.iterdir())
    text = draw_scratch(list_scratch(str(place.parent)))
    assert "0 copies, 0 B; 1 cache, " in text
    assert f"{place.name}  " in text
    assert "2 days ago  nobody" in text


def test_those_of_the_home_folder_are_listed_where_no_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert [folder.caches for folder in list_scratch().folders if folder.caches] == []
    place = find_folder()
    assert place is not None
    (folder,) = (folder for folder in list_scratch().folders if folder.scratch == str(place.parent))
    assert folder.why == "feedrate run keeps entry points there"
    assert [cache.path for cache in folder.caches] == [str(place)]
    assert [one.path for one in remove_copies([place.name]).removed] == [str(place)]
    assert not place.exists()


def test_a_run_that_opens_them_counts_as_a_use(place: Path) -> None:
    os.utime(place / LOCK, (0, 0))
    open_cache(str(place))
    assert caches(place.parent)[0].used > time.time() - DAYS


@pytest.mark.parametrize("is_adding", [True, False])
def test_entry_points_in_use_are_shown_as_such_and_stay(place: Path, is_adding: bool) -> None:
    with process(USE, place, TESTS, *["add"] * is_adding) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        (cache,) = caches(place.parent)
        assert cache.users == (child.pid,)
        assert cache.is_being_filled == is_adding
        (kept,) = remove_copies([place.name], str(place.parent)).kept
        assert kept.why == (
            "it is in use: a run adds entry points to it"
            if is_adding
            else f"it is in use: process {child.pid} has files of it open"
        )
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(remove_copies([place.name], str(place.parent)).removed) == 1
    assert not place.exists()


@pytest.mark.parametrize("how", ["name", "path"])
def test_entry_points_are_deleted_by_name_or_path_and_made_anew(place: Path, how: str) -> None:
    result = remove_copies([place.name if how == "name" else str(place)], str(place.parent))
    assert f"deleted {place}, " in draw_cleared(result)
    assert not place.exists()
    fill(make_place(place.parent), range(3))
    assert merge(place).records == 3


@pytest.mark.parametrize(("days", "is_gone"), [(6.9, False), (7.1, True)])
def test_gc_deletes_entry_points_that_no_run_has_used_for_seven_days(
    place: Path, days: float, is_gone: bool
) -> None:
    then = time.time() - days * DAYS
    os.utime(place / LOCK, (then, then))
    trial = collect_garbage(str(place.parent), is_trial=True)
    assert place.exists()
    result = collect_garbage(str(place.parent))
    assert place.exists() != is_gone
    assert [one.path for one in result.removed] == [one.path for one in trial.removed]


def test_a_folder_with_somebody_elses_file_in_it_stays(place: Path) -> None:
    (place / "results.csv").write_text("mine")
    assert delete_entries(place) == "it holds results.csv, which feedrate did not put there"
    assert count_good(open_cache(str(place)), range(12)) == 12


def test_a_folder_without_our_marker_stays(place: Path) -> None:
    (place / LOCK).write_text("something else")
    assert delete_entries(place) == "it carries no marker of feedrate"
    assert entries_file(place).exists()


def test_a_link_in_the_place_of_the_folder_is_neither_listed_nor_followed(place: Path) -> None:
    moved = place.parent / "moved"
    place.rename(moved)
    place.symlink_to(moved)
    assert caches(place.parent) == ()
    assert delete_entries(place) == "it is no folder of feedrate"
    assert entries_file(moved).exists()
