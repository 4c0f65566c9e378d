# SPDX-License-Identifier: Apache-2.0
"""Which copies go, and in which order; whatever the clock says, none that is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.files import lock as locks
from feedrate.scratch import eviction
from feedrate.scratch.clearing import Clearing, find_limit, make_room
from feedrate.scratch.commands import collect_garbage, list_scratch, remove_copies
from feedrate.scratch.copy import Copy
from feedrate.scratch.staging import open_staging
from support.images import read_tree
from support.scratch_copies import end, held_by_another, make_files, make_pack, names_in, stage, stage_half
from support.scratches import as_stranger

pytestmark = pytest.mark.usefixtures("no_fsync")

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scr"


@pytest.fixture
def three(tmp_path: Path, scratch: Path) -> list[Copy]:
    """Copies of about 3 KB each, used three, two and one days ago."""
    now = time.time()
    return [
        stage(make_files(tmp_path / f"f{number}"), scratch, used=now - (3 - number) * DAY_S)
        for number in range(3)
    ]


@pytest.fixture
def public_scratch() -> Iterator[Path]:
    """A folder that everybody may enter and write to, as /tmp is; those of pytest are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def left(copies: list[Copy]) -> list[int]:
    return [number for number, copy in enumerate(copies) if copy.is_complete()]


def clear(scratch: Path, now: float | None = None) -> Clearing:
    clearing = Clearing(scratch, now=now)
    clearing.remove_idle()
    return clearing


def test_a_copy_that_was_unused_for_longer_than_it_was_to_be_kept_goes(tmp_path: Path, scratch: Path) -> None:
    now = time.time()
    old = stage(make_files(tmp_path / "a"), scratch, keep_s=DAY_S, used=now - 2 * DAY_S)
    new = stage(make_files(tmp_path / "b"), scratch, keep_s=3 * DAY_S, used=now - 2 * DAY_S)
    forever = stage(make_files(tmp_path / "c"), scratch, keep_s=None, used=now - YEAR_S)
    result = collect_garbage(str(scratch))
    assert [one.path for one in result.removed] == [str(old.folder)]
    assert result.kept == ()
    assert new.is_complete()
    assert forever.is_complete()
    assert result.used_bytes == new.marker.size_bytes + forever.marker.size_bytes


@pytest.mark.parametrize("jump_s", [-30 * YEAR_S, -YEAR_S, -DAY_S / 2, 0.0], ids=["30 y", "1 y", "12 h", "0"])
def test_a_clock_that_was_set_back_makes_nothing_expire(tmp_path: Path, scratch: Path, jump_s: float) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch, keep_s=DAY_S)
    assert clear(scratch, time.time() + jump_s).result.removed == []
    assert copy.is_complete()


@pytest.mark.parametrize("jump_s", [-30 * YEAR_S, 0.0, 30 * YEAR_S], ids=["back", "none", "forward"])
def test_whatever_the_clock_says_a_copy_in_use_stays(tmp_path: Path, scratch: Path, jump_s: float) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch, keep_s=0.0, used=time.time() - DAY_S)
    with held_by_another(copy):
        clearing = clear(scratch, time.time() + jump_s)
        clearing.remove_oldest(0)
        assert clearing.result.removed == []
    assert copy.is_complete()


@pytest.mark.parametrize("jump_s", [-30 * YEAR_S, 0.0, 30 * YEAR_S], ids=["back", "none", "forward"])
def test_whatever_the_clock_says_the_only_copy_stays(tmp_path: Path, scratch: Path, jump_s: float) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch, keep_s=0.0, used=time.time() - DAY_S)
    shutil.rmtree(tmp_path / "a")
    clearing = clear(scratch, time.time() + jump_s)
    clearing.remove_oldest(0)
    assert clearing.result.removed == []
    assert "its source was not found as it was" in clearing.result.kept[0].why
    assert copy.is_complete()


def test_times_of_use_in_the_future_only_change_the_order(three: list[Copy], scratch: Path) -> None:
    os.utime(three[0].folder / "used", (time.time() + YEAR_S,) * 2)
    collect_garbage(str(scratch), limit_bytes=7000)
    assert left(three) == [0, 2]


def test_over_the_limit_the_longest_unused_go_first_and_no_more_than_needed(
    three: list[Copy], scratch: Path
) -> None:
    assert sum(copy.marker.size_bytes for copy in three) == 9009
    assert len(collect_garbage(str(scratch), limit_bytes=9009).removed) == 0
    result = collect_garbage(str(scratch), limit_bytes=9008)
    assert [one.path for one in result.removed] == [str(three[0].folder)]
    assert left(three) == [1, 2]
    assert result.used_bytes == 6006


