# SPDX-License-Identifier: Apache-2.0
"""Entry points are kept from process to process and from run to run: right ones, or none."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.cache.entry_file import LARGEST_VALUE
from feedrate.cache.entry_folder import LOCK, home_of
from feedrate.files.lock import locked_if_free
from feedrate.run import merging
from feedrate.run.inside import entries as inside
from feedrate.run.inside.entries import open_cache
from feedrate.run.merging import Merged, find_folder, merge
from support.entry_caches import (
    LENGTH,
    add_all,
    count_good,
    entries_file,
    fill,
    in_child,
    journals,
    make_place,
    value_of,
)
from support.scratches import NOT_ROOT, STRANGER


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


def look_again(entries: inside.Entries) -> None:
    for number in range(inside._LOOK_EVERY):
        entries.find(LENGTH, 10**9 + number)


def test_what_was_added_is_found_at_once_by_the_same_process(place: Path) -> None:
    mine = open_cache(str(place))
    for number in range(300):
        mine.add(LENGTH, number, value_of(number))
        assert mine.find(LENGTH, number) == value_of(number)
    assert count_good(mine, range(300)) == 300
    assert mine.problem == ""


def test_what_was_added_is_found_by_others_after_a_merge(place: Path) -> None:
    fill(place, range(1000))
    assert count_good(open_cache(str(place)), range(1000)) == 0
    merged = merge(place)
    assert (merged.records, merged.dropped, merged.problem) == (1000, 0, "")
    assert merged.size_bytes == entries_file(place).stat().st_size
    other = open_cache(str(place))
    assert count_good(other, range(1000)) == 1000
    assert count_good(other, range(1000, 2000)) == 0


def test_a_file_is_known_by_its_length_and_its_checksum_together(place: Path) -> None:
    mine = add_all(open_cache(str(place)), [7])
    merge(place)
    for entries in (mine, open_cache(str(place))):
        assert entries.find(LENGTH, 7) == value_of(7)
        assert entries.find(LENGTH + 1, 7) is None
        assert entries.find(LENGTH, 8) is None


def test_nothing_is_found_for_a_length_or_checksum_that_no_jpeg_has(place: Path) -> None:
    mine = open_cache(str(place))
    for length, crc in ((-1, 0), (1 << 32, 0), (LENGTH, -1), (LENGTH, 1 << 32)):
        mine.add(length, crc, b"")
        assert mine.find(length, crc) is None


def test_an_empty_value_is_found_as_such(place: Path) -> None:
    fill(place, [])
    mine = open_cache(str(place))
    mine.add(LENGTH, 5, b"")
    assert mine.find(LENGTH, 5) == b""
    mine.flush()
    merge(place)
    assert open_cache(str(place)).find(LENGTH, 5) == b""


def test_a_value_that_is_large_for_its_file_is_not_kept(place: Path) -> None:
    mine = open_cache(str(place))
    mine.add(6400, 1, bytes(101))
    mine.add(6400, 2, bytes(100))
    mine.add(1 << 31, 3, bytes(LARGEST_VALUE + 1))
    assert [mine.find(6400, 1), mine.find(6400, 2)] == [None, bytes(100)]
    assert mine.find(1 << 31, 3) is None


def test_the_largest_value_passes_through_a_journal_and_a_merge(place: Path) -> None:
    value = os.urandom(LARGEST_VALUE)

    def add() -> None:
        mine = open_cache(str(place))
        for number in range(5):
            mine.add(1 << 30, number, value)
        mine.flush()

    assert in_child(add) == 0
    assert merge(place).records == 5
    assert all(open_cache(str(place)).find(1 << 30, number) == value for number in range(5))


def test_of_two_values_for_one_file_the_later_one_holds(place: Path) -> None:
    fill(place, [7])
    merge(place)
    mine = open_cache(str(place))
    mine.add(LENGTH, 7, b"newer")
    assert mine.find(LENGTH, 7) == b"newer"
    mine.flush()
    del mine
    assert merge(place).records == 1
    assert open_cache(str(place)).find(LENGTH, 7) == b"newer"


def test_a_reader_finds_the_newer_file_by_itself(place: Path) -> None:
    reader = open_cache(str(place))
    for first in (0, 100):
        fill(place, range(first, first + 100))
        merge(place)
        look_again(reader)
        assert count_good(reader, range(200)) == first + 100


def test_a_reader_asks_for_the_files_facts_once_in_some_hundred_finds(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, asked = open_cache(str(place)), []
    monkeypatch.setattr(reader, "_look", lambda: asked.append(1))
    count_good(reader, range(3 * inside._LOOK_EVERY))
    assert len(asked) == 3


def test_the_journal_of_a_process_that_goes_on_is_read_and_stays(place: Path) -> None:
    mine = add_all(open_cache(str(place)), range(50))
    assert merge(place).records == 50
    assert len(journals(place)) == 1
    add_all(mine, range(50, 90))
    assert merge(place).records == 90
    assert count_good(open_cache(str(place)), range(90)) == 90


def test_a_process_that_sees_a_merge_begins_another_journal_and_the_old_one_goes(place: Path) -> None:
    mine = add_all(open_cache(str(place)), range(50))
    merge(place)
    look_again(mine)
    add_all(mine, range(50, 60))
    assert len(journals(place)) == 2
    merge(place)
    assert len(journals(place)) == 1
    assert count_good(mine, range(60)) == 60


def test_journals_of_ended_processes_go_when_they_were_taken(place: Path) -> None:
    for first in range(0, 40, 10):
        fill(place, range(first, first + 10))
    assert len(journals(place)) == 4
    assert merge(place).records == 40
    assert journals(place) == []


def test_more_journals_than_may_be_open_are_taken_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_MOST_JOURNALS", 3)
    for first in range(0, 80, 10):
        fill(place, range(first, first + 10))
    assert merge(place).records == 80
    assert journals(place) == []


def test_a_child_begins_a_journal_of_its_own_and_finds_what_is_kept(place: Path) -> None:
    fill(place, range(20))
    merge(place)
    mine = open_cache(str(place))
    mine.add(LENGTH, 20, value_of(20))  # waits

    def work() -> None:
        assert count_good(mine, range(20)) == 20
        assert mine.find(LENGTH, 20) is None
        add_all(mine, range(30, 50))

    assert in_child(work) == 0
    add_all(mine, range(21, 30))
    assert len(journals(place)) == 2
    assert merge(place).records == 50
    assert len(journals(place)) == 1  # the child's is gone: its lock ended with it


def test_a_killed_process_loses_no_more_than_what_waits(place: Path) -> None:
    def work() -> None:
        mine = add_all(open_cache(str(place)), range(20))
        mine.add(LENGTH, 20, b"waits")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert merge(place).records == 20
    assert journals(place) == []


def test_the_oldest_go_when_the_limit_is_reached(place: Path) -> None:
    limit = 80_000
    for first in range(0, 300, 50):
        fill(place, range(first, first + 50))
        merged = merge(place, limit_bytes=limit)
        assert merged.size_bytes == entries_file(place).stat().st_size <= limit
    assert merged.dropped > 0
    reader = open_cache(str(place))
    assert count_good(reader, range(300)) == merged.records
    assert count_good(reader, range(300 - merged.records, 300)) == merged.records > 50


def test_a_lower_limit_is_kept_though_nothing_was_added(place: Path) -> None:
    fill(place, range(100))
    before = merge(place)
    merged = merge(place, limit_bytes=before.size_bytes // 2)
    assert merged.records + merged.dropped == 100
    assert merged.size_bytes <= before.size_bytes // 2


def test_a_folder_that_is_full_takes_no_more(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LIMIT_BYTES", 1000)
    (place / "journal-large").write_bytes(bytes(1001))
    mine = add_all(open_cache(str(place)), range(10))
    assert mine.problem == ""
    assert merge(place).records == 0


def test_nothing_is_written_anew_where_nothing_was_added(place: Path) -> None:
    fill(place, range(100))
    first = merge(place)
    before = entries_file(place).stat()
    assert merge(place) == first
    mine = add_all(open_cache(str(place)), range(100))
    assert merge(place) == first
    assert entries_file(place).stat().st_mtime_ns == before.st_mtime_ns
    assert mine.problem == ""


def test_while_a_command_runs_only_much_is_merged(place: Path) -> None:
    mine = add_all(open_cache(str(place)), range(20))
    assert merge(place, is_last=False) == Merged()
    add_all(mine, range(20, 400))
    assert merge(place, is_last=False).records == 400
    look_again(mine)  # it begins another journal
    add_all(mine, range(400, 440))
    assert merge(place, is_last=False) == Merged()
    assert count_good(open_cache(str(place)), range(440)) == 400
    assert merge(place).records == 440


def test_a_journal_that_was_taken_whole_does_not_make_a_merge_worth_while(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = add_all(open_cache(str(place)), range(400))
    merge(place)
    monkeypatch.setattr(merging, "_read_entries", None)  # nothing is read
    assert merge(place, is_last=False) == Merged()
    assert count_good(mine, range(400)) == 400


def test_a_merge_leaves_it_to_another_that_is_at_work(place: Path) -> None:
    fill(place, range(10))
    with locked_if_free(place / LOCK):
        assert merge(place) == Merged()
    assert merge(place).records == 10


def test_where_there_are_no_locks_nothing_is_kept_and_that_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for module in (inside, merging):
        monkeypatch.setattr(module, "lock_fd", refuse)
    mine = add_all(open_cache(str(place)), range(100))
    assert "No locks available; name another folder: --cache DIR" in mine.problem
    assert "No locks available" in merge(place).problem
    assert journals(place) == []
    said: list[str] = []
    assert find_folder(place.parent, say=said.append) == place
    assert "No locks available" in said[0]


def test_without_a_folder_nothing_is_kept() -> None:
    mine = add_all(open_cache(None), range(10))
    assert count_good(mine, range(10)) == 0
    assert mine.problem == ""


def test_a_folder_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    mine = add_all(open_cache(str(tmp_path / "gone"), said.append), range(10))
    mine.flush()
    assert count_good(mine, range(10)) == 0
    assert mine.problem == (
        f"entry points of JPEGs are not kept in {tmp_path}/gone: No such file or directory;"
        " name another folder: --cache DIR"
    )
    assert said == [mine.problem]


def test_a_folder_that_goes_away_is_said_and_costs_nothing_else(place: Path) -> None:
    mine = add_all(open_cache(str(place)), range(10))
    shutil.rmtree(place)
    look_again(mine)
    add_all(mine, range(10, 20))
    assert count_good(mine, range(10)) == 10
    assert "could not be brought up to date: No such file" in merge(place).problem


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_read(place: Path, mode: int) -> None:
    fill(place, range(10))
    merge(place)
    place.chmod(mode)
    mine = add_all(open_cache(str(place)), range(5))
    assert count_good(mine, range(10)) == 0
    assert "can be written to by other users" in mine.problem
    assert "can be written to by other users" in merge(place).problem
    said: list[str] = []
    assert find_folder(place.parent, say=said.append) is None
    assert "can be written to by other users" in said[0]


def test_a_file_that_others_may_write_to_is_not_read_and_is_replaced(place: Path) -> None:
    fill(place, range(10))
    merge(place)
    entries_file(place).chmod(0o620)
    assert count_good(open_cache(str(place)), range(10)) == 0
    fill(place, range(20, 25))
    assert merge(place).records == 5
    assert count_good(open_cache(str(place)), range(30)) == 5


@pytest.mark.skipif(os.getuid() != 0, reason=NOT_ROOT)
def test_files_of_somebody_else_are_not_read(place: Path) -> None:
    fill(place, range(10))
    (journal,) = journals(place)
    os.chown(journal, STRANGER, STRANGER)
    assert merge(place).records == 0
    os.chown(journal, 0, 0)
    assert merge(place).records == 10
    os.chown(entries_file(place), STRANGER, STRANGER)
    assert count_good(open_cache(str(place)), range(10)) == 0
    os.chown(place, STRANGER, STRANGER)
    assert "belongs to 54321" in open_cache(str(place)).problem


def test_pipes_and_links_of_our_names_are_passed_over(place: Path, tmp_path: Path) -> None:
    os.mkfifo(entries_file(place))
    os.mkfifo(place / "journal-pipe")
    (place / "journal-link").symlink_to(tmp_path / "anything")
    mine = add_all(open_cache(str(place)), range(10))
    assert merge(place).records == 10
    assert count_good(open_cache(str(place)), range(10)) == count_good(mine, range(10)) == 10


def test_a_descriptor_that_the_script_closed_and_opened_anew_is_not_written_to(place: Path) -> None:
    def work() -> None:
        mine = add_all(open_cache(str(place)), range(10))
        os.closerange(3, 100)
        flags = os.O_WRONLY | os.O_CREAT
        theirs = [os.open(place.parent / f"theirs-{number}", flags) for number in range(20)]
        add_all(mine, range(10, 20))
        assert count_good(mine, range(20)) == 0
        assert mine.problem
        del mine
        assert [os.write(fd, b"fine") for fd in theirs] == [4] * 20

    assert in_child(work) == 0
    assert {path.read_bytes() for path in place.parent.glob("theirs-*")} == {b"fine"}


# Damage: any of a folder's files, anywhere. What is found is right.


def damage(data: bytes, at: int, how: str, what: bytes) -> bytes:
    at %= len(data)
    if how == "cut":
        return data[:at]
    if how == "insert":
        return data[:at] + what + data[at:]
    return data[:at] + what + data[at + len(what) :]


@given(
    at=st.integers(0, 2**40),
    how=st.sampled_from(["cut", "insert", "overwrite"]),
    what=st.binary(min_size=1, max_size=40),
    is_journal=st.booleans(),
)
def test_damage_of_a_file_gives_no_wrong_value_and_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: int, how: str, what: bytes, is_journal: bool
) -> None:
    place = make_place(tmp_path_factory.mktemp("damage"))
    numbers = range(40)
    mine = add_all(open_cache(str(place)), numbers)
    if not is_journal:
        del mine
        merge(place)
    reader = open_cache(str(place))
    path = journals(place)[0] if is_journal else entries_file(place)
    changed = damage(path.read_bytes(), at, how, what)
    with open(path, "r+b") as file:  # in place: a reader has it open
        file.write(changed)
        file.truncate()
    count_good(mine if is_journal else reader, numbers)
    count_good(open_cache(str(place)), numbers)
    assert merge(place).problem == ""
    assert count_good(open_cache(str(place)), numbers) >= (30 if how == "overwrite" else 0)


def test_every_byte_of_a_small_file_may_be_wrong(place: Path) -> None:
    fill(place, range(3))
    merge(place)
    path, reader = entries_file(place), open_cache(str(place))
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (1, 128):
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ bit]))
            count_good(reader, range(3))
            count_good(open_cache(str(place)), range(3))
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(whole[at : at + 1])
    assert count_good(reader, range(3)) == 3


def test_a_record_that_is_moved_under_another_key_is_not_found(place: Path) -> None:
    fill(place, [1, 2])
    merge(place)
    data = entries_file(place).read_bytes()
    head, rows = data[:72], [data[72:88], data[88:104]]
    forged = head + rows[0][:8] + rows[1][8:] + rows[1][:8] + rows[0][8:] + data[104:]
    entries_file(place).write_bytes(forged)
    assert count_good(open_cache(str(place)), [1, 2]) == 0


def test_a_damaged_file_is_made_anew_of_what_is_good_in_it(place: Path) -> None:
    fill(place, range(100))
    merge(place)
    with open(entries_file(place), "r+b") as file:
        file.write(b"nothing")
    assert count_good(open_cache(str(place)), range(100)) == 0
    assert merge(place).records == 100
    assert count_good(open_cache(str(place)), range(100)) == 100


# The folder.


def test_the_folder_is_made_below_the_users_cache_folder(tmp_path: Path) -> None:
    place = find_folder(environ={"XDG_CACHE_HOME": str(tmp_path / "c")})
    assert place == tmp_path / "c" / "feedrate" / f"feedrate-entries-{os.getuid()}"
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_wished_for_is_made(tmp_path: Path) -> None:
    assert find_folder(tmp_path / "a" / "b") == home_of(tmp_path / "a" / "b")
    assert home_of(tmp_path / "a" / "b").is_dir()


def test_without_a_home_there_is_no_folder_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    said: list[str] = []
    assert find_folder(environ={"XDG_CACHE_HOME": "relative"}, say=said.append) is None
    assert said == [
        "entry points of JPEGs are not kept for the next run: there is no home folder;"
        " name another folder: --cache DIR"
    ]


def test_a_wish_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    assert find_folder(tmp_path / "file", say=said.append) is None
    assert "file/feedrate-entries-0 cannot be written to: Not a directory" in said[0].replace(
        f"-{os.getuid()}", "-0"
    )


def test_a_disk_that_fills_up_is_said_and_what_is_there_is_found(small_disk: Path) -> None:
    said: list[str] = []
    assert find_folder(small_disk, say=said.append) is not None
    said.clear()
    place = home_of(small_disk)
    fill(place, range(10))
    merge(place)
    mine = add_all(open_cache(str(place), said.append), range(10, 200))
    mine.flush()
    assert said == [mine.problem]
    assert "No space left on device; name another folder: --cache DIR" in mine.problem
    assert count_good(mine, range(10)) == 10
    assert find_folder(small_disk, say=said.append) == place
    assert "No space left on device" in said[-1]
    assert "the disk is full" in merge(place).problem
    assert count_good(open_cache(str(place)), range(10)) == 10
