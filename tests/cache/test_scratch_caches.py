# SPDX-License-Identifier: Apache-2.0
"""Caches with a key on scratch: listed, and deleted when nobody uses them; nothing but what is ours."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from test_cached_kept import Numbers, fill, place

import feedrate
from feedrate.cache.persistent import NAMES, delete_cache, home_of
from feedrate.errors import NotFound
from feedrate.report.scratch import draw_cleared, draw_scratch
from feedrate.scratch.commands import collect_garbage, list_scratch, remove_copies
from feedrate.scratch.results import CacheInfo
from support.scratch_copies import find_copy, make_files, stage
from support.scratches import process

USE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import feedrate
from test_cached_kept import Numbers
dataset = feedrate.cached(Numbers(), ram=0, disk=sys.argv[1] + ":10MB", key="k")
dataset[0]
print("open", flush=True)
sys.stdin.read()
"""
DAYS = 86400.0


def caches(scratch: Path) -> tuple[CacheInfo, ...]:
    (folder,) = list_scratch(str(scratch)).folders
    return folder.caches


def make_old(scratch: Path, days: float) -> Path:
    then = time.time() - days * DAYS
    os.utime(place(scratch) / "lock", (then, then))
    return place(scratch)


def test_a_cache_is_listed_with_its_size_and_when_it_was_used(tmp_path: Path) -> None:
    fill(tmp_path)
    make_old(tmp_path, 2)
    (cache,) = caches(tmp_path)
    assert (cache.path, cache.samples, cache.users) == (str(place(tmp_path)), 12, ())
    assert cache.size_bytes >= 12 * 10_000
    assert not cache.is_being_filled
    text = draw_scratch(list_scratch(str(tmp_path)))
    assert "0 copies, 0 B; 1 cache, " in text
    assert f"{place(tmp_path).name}  " in text
    assert "2 days ago  nobody" in text


def test_copies_and_caches_are_two_tables(tmp_path: Path) -> None:
    fill(tmp_path)
    stage(make_files(tmp_path / "s"), tmp_path)
    text = draw_scratch(list_scratch(str(tmp_path)))
    (_, *copies), (head, cache) = (part.splitlines() for part in text.split("\n\n"))
    assert copies[0].startswith("  NAME  ")
    assert head.split() == ["CACHE", "SIZE", "SAMPLES", "LAST", "USED", "IN", "USE", "BY"]
    assert cache.index("12  ") == head.index("SAMPLES")