def test_one_that_cannot_go_is_passed_over_for_the_next(three: list[Copy], scratch: Path) -> None:
    with three[0].lease():
        os.utime(three[0].folder / "used", (1, 1))
        result = collect_garbage(str(scratch), limit_bytes=7000)
    assert [one.path for one in result.kept] == [str(three[0].folder)]
    assert left(three) == [0, 2]


def test_using_a_copy_makes_it_the_newest(three: list[Copy], scratch: Path) -> None:
    three[0].lease().release()
    collect_garbage(str(scratch), limit_bytes=7000)
    assert left(three) == [0, 2]


def test_a_dry_run_says_the_same_and_deletes_nothing(three: list[Copy], scratch: Path) -> None:
    before = read_tree(scratch)
    trial = collect_garbage(str(scratch), limit_bytes=3500, is_trial=True)
    assert read_tree(scratch) == before
    assert left(three) == [0, 1, 2]
    real = collect_garbage(str(scratch), limit_bytes=3500)
    assert (trial.removed, trial.used_bytes) == (real.removed, real.used_bytes)


def test_the_limit_can_come_from_the_environment(three: list[Copy], scratch: Path) -> None:
    os.environ["FEEDRATE_SCRATCH_LIMIT"] = "3.5 KB"
    assert collect_garbage(str(scratch)).limit_bytes == 3500
    assert left(three) == [2]


def test_a_limit_in_the_environment_that_makes_no_sense_is_named() -> None:
    with pytest.raises(UsageError, match="FEEDRATE_SCRATCH_LIMIT: 'lots' is not a size"):
        find_limit({"FEEDRATE_SCRATCH_LIMIT": "lots"})


def test_a_copy_that_nobody_finishes_goes_and_one_that_somebody_does_stays(
    tmp_path: Path, scratch: Path
) -> None:
    dead, alive = (stage_half(make_pack(tmp_path / name), scratch) for name in "ab")
    with held_by_another(alive, "writer"):
        result = collect_garbage(str(scratch))
    assert [one.path for one in result.removed] == [str(dead.folder)]
    assert names_in(scratch) == [alive.folder.name]


def test_an_unfinished_copy_of_a_source_that_is_gone_stays_too(tmp_path: Path, scratch: Path) -> None:
    copy = stage_half(make_pack(tmp_path / "a"), scratch)
    shutil.rmtree(tmp_path / "a")
    assert collect_garbage(str(scratch)).removed == ()
    assert names_in(scratch) == [copy.folder.name]


class Killed(BaseException):
    """Ends an evictor at a place, as SIGKILL would; locks end with it."""


