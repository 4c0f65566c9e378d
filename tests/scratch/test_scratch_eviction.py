# SPDX-License-Identifier: Apache-2.0
"""Eviction deletes what it may, and everything that could lose something leaves the copy where it is."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedrate import PackOptions, append, pack, split
from feedrate.files.lock import Gone
from feedrate.files.tree import opened_folder, remove_known
from feedrate.scratch import eviction, source_check
from feedrate.scratch.clearing import opened_home
from feedrate.scratch.copy import Copy
from feedrate.scratch.eviction import Kept, SourceUnseen, evict
from feedrate.scratch.listing import remember_copy
from support.images import read_tree, save_image
from support.scratch_copies import (
    end,
    evict_copy,
    held_by_another,
    make_files,
    make_pack,
    names_in,
    stage,
    stage_half,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scr"


@pytest.fixture(params=[make_pack, make_files], ids=["pack", "files"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: Path = request.param(tmp_path / "long-term" / "source")
    return made


def assert_kept(copy: Copy, words: str, **options: object) -> None:
    """Not only kept: whole, and in its place."""
    before = read_tree(copy.folder)
    with pytest.raises(Kept, match=words):
        evict_copy(copy, **options)
    assert read_tree(copy.folder) == before
    assert [name for name in names_in(copy.folder.parents[1]) if name.startswith(".")] == []


def test_a_copy_whose_source_is_there_goes_and_the_source_stays(source: Path, scratch: Path) -> None:
    before = read_tree(source)
    evict_copy(stage(source, scratch))
    assert names_in(scratch) == []
    assert read_tree(source) == before


def test_evicting_twice_finds_nothing(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    evict_copy(copy)
    with pytest.raises(Gone):
        evict_copy(copy)


def test_a_single_file_goes_too(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "data.h5").write_bytes(b"numbers")
    evict_copy(stage(tmp_path / "data.h5", scratch))
    assert names_in(scratch) == []


def some_file(folder: Path) -> Path:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "pack.json")[-1]


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


LOSSES: dict[str, Callable[[Path], object]] = {
    "all of it gone": shutil.rmtree,
    "one file gone": lambda source: some_file(source).unlink(),
    "one file cut short": lambda source: os.truncate(some_file(source), 5),
    "one file longer": lambda source: some_file(source).write_bytes(some_file(source).read_bytes() + b"more"),
    "one file with other bytes": lambda source: rewrite(some_file(source)),
    "one file a folder": lambda source: refold(some_file(source)),
    "one file a link to nowhere": lambda source: relink(some_file(source), Path("/nowhere")),
    "one file a pipe": lambda source: repipe(some_file(source)),
}


def refold(path: Path) -> None:
    path.unlink()
    path.mkdir()


def relink(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def repipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_the_only_copy_stays(source: Path, scratch: Path, loss: str) -> None:
    copy = stage(source, scratch)
    LOSSES[loss](source)
    with pytest.raises(SourceUnseen):
        evict_copy(copy)
    assert copy.is_complete()


def test_the_only_copy_goes_when_the_user_says_so(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    shutil.rmtree(source)
    evict_copy(copy, even_if_the_source_is_gone=True)
    assert names_in(scratch) == []


def test_a_pack_that_was_packed_anew_keeps_the_copy_of_the_old_one(tmp_path: Path, scratch: Path) -> None:
    copy = stage(make_pack(tmp_path / "p"), scratch)
    make_pack(tmp_path / "p", count=7)
    assert_kept(copy, "when it was copied|is not what was copied")


def test_a_pack_json_of_the_same_size_and_time_but_other_bytes_is_seen(tmp_path: Path, scratch: Path) -> None:
    path = make_pack(tmp_path / "p") / "pack.json"
    copy, info = stage(tmp_path / "p", scratch), path.stat()
    path.write_bytes(path.read_bytes().replace(b'"emu"', b'"gnu"'))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert_kept(copy, "pack.json is not what was copied")


def rot(path: Path) -> None:
    """Change one byte, and neither size nor time of change."""
    info = path.stat()
    rewrite(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.mark.parametrize("is_trial", [False, True], ids=["deleting", "trial"])
def test_a_source_that_rots_keeps_its_copy(source: Path, scratch: Path, is_trial: bool) -> None:
    copy = stage(source, scratch)
    rot(some_file(source))
    assert_kept(copy, "it is damaged, and the copy may be the last good one", is_trial=is_trial)


def test_a_rotten_source_keeps_what_a_killed_process_had_copied(tmp_path: Path, scratch: Path) -> None:
    """The checksums of plain files are written down when all have landed."""
    copy = stage_half(make_files(tmp_path / "set"), scratch)
    rot(tmp_path / "set" / "part-0" / "values.bin")
    assert_kept(copy, r"part-0/values\.bin has other bytes than those that were copied")


def test_what_an_unfinished_copy_does_not_hold_need_not_be_read(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage_half(make_files(tmp_path / "set", count=5), scratch)
    read, checksum = [], source_check._checksum
    monkeypatch.setattr(
        source_check,
        "_checksum",
        lambda contents, file: (read.append(file.name), checksum(contents, file))[1],
    )
    evict_copy(copy)
    assert sorted(read) == ["part-0/values.bin", "part-1/values.bin"]


def test_the_bytes_of_a_source_are_read_once(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(source, scratch)
    read, checksum = [], source_check._checksum
    monkeypatch.setattr(
        source_check,
        "_checksum",
        lambda contents, file: (read.append(file.name), checksum(contents, file))[1],
    )
    evict_copy(copy)
    assert sorted(read) == sorted(copy.files)


def test_a_source_that_is_written_to_between_the_looks_brings_the_copy_back(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(source, scratch)
    see = eviction.stat_source

    def rot_then(marker: Any) -> Any:
        if not copy.folder.exists():
            rot(some_file(source))
        return see(marker)

    monkeypatch.setattr(eviction, "stat_source", rot_then)
    assert_kept(copy, "it is damaged|changed while it was looked at")


def test_a_source_is_not_read_for_a_copy_that_is_in_use(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(source, scratch)
    monkeypatch.setattr(eviction, "compare_bytes", lambda *_: pytest.fail("the source was read"))
    with held_by_another(copy):
        assert_kept(copy, "it is in use")


def test_a_source_that_was_only_touched_is_read_and_found_the_same(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    for path in source.rglob("*"):
        os.utime(path)
    evict_copy(copy)
    assert names_in(scratch) == []


def test_a_source_that_is_now_a_link_to_the_copy_is_the_copy(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    shutil.rmtree(source)
    source.symlink_to(copy.path)
    assert_kept(copy, "lies in it")


def test_a_file_of_the_source_that_is_now_a_link_into_the_copy_is_the_copy(
    source: Path, scratch: Path
) -> None:
    copy = stage(source, scratch)
    path = some_file(source)
    relink(path, copy.data / path.relative_to(source))
    assert_kept(copy, "is the copy itself")


def test_a_file_of_the_source_that_is_a_second_name_of_the_copys_is_the_copy(
    source: Path, scratch: Path
) -> None:
    copy = stage(source, scratch)
    path = some_file(source)
    path.unlink()
    os.link(copy.data / path.relative_to(source), path)
    assert_kept(copy, "is the copy itself")


def test_a_source_that_vanishes_with_the_copy_brings_it_back(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server serves the copy under the source's address: no inode tells."""
    copy = stage(source, scratch)
    see = eviction.stat_source

    def see_by_server(marker: Any) -> Any:
        if not copy.folder.exists():
            raise eviction.NotAsCopied("404")
        return see(marker)

    monkeypatch.setattr(eviction, "stat_source", see_by_server)
    assert_kept(copy, "404")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(5, "Input/output error")], ids=["Ctrl-C", "EIO"]
)
def test_whatever_ends_the_second_look_brings_the_copy_back(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    copy = stage(source, scratch)
    see = eviction.stat_source

    def fail_then(marker: Any) -> Any:
        if not copy.folder.exists():
            raise error
        return see(marker)

    monkeypatch.setattr(eviction, "stat_source", fail_then)
    with pytest.raises((KeyboardInterrupt, Kept)):
        evict_copy(copy)
    assert names_in(scratch) == [copy.folder.name]
    assert copy.is_complete()


def test_a_pack_of_files_in_several_folders_stays_when_one_folder_is_gone(
    tmp_path: Path, scratch: Path
) -> None:
    for name in ("a", "b"):
        for number in range(3):
            save_image(tmp_path / "images" / name / f"{name}{number}.jpg", number)
        pack(tmp_path / "images" / name, tmp_path / name, PackOptions(workers=1))
    append(tmp_path / "b", tmp_path / "a")
    copy = stage(tmp_path / "a", scratch)
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    assert_kept(copy, "is not there")
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    evict_copy(copy)
    assert names_in(scratch) == []


def test_a_file_that_somebody_put_into_the_copy_keeps_it(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    (copy.path / "results.csv").write_text("epoch,loss")
    assert_kept(copy, "it holds data/results.csv, which feedrate did not put there")
    assert_kept(copy, "results.csv", even_if_the_source_is_gone=True)


def test_a_file_of_the_copy_that_was_written_to_keeps_it(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    rewrite(some_file(copy.path))
    assert_kept(copy, "was changed after it was copied")


def test_a_split_that_was_made_in_the_copy_keeps_it(tmp_path: Path, scratch: Path) -> None:
    copy = stage(make_pack(tmp_path / "p"), scratch)
    split(copy.path, {"train": 0.5, "test": 0.5})
    assert_kept(copy, "did not put there|was changed")


def test_a_copy_in_use_by_another_process_stays_until_that_is_killed(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    with held_by_another(copy) as process:
        assert_kept(copy, f"it is in use: process {process} of ", even_if_the_source_is_gone=True)
        end(process)
        evict_copy(copy)
    assert names_in(scratch) == []


def test_a_copy_that_is_being_made_stays_until_its_maker_is_killed(source: Path, scratch: Path) -> None:
    copy = stage_half(source, scratch)
    with held_by_another(copy, "writer") as process:
        assert_kept(copy, "it is being copied right now", even_if_the_source_is_gone=True)
        end(process)
        evict_copy(copy)
    assert names_in(scratch) == []


@pytest.mark.parametrize("how", ["open", "mapped", "cwd"])
def test_a_copy_that_a_program_without_a_lease_reads_stays(source: Path, scratch: Path, how: str) -> None:
    copy = stage(source, scratch)
    told, telling = os.pipe()
    process = os.fork()
    if not process:
        if how == "cwd":
            os.chdir(copy.data)
        else:
            fd = os.open(some_file(copy.data), os.O_RDONLY)
            held = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            if how == "mapped":
                os.close(fd)
            else:
                held.close()
        os.write(telling, b"!")
        while True:
            signal.pause()
    try:
        assert os.read(told, 1) == b"!"
        assert_kept(copy, f"it is in use: process {process} has files of it open")
    finally:
        end(process)
    evict_copy(copy)
    assert names_in(scratch) == []


def test_who_holds_the_gate_keeps_the_copy(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    with copy.take_gate():
        assert_kept(copy, "somebody is just taking it into use")


def test_a_lease_cannot_be_had_of_a_copy_on_its_way_out(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = stage(source, scratch)
    delete = eviction._delete_data
    refused = []

    def meanwhile(fd: int, marker: object) -> None:
        with pytest.raises(Gone):
            copy.lease()
        refused.append(True)
        delete(fd, marker)  # type: ignore[arg-type]

    monkeypatch.setattr(eviction, "_delete_data", meanwhile)
    evict_copy(copy)
    assert refused == [True]


def test_a_copy_that_another_copy_was_made_of_stays(source: Path, tmp_path: Path, scratch: Path) -> None:
    first = stage(source, scratch)
    second = stage(first.path, tmp_path / "scr2")
    assert_kept(first, "which a copy was made of", sources=[second.marker.address])


def test_two_copies_of_each_other_do_not_both_go(source: Path, tmp_path: Path, scratch: Path) -> None:
    """The source was replaced by a link to the copy's copy: each is all that the other has."""
    first = stage(source, scratch)
    second = stage(first.path, tmp_path / "scr2")
    content = read_tree(first.path)
    shutil.rmtree(source)
    source.symlink_to(second.path)
    evict_copy(first)
    assert_kept(second, "is not there")
    assert read_tree(second.path) == content


def test_a_copy_that_lies_in_what_was_staged_stays(source: Path, tmp_path: Path, scratch: Path) -> None:
    assert_kept(stage(source, scratch), "it lies in", sources=[str(tmp_path)])


def foreign(scratch: Path) -> Path:
    folder = scratch / f"feedrate-{os.getuid()}" / "mine-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years")
    return folder


def evict_folder(folder: Path) -> None:
    with opened_home(folder.parents[1]) as home:
        assert home is not None
        evict(home, folder.name, even_if_the_source_is_gone=True)


def test_a_folder_without_our_marker_stays(scratch: Path) -> None:
    folder = foreign(scratch)
    with pytest.raises(Kept, match="carries no marker"):
        evict_folder(folder)
    assert (folder / "thesis.tex").exists()


@pytest.mark.parametrize(
    "marker",
    [
        "", "{}", '{"format": "feedrate-copy", "version": 99}',
        '{"format": "feedrate-copy", "version": 1, "kind": "files", "source": "/", "digest": "'
        + "0" * 64 + '", "entry": "", "is_public": false, "keep_s": null, "created": 0, "made_by": {},'
        ' "files": [["../thesis.tex", 5, null, 0]]}',
    ],
    ids=["empty", "no format", "of another version", "a name that leads out"],
)  # fmt: skip
def test_a_folder_whose_marker_is_not_ours_stays(scratch: Path, marker: str) -> None:
    folder = foreign(scratch)
    (folder / "copy.json").write_text(marker)
    with pytest.raises(Kept, match=r"its copy\.json is"):
        evict_folder(folder)
    assert (folder / "thesis.tex").exists()


def test_links_are_never_followed(source: Path, tmp_path: Path, scratch: Path) -> None:
    """Every folder of a copy, and its files, replaced by a link to a look-alike that must stay."""
    copy = stage(source, scratch)
    parts = [copy.folder, copy.data, copy.folder / "leases", some_file(copy.data)]
    for part in parts:
        precious = tmp_path / "precious"
        part.rename(precious)
        part.symlink_to(precious)
        before = read_tree(precious) if precious.is_dir() else precious.read_bytes()
        with pytest.raises(Kept):
            evict_copy(copy, even_if_the_source_is_gone=True)
        assert (read_tree(precious) if precious.is_dir() else precious.read_bytes()) == before
        part.unlink()
        precious.rename(part)
    evict_copy(copy)


def test_a_folder_above_that_is_a_link_is_not_looked_into(
    source: Path, tmp_path: Path, scratch: Path
) -> None:
    copy = stage(source, scratch)
    above = copy.folder.parent
    above.rename(tmp_path / "moved")
    above.symlink_to(tmp_path / "moved")
    before = read_tree(tmp_path / "moved")
    with pytest.raises(OSError, match="cannot look into"):
        evict_copy(copy)
    assert read_tree(tmp_path / "moved") == before


def test_a_folder_that_others_may_write_to_is_not_cleared(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    copy.folder.parent.chmod(0o777)
    with pytest.raises(OSError, match="nothing is deleted there"):
        evict_copy(copy)
    assert copy.is_complete()


def test_a_source_mounted_over_the_copy_is_not_emptied(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    data = os.path.realpath(copy.data)  # the copy knows it by a descriptor, which `mount` does not have
    done = subprocess.run(["mount", "--bind", source, data], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr}")
    try:
        before = read_tree(source)
        with pytest.raises(Kept):
            evict_copy(copy)
        with pytest.raises(Kept):
            evict_copy(copy, even_if_the_source_is_gone=True)
        assert read_tree(source) == before
    finally:
        subprocess.run(["umount", "-R", data], check=True)


def test_a_copy_whose_locks_were_deleted_by_hand_can_still_be_deleted(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    for name in ("gate", "writer", "used"):
        (copy.folder / name).unlink()
    evict_copy(copy)
    assert names_in(scratch) == []


def test_a_copy_that_was_emptied_by_hand_needs_no_source_to_go(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    shutil.rmtree(copy.data)
    shutil.rmtree(source)
    evict_copy(copy)
    assert names_in(scratch) == []


def test_what_a_trial_looks_at_stays(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    remember_copy(copy, scratch)
    evict_copy(copy, is_trial=True)
    assert copy.is_complete()


def test_a_file_of_another_size_is_seen_though_its_time_is_the_same(source: Path, scratch: Path) -> None:
    copy = stage(source, scratch)
    path = some_file(source)
    info = path.stat()
    os.truncate(path, info.st_size - 1)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert_kept(copy, "when it was copied")


def test_of_many_files_in_one_folder_all_go_but_those_that_are_not_ours(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "below"
    folder.mkdir(parents=True)
    for number in range(300):
        (folder / f"{number}.bin").touch()
    (folder / "150.link").symlink_to(folder / "7.txt")
    (folder / "7.txt").touch()
    with opened_folder(str(tmp_path / "data")) as fd:
        left = remove_known(fd, lambda path: path.endswith((".bin", ".link")))
    assert sorted(left) == ["below/150.link", "below/7.txt"]
    assert sorted(os.listdir(folder)) == ["150.link", "7.txt"]