def test_a_cache_in_use_is_shown_as_such_and_stays(tmp_path: Path) -> None:
    with process(USE, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        (cache,) = caches(tmp_path)
        assert child.pid in cache.users
        assert cache.is_being_filled
        assert "1 process, being filled" in draw_scratch(list_scratch(str(tmp_path)))
        (kept,) = remove_copies([cache.path], str(tmp_path)).kept
        assert kept.why == "it is in use: a job adds samples to it"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(remove_copies([cache.path], str(tmp_path)).removed) == 1
    assert caches(tmp_path) == ()


def test_a_job_that_only_reads_a_cache_is_a_user_too(tmp_path: Path) -> None:
    mine = feedrate.cached(Numbers(), ram=0, disk=f"{tmp_path}:10MB", key="k")
    mine[0]
    with process(USE, tmp_path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        mine.close()
        why = delete_cache(place(tmp_path))
        assert why == f"it is in use: process {child.pid} has files of it open"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert delete_cache(place(tmp_path)) == ""
    assert list(home_of(str(tmp_path)).iterdir()) == []


@pytest.mark.parametrize("how", ["name", "path"])
def test_a_cache_is_deleted_by_name_or_path_and_copies_stay(tmp_path: Path, how: str) -> None:
    fill(tmp_path)
    copy = stage(make_files(tmp_path / "source"), tmp_path)
    found = place(tmp_path)
    result = remove_copies([found.name if how == "name" else str(found)], str(tmp_path))
    assert [one.path for one in result.removed] == [str(found)]
    assert not found.exists()
    assert find_copy(tmp_path).folder == str(copy.folder)
    assert f"deleted {found}, " in draw_cleared(result)


def test_a_name_that_is_no_cache_and_no_copy_is_not_found(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(NotFound, match="no copy 'cached' on this node"):
        remove_copies(["cached"], str(tmp_path))
    assert len(caches(tmp_path)) == 1


@pytest.mark.parametrize(("days", "is_gone"), [(6.9, False), (7.1, True), (-400, False)])
def test_gc_deletes_caches_that_no_job_has_used_for_seven_days(
    tmp_path: Path, days: float, is_gone: bool
) -> None:
    fill(tmp_path)
    found = make_old(tmp_path, days)
    trial = collect_garbage(str(tmp_path), is_trial=True)
    assert found.exists()
    result = collect_garbage(str(tmp_path))
    assert found.exists() != is_gone
    assert [one.path for one in result.removed] == [one.path for one in trial.removed]
    assert [one.why for one in result.removed] == ["no job has used this cache for 7 days"] * is_gone


def test_the_next_job_makes_a_deleted_cache_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    remove_copies([place(tmp_path).name], str(tmp_path))
    assert fill(tmp_path).made == 9
    assert fill(tmp_path).made == 0


def test_a_cache_with_somebody_elses_file_in_it_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    (place(tmp_path) / "results.csv").write_text("mine")
    (kept,) = remove_copies([place(tmp_path).name], str(tmp_path)).kept
    assert kept.why == "it holds results.csv, which feedrate did not put there"
    assert {path.name for path in place(tmp_path).iterdir()} == {*NAMES, "results.csv"}


def test_a_folder_without_our_marker_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    (place(tmp_path) / "lock").write_text("something else")
    (kept,) = remove_copies([place(tmp_path).name], str(tmp_path)).kept
    assert kept.why == "it carries no marker of feedrate"
    assert (place(tmp_path) / "data").stat().st_size > 100_000


def test_links_are_not_followed(tmp_path: Path) -> None:
    fill(tmp_path)
    found, moved = place(tmp_path), tmp_path / "moved"
    found.rename(moved)
    found.symlink_to(moved)
    assert caches(tmp_path) == ()
    assert delete_cache(found) == "it is no folder of feedrate"
    (moved / "data").rename(tmp_path / "data")
    (moved / "data").symlink_to(tmp_path / "data")
    assert delete_cache(moved) == "it holds data, which feedrate did not put there"
    assert (tmp_path / "data").stat().st_size > 100_000


DIE_WHILE_DELETING = """
import os, signal, sys
from pathlib import Path
from feedrate.cache.persistent import delete_cache
unlinks = 0
def die(name, arguments):
    global unlinks
    if name == "os.remove":
        unlinks += 1
        if unlinks == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
delete_cache(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_a_killed_deletion_left_is_in_nobodys_way_and_can_be_deleted(
    tmp_path: Path, number: int
) -> None:
    fill(tmp_path)
    for is_used_again in (False, True):
        with process(DIE_WHILE_DELETING, place(tmp_path), number) as child:
            assert child.wait() == -signal.SIGKILL
        if is_used_again:
            assert fill(tmp_path).made == (0 if number == 1 else 9)
            assert fill(tmp_path).made == 0
        assert delete_cache(place(tmp_path)) == ""
        assert list(home_of(str(tmp_path)).iterdir()) == []
        fill(tmp_path)


DELETE_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
from feedrate.cache.persistent import delete_cache, list_places
deleted = 0
print("begun", flush=True)
while deleted < 20:
    for place in list_places(sys.argv[1]):
        deleted += not delete_cache(place)
print(deleted)
"""


def test_jobs_that_come_while_their_cache_is_deleted_get_the_right_samples(tmp_path: Path) -> None:
    with process(DELETE_AGAIN_AND_AGAIN, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        while child.poll() is None:
            fill(tmp_path, count=3)  # checks what it gets
        assert child.returncode == 0