def kill_evictor(monkeypatch: pytest.MonkeyPatch, where: str, copy: Copy, *, after: bool = False) -> None:
    real = getattr(eviction, where)

    def die(*arguments: object, **options: object) -> None:
        if after:
            real(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(eviction, where, die)
        with pytest.raises(Killed):
            remove_copies([copy.folder.name], str(copy.folder.parents[1]))


@pytest.mark.parametrize(
    ("where", "after"), [("_delete_data", False), ("_delete_data", True), ("_delete_rest", True)]
)
def test_what_a_killed_evictor_left_goes_with_the_next_gc(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch)
    kill_evictor(monkeypatch, where, copy, after=after)
    is_gone = where == "_delete_rest"
    assert len(list_scratch(str(scratch)).folders[0].leftovers) == (0 if is_gone else 1)
    collect_garbage(str(scratch))
    assert names_in(scratch) == []


def test_what_a_killed_evictor_left_comes_back_when_the_source_is_gone(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch)
    before = read_tree(copy.folder)
    kill_evictor(monkeypatch, "_delete_data", copy)
    assert not copy.folder.exists()
    shutil.rmtree(tmp_path / "a")
    result = collect_garbage(str(scratch))
    assert len(result.restored) == 1
    assert read_tree(copy.folder) == before


def test_what_a_killed_evictor_left_stays_aside_when_another_copy_has_its_name(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch)
    kill_evictor(monkeypatch, "_delete_data", copy)
    stage(tmp_path / "a", scratch)
    shutil.rmtree(tmp_path / "a")
    assert [len(names_in(scratch)), len(collect_garbage(str(scratch)).kept)] == [2, 1]
    assert len(names_in(scratch)) == 2


def test_half_a_deleted_copy_is_staged_again_whole(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_files(tmp_path / "a")
    kill_evictor(monkeypatch, "_delete_data", stage(source, scratch), after=True)
    assert read_tree(stage(source, scratch).path) == read_tree(source)
    collect_garbage(str(scratch))
    assert len(names_in(scratch)) == 1


@pytest.mark.parametrize("names", [(), ("gate",), ("gate", ".copy.json.4711-01234567.tmp")], ids=len)
def test_what_a_killed_maker_left_goes(tmp_path: Path, scratch: Path, names: tuple[str, ...]) -> None:
    copy = stage(make_files(tmp_path / "a"), scratch)
    unmade = copy.folder.parent / ".b-0123456789ab.4711-01234567.tmp"
    unmade.mkdir()
    for name in names:
        (unmade / name).write_text("half")
    assert [one.why for one in collect_garbage(str(scratch)).removed] == ["a copy that was being made"]
    assert names_in(scratch) == [copy.folder.name]


def test_a_copy_that_is_being_made_stays_whatever_the_clock_says(tmp_path: Path, scratch: Path) -> None:
    source = make_files(tmp_path / "a")
    scratch.mkdir()
    told, telling = os.pipe()
    maker = os.fork()
    if not maker:

        def wait(*_: object, **__: object) -> None:
            os.write(telling, b"!")
            while True:
                signal.pause()

        os.rename = wait  # type: ignore[assignment]
        stage(source, scratch)
    try:
        assert os.read(told, 1) == b"!"
        made = names_in(scratch)
        clear(scratch, time.time() + YEAR_S)
        assert (len(made), names_in(scratch)) == (1, made)
    finally:
        end(maker)
    clear(scratch, time.time())
    assert names_in(scratch) == []


def test_a_copy_that_is_cleared_before_its_maker_has_locked_it_is_made_anew(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, real, cleared = make_files(tmp_path / "a"), locks.lock_fd, []

    def clear_and_lock(fd: int, *, wait: bool = True) -> bool:
        if wait and not cleared:
            cleared.append(True)
            cleared[:] = collect_garbage(str(scratch)).removed
        return real(fd, wait=wait)

    monkeypatch.setattr(locks, "lock_fd", clear_and_lock)
    assert read_tree(stage(source, scratch).path) == read_tree(source)
    assert [one.why for one in cleared] == ["a copy that was being made"]


def test_room_is_made_only_of_what_need_not_stay(tmp_path: Path, scratch: Path) -> None:
    now = time.time()
    expired = stage(make_files(tmp_path / "a"), scratch, keep_s=DAY_S, used=now - 2 * DAY_S)
    other = stage(make_files(tmp_path / "b"), scratch, used=now - 2 * DAY_S)
    assert make_room(scratch, 1000).removed == []
    assert [one.path for one in make_room(scratch, 2**60).removed] == [str(expired.folder)]
    assert other.is_complete()


def test_room_under_a_limit_is_made_of_the_longest_unused(three: list[Copy], scratch: Path) -> None:
    make_room(scratch, 3003, limit_bytes=9100)
    assert left(three) == [1, 2]


def test_staging_under_a_limit_evicts_the_longest_unused(
    three: list[Copy], tmp_path: Path, scratch: Path
) -> None:
    os.environ["FEEDRATE_SCRATCH_LIMIT"] = "9100"
    assert stage(make_files(tmp_path / "new"), scratch).is_complete()
    assert left(three) == [1, 2]


def test_staging_under_a_limit_says_which_copy_may_be_the_last_good_one(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(make_files(tmp_path / "old"), scratch)
    path = tmp_path / "old" / "part-0" / "values.bin"
    info = path.stat()
    path.write_bytes(b"?" * info.st_size)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    monkeypatch.setenv("FEEDRATE_SCRATCH_LIMIT", "4KB")
    said: list[str] = []
    with pytest.raises(StorageError, match=r"may take 4\.00 KB"):
        open_staging(make_files(tmp_path / "new"), scratch, say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"kept {copy.folder}, 3.00 KB: its source was not found as it was")
    assert copy.is_complete()


def test_copies_of_other_users_are_left_alone(three: list[Copy], scratch: Path) -> None:
    shutil.copytree(scratch / f"feedrate-{os.getuid()}", scratch / "feedrate-4711")
    before = read_tree(scratch / "feedrate-4711")
    collect_garbage(str(scratch), limit_bytes=1)
    assert left(three) == []
    assert read_tree(scratch / "feedrate-4711") == before


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "somebody else's"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
    return filler


def test_a_full_disk_stops_staging_with_a_sentence_and_gc_gives_the_space_back(
    tmp_path: Path, small_disk: Path
) -> None:
    remount(small_disk, "size=1m")
    source = make_files(tmp_path / "a")
    (source / "large.bin").write_bytes(bytes(300_000))
    free = os.statvfs(small_disk).f_bavail
    with open_staging(source, small_disk) as staging:
        filler = fill(small_disk)
        with pytest.raises(StorageError, match="the disk is full at"):
            staging.run()
    filler.unlink()
    assert read_tree(source) == {**read_tree(source), "large.bin": bytes(300_000)}
    result = collect_garbage(str(small_disk))
    assert [one.why for one in result.removed] == ["it was never finished, and nobody is copying"]
    assert os.statvfs(small_disk).f_bavail >= free - 4  # the folder feedrate-UID stays


def test_copies_can_be_deleted_from_a_disk_that_is_full(tmp_path: Path, small_disk: Path) -> None:
    remount(small_disk, "size=1m")
    copy = stage(make_files(tmp_path / "a"), small_disk)
    fill(small_disk)
    assert len(remove_copies([copy.folder.name], str(small_disk)).removed) == 1


def test_a_read_only_scratch_is_listed_and_nothing_else(tmp_path: Path, small_disk: Path) -> None:
    remount(small_disk, "size=1m")
    copy = stage(make_files(tmp_path / "a"), small_disk, keep_s=0.0, used=1.0)
    remount(small_disk, "ro")
    try:
        assert len(list_scratch(str(small_disk)).folders[0].copies) == 1
        assert "Read-only file system" in collect_garbage(str(small_disk)).kept[0].why
        assert "Read-only file system" in remove_copies([copy.folder.name], str(small_disk)).kept[0].why
        with pytest.raises(StorageError, match="Read-only file system"):
            open_staging(make_files(tmp_path / "b"), small_disk)
    finally:
        remount(small_disk, "rw")
    assert copy.is_complete()


def choices(copy: Copy) -> list[str]:
    return [copy.folder.name, str(copy.folder), str(copy.path), str(copy.path) + "/", copy.marker.address]


@pytest.mark.parametrize("number", range(5), ids=["name", "folder", "path", "path/", "source"])
def test_a_copy_is_named_by_its_name_path_or_source(three: list[Copy], scratch: Path, number: int) -> None:
    remove_copies([choices(three[1])[number]], str(scratch))
    assert left(three) == [0, 2]


def test_an_unknown_copy_is_not_found(three: list[Copy], scratch: Path) -> None:
    with pytest.raises(OSError, match="no copy 'nonsense' on this node"):
        remove_copies(["nonsense"], str(scratch))
    assert left(three) == [0, 1, 2]


def test_a_source_with_two_copies_must_be_told_apart(tmp_path: Path, scratch: Path) -> None:
    old = stage(make_files(tmp_path / "a"), scratch)
    new = stage(make_files(tmp_path / "a", count=4), scratch)
    with pytest.raises(UsageError, match="2 copies fit") as raised:
        remove_copies([str(tmp_path / "a")], str(scratch))
    assert old.folder.name in str(raised.value)
    assert new.folder.name in str(raised.value)


def test_a_limit_that_cannot_be_kept_refuses_before_anything_is_copied_or_deleted(
    three: list[Copy], tmp_path: Path, scratch: Path
) -> None:
    os.environ["FEEDRATE_SCRATCH_LIMIT"] = "4000"
    with three[0].lease(), pytest.raises(StorageError, match=r"where your copies take 9\.01 KB and may take"):
        stage(make_files(tmp_path / "new"), scratch)
    assert left(three) == [0, 1, 2]


def test_another_user_cannot_delete_a_copy(tmp_path: Path, public_scratch: Path) -> None:
    copy = stage(make_files(tmp_path / "a"), public_scratch)

    def look() -> list[object]:
        os.environ["XDG_STATE_HOME"] = "/nowhere"
        listed = len(list_scratch(str(public_scratch)).folders[0].copies)
        cleared = collect_garbage(str(public_scratch), limit_bytes=1)
        try:
            remove_copies([copy.folder.name], str(public_scratch))
        except (UsageError, NotFound) as error:
            return [listed, len(cleared.removed), str(error)]
        return []

    assert as_stranger(look) == [0, 0, f"no copy '{copy.folder.name}' on this node"]
    copy.folder.parent.chmod(0o755)  # as it is once there is a public copy
    assert as_stranger(look) == [1, 0, f"{copy.folder} belongs to root"]
    assert copy.is_complete()
