# SPDX-License-Identifier: Apache-2.0
"""A source is brought to scratch: once, whole, whoever joins or dies, never more readable than it was."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

import feedrate
from feedrate import AppendOptions, PackOptions, append, index, pack, verify
from feedrate.errors import NotFound, PackError, SourceError, StorageError, UsageError
from feedrate.machine.describe import find_node
from feedrate.machine.disk import Room
from feedrate.machine.memory import MemoryGauge
from feedrate.progress import Tick
from feedrate.remote.copier import Incoming
from feedrate.remote.transfer import Fetcher, Stopped
from feedrate.scratch import folder as scratch_module
from feedrate.scratch.commands import release_all, stage
from feedrate.scratch.listing import list_copies
from feedrate.scratch.staging import Staging, StagingOptions, open_staging
from support.images import read_tree
from support.packs import write_images
from support.scratches import Running, part_bytes, process, wait_for, write_tree
from support.sources import jpeg, write_tar

TREE = {"a.bin": b"a" * 5000, "below/b.bin": b"b" * 70, "below/deeper/c": b"", "d e.txt": b"\xff"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "set.pack", 24, shards=4)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may read, as are those above it."""
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def copied_tree(path: str) -> dict[str, bytes]:
    return read_tree(Path(path))


def test_a_staged_pack_has_the_bytes_of_its_source(source: Path, scratch: Path) -> None:
    result = stage(source, scratch)
    assert copied_tree(result.path) == read_tree(source)
    assert (result.kind, result.files, result.copied_files) == ("pack", 9, 9)
    assert result.size_bytes == result.copied_bytes == sum(map(len, read_tree(source).values()))
    assert Path(result.path).parent.name.startswith("set.pack-")


def test_the_second_who_wants_it_copies_nothing(source: Path, scratch: Path) -> None:
    first, second = stage(source, scratch), stage(source, scratch)
    assert second.path == first.path
    assert (second.copied_files, second.copied_bytes, second.is_joined) == (0, 0, False)


def test_a_staged_copy_is_held_while_the_process_lives(source: Path, scratch: Path) -> None:
    stage(source, scratch)
    (info,) = list_copies(scratch)
    assert os.getpid() in [lease.pid for lease in info.leases]
    assert info.is_complete


def test_feedrate_stage_is_a_function_whatever_was_imported_before(source: Path, scratch: Path) -> None:
    result = feedrate.stage(source, scratch)
    with feedrate.Loader(result, batch_size=8, fields=("label",), output="numpy") as loader:
        assert sum(len(labels) for (labels,) in loader) == 24


def test_a_folder_of_plain_files_is_staged(tmp_path: Path, scratch: Path) -> None:
    folder = write_tree(tmp_path / "plain", TREE)
    (folder / os.fsdecode(b"odd\xff")).write_bytes(b"not UTF-8")
    (folder / ".hidden").write_bytes(b"x")
    said: list[str] = []
    result = stage(folder, scratch, say=said.append)
    expected = {**TREE, os.fsdecode(b"odd\xff"): b"not UTF-8"}
    assert {
        str(p.relative_to(result.path)): p.read_bytes() for p in Path(result.path).rglob("*") if p.is_file()
    } == expected
    assert "left out: 1 hidden file or folder" in said
    times = [(folder / name).stat().st_mtime_ns for name in TREE]
    assert [(Path(result.path) / name).stat().st_mtime_ns for name in TREE] == times
    (info,) = list_copies(scratch)
    assert info.kind == "files"


def test_links_are_followed_and_a_loop_of_them_is_a_sentence(tmp_path: Path, scratch: Path) -> None:
    folder = write_tree(tmp_path / "plain", TREE)
    write_tree(tmp_path / "elsewhere", {"x": b"1"})
    os.symlink(tmp_path / "elsewhere", folder / "linked")
    assert copied_tree(stage(folder, scratch).path)["linked/x"] == b"1"
    os.symlink(folder / "below", folder / "below" / "loop")
    with pytest.raises(StorageError, match="below/loop is a link to a folder that it lies in"):
        stage(folder, scratch)
    os.unlink(folder / "below" / "loop")
    os.symlink("nowhere", folder / "lost")
    with pytest.raises(StorageError, match="lost is a link that leads nowhere"):
        stage(folder, scratch)


def test_a_file_that_vanishes_while_its_folder_is_listed_is_a_sentence(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tree(tmp_path / "plain", TREE)

    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr("feedrate.scratch.contents.Readers.add", fail)
    with pytest.raises(StorageError, match=f"cannot list {folder}: No such file"):
        stage(folder, scratch)


def test_staging_loads_no_event_loop() -> None:
    code = "import sys, feedrate.scratch.commands; print('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_single_file_is_staged(tmp_path: Path, scratch: Path) -> None:
    write_tree(tmp_path / "plain", TREE)
    result = stage(tmp_path / "plain" / "a.bin", scratch)
    assert Path(result.path).read_bytes() == TREE["a.bin"]
    assert Path(result.path).name == "a.bin"
    assert result.source == str(tmp_path / "plain" / "a.bin")


def test_a_remote_pack_folder_and_file_are_staged(source: Path, tmp_path: Path, scratch: Path) -> None:
    memory = fsspec.filesystem("memory")
    write_tree(tmp_path / "plain", TREE)
    memory.put(str(source), "/bucket/set.pack", recursive=True)
    memory.put(str(tmp_path / "plain"), "/bucket/plain", recursive=True)
    try:
        staged = stage("memory://bucket/set.pack", scratch)
        assert copied_tree(staged.path) == read_tree(source)
        assert not staged.is_public
        assert copied_tree(stage("memory://bucket/plain/", scratch).path) == TREE
        single = stage("memory://bucket/plain/a.bin", scratch)
        assert Path(single.path).read_bytes() == TREE["a.bin"]
        memory.rm("/bucket/set.pack/shard-00002.tar")
        with pytest.raises(
            NotFound, match=r"lacks one of its files: memory://bucket/set\.pack/shard-00002\.tar"
        ):
            stage("memory://bucket/set.pack", scratch)
    finally:
        memory.rm("/bucket", recursive=True)
    with pytest.raises(NotFound, match=r"no dataset at memory://bucket/set\.pack"):
        stage("memory://bucket/set.pack", scratch)


def test_a_source_that_is_not_there_gets_a_suggestion(source: Path, scratch: Path) -> None:
    with pytest.raises(NotFound, match=r"no pack, folder or file at .*set\.pak") as got:
        stage(str(source).replace(".pack", ".pak"), scratch)
    assert "holds 'set.pack'. Did you mean that?" in str(got.value.hint)


def test_a_pack_that_lacks_a_file_or_has_a_wrong_one_is_refused_before_anything_is_copied(
    source: Path, scratch: Path
) -> None:
    shard = source / "shard-00001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data + b"x")
    with pytest.raises(PackError, match=r"shard-00001\.tar has [\d,]+ bytes, and pack\.json says [\d,]+"):
        stage(source, scratch)
    shard.unlink()
    with pytest.raises(NotFound, match=r"the pack lacks one of its files: .*shard-00001\.tar"):
        stage(source, scratch)
    (source / "pack.json").unlink()
    with pytest.raises(NotFound, match="is an unfinished pack"):
        stage(source, scratch)
    assert list_copies(scratch) == []


def test_a_flipped_bit_in_the_source_is_not_copied(source: Path, scratch: Path) -> None:
    shard = source / "shard-00001.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        StorageError, match=r"shard-00001\.tar does not have the checksum that its pack\.json says"
    ):
        stage(source, scratch)
    (info,) = list_copies(scratch)
    assert not info.is_complete
    assert not (Path(info.path) / "shard-00001.tar").exists()


def test_a_pack_that_has_changed_is_another_copy(source: Path, scratch: Path) -> None:
    first, before = stage(source, scratch), read_tree(source)
    shutil.rmtree(source)
    write_images(source, 30, shards=4)
    second = stage(source, scratch)
    assert second.path != first.path
    assert copied_tree(second.path) == read_tree(source)
    assert copied_tree(first.path) == before


def test_a_plain_file_that_has_changed_is_another_copy(tmp_path: Path, scratch: Path) -> None:
    folder = write_tree(tmp_path / "plain", TREE)
    first = stage(folder, scratch)
    (folder / "a.bin").write_bytes(b"A" * 5000)
    os.utime(folder / "a.bin", ns=(1, 1))
    second = stage(folder, scratch)
    assert second.path != first.path
    assert copied_tree(second.path)["a.bin"] == b"A" * 5000


def test_files_that_vanished_or_were_cut_on_scratch_are_brought_again(source: Path, scratch: Path) -> None:
    path = Path(stage(source, scratch).path)
    (path / "shard-00000.tar").unlink()
    (path / "shard-00001.tar").write_bytes(b"cut")
    result = stage(source, scratch)
    assert result.copied_files == 2
    assert copied_tree(result.path) == read_tree(source)


class Gate:
    """Holds back every read of shards until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.is_reached = threading.Event()
        real = Fetcher.fetch

        def read(fetcher: Fetcher, file: Incoming, offset: int, length: int) -> bytes:
            if file.source.endswith(b".tar"):
                self.is_reached.set()
                assert self.open.wait(120)
            return real(fetcher, file, offset, length)

        monkeypatch.setattr(Fetcher, "fetch", read)


def test_who_comes_while_it_is_copied_joins(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    stagings = [open_staging(source, scratch) for _ in range(4)]
    runs = [Running(stagings[0])]
    assert gate.is_reached.wait(120)
    runs += [Running(staging) for staging in stagings[1:]]
    wait_for(lambda: all(staging.is_joined for staging in stagings[1:]), "the others to join")
    gate.open.set()
    for staging, running in zip(stagings, runs, strict=True):
        running.end()
        staging.close()
    assert [staging.copied_files for staging in stagings] == [9, 0, 0, 0]
    assert copied_tree(str(stagings[3].copy.path)) == read_tree(source)


STAGE_SLOWLY = """
import sys
from feedrate.scratch.commands import stage
stage(sys.argv[1], sys.argv[2], rate_limit=int(sys.argv[3]), streams=1)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Two megabytes in one file: at a low rate, the test has most of a minute to do what it will."""
    return write_tree(tmp_path / "large", {"x.bin": os.urandom(2_000_000), "y.bin": b"y"})


def test_a_killed_stage_is_gone_on_with_by_the_next(large: Path, scratch: Path) -> None:
    with process(STAGE_SLOWLY, large, scratch, 40_000) as child:
        wait_for(lambda: part_bytes(scratch) > 30_000, "a part to grow")
        child.send_signal(signal.SIGKILL)
        child.wait()
    result = stage(large, scratch)
    assert copied_tree(result.path) == read_tree(large)
    assert result.resumed_bytes > 30_000
    assert result.copied_bytes == result.size_bytes - result.resumed_bytes
    (info,) = list_copies(scratch)
    assert [lease.pid for lease in info.leases if lease.pid == child.pid] == []


def test_who_waits_takes_over_when_the_writer_is_killed(large: Path, scratch: Path) -> None:
    with process(STAGE_SLOWLY, large, scratch, 40_000) as child:
        wait_for(lambda: part_bytes(scratch) > 10_000, "a part to grow")
        with open_staging(large, scratch) as staging, Running(staging) as running:
            wait_for(lambda: staging.is_joined, "this process to join")
            child.send_signal(signal.SIGKILL)
            running.end()
            assert staging.copied_files == 2
            assert copied_tree(str(staging.copy.path)) == read_tree(large)


def test_who_waits_for_a_stopped_process_says_which_and_since_when(large: Path, scratch: Path) -> None:
    said: list[str] = []
    with process(STAGE_SLOWLY, large, scratch, 40_000) as child:
        wait_for(lambda: part_bytes(scratch) > 10_000, "a part to grow")
        with open_staging(large, scratch, say=said.append) as staging, Running(staging) as running:
            wait_for(lambda: said, "a word about the writer")
            child.send_signal(signal.SIGSTOP)
            wait_for(lambda: said[1:], "a word about its state")
            child.send_signal(signal.SIGKILL)
            running.end()
    writer = (
        rf"process {child.pid} of \S+ on {re.escape(find_node())} copies it, since \d\d:\d\d:\d\d on \d{{4}}-"
    )
    assert re.search(rf"^waiting: {writer}", said[0])
    assert re.search(rf"^waiting: {writer}.*; it is stopped: .*kill -CONT {child.pid}\b", said[1])
    assert len(said) == 2


def test_closing_stops_and_the_rest_comes_later(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_staging(source, scratch, options=StagingOptions(streams=1)) as staging:
        staging.bring(staging.contents.small)
        assert staging.copy.has_landed("pack.json")
        assert staging.copy.has_landed("shard-00003.arrow")
        with Running(staging, ["shard-00002.tar"]) as running:
            assert gate.is_reached.wait(120)
            threading.Timer(0, gate.open.set).start()
    assert list_copies(scratch)[0].leases == ()
    assert running.error is None
    with pytest.raises(Stopped):
        staging.run()
    assert copied_tree(stage(source, scratch).path) == read_tree(source)


def test_shards_land_in_the_order_that_was_asked_for(source: Path, scratch: Path) -> None:
    landed: list[str] = []

    def watch(_: Tick) -> None:
        new = [name for name in staging.copy.files if staging.copy.has_landed(name) and name not in landed]
        landed.extend(new)

    staging: Staging = open_staging(source, scratch, options=StagingOptions(streams=1))
    staging._watch = watch
    with staging:
        staging.bring(staging.contents.small)
        order = [f"shard-0000{n}.tar" for n in (2, 0, 3, 1)]
        for name in order:
            staging.bring([name])
    assert [name for name in landed if name.endswith(".tar")] == order


def test_progress_ends_at_the_whole(source: Path, scratch: Path) -> None:
    ticks: list[Tick] = []
    result = stage(source, scratch, watch=ticks.append)
    assert (ticks[-1].done, ticks[-1].total) == (9, 9)
    assert (ticks[-1].done_bytes, ticks[-1].total_bytes) == (result.size_bytes, result.size_bytes)
    assert all(a.done_bytes <= b.done_bytes for a, b in itertools.pairwise(ticks))


def modes(path: str) -> set[int]:
    """Return what others may do with the copy; not its leases, which users of root's copies add."""
    data = Path(path)
    paths = (data.parent, data.parent / "copy.json", data, *data.rglob("*"))
    return {stat.S_IMODE(p.stat().st_mode) & 0o077 for p in paths}


@pytest.mark.parametrize("private", ["", "a.bin", "below", ".."])
def test_a_copy_is_never_more_readable_than_its_source(public: Path, scratch: Path, private: str) -> None:
    folder = write_tree(public / "home" / "plain", TREE)
    for path in (public / "home", *(public / "home").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if private:
        (folder / private).chmod(0o700)
    result = stage(folder, scratch)
    assert result.is_public == (not private)
    assert modes(result.path) == ({0} if private else {0o55, 0o44})


def test_a_public_link_to_a_private_file_is_private(public: Path, tmp_path: Path, scratch: Path) -> None:
    write_tree(tmp_path / "secret", {"x": b"1"})  # below a folder that only this user may enter
    os.chmod(tmp_path, 0o700)
    write_tree(public / "plain", {"y": b"2"})
    os.chmod(public / "plain", 0o755)
    os.symlink(tmp_path / "secret" / "x", public / "plain" / "x")
    result = stage(public / "plain", scratch)
    assert not result.is_public
    assert modes(result.path) == {0}


def test_a_pack_of_files_in_other_folders_becomes_one_that_lies_together(
    tmp_path: Path, scratch: Path
) -> None:
    packs = []
    for name, classes in (("ant", ("ant", "ant", "bee")), ("bee", ("ant", "bee", "bee"))):
        write_tree(tmp_path / "images" / name, {f"{c}/{name}{n}.jpg": jpeg(n) for n, c in enumerate(classes)})
        pack(tmp_path / "images" / name, tmp_path / f"{name}.pack", PackOptions(workers=1))
        packs.append(tmp_path / f"{name}.pack")
    append(packs[1], packs[0], AppendOptions(prefix="more"))
    result = stage(packs[0], scratch)
    for folder in packs:
        shutil.rmtree(folder)
    assert verify(result.path, workers=1).problems == ()
    with feedrate.Loader(
        result.path, batch_size=6, fields=("label", "key"), shuffle=False, output="numpy"
    ) as loader:
        ((labels, keys),) = list(loader)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert sorted(keys)[0].startswith("ant/")


def test_shards_that_are_indexed_in_place_come_along(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "shards").mkdir()
    for part in range(2):
        files = {f"{part}{n}.{e}": d for n in range(3) for e, d in (("jpg", jpeg(n)), ("cls", b"%d" % n))}
        write_tar(tmp_path / "shards" / f"{part}.tar", files)
    index(tmp_path / "shards", tmp_path / "shards.index", workers=1)
    result = stage(tmp_path / "shards.index", scratch)
    shutil.rmtree(tmp_path / "shards")
    assert verify(result.path, workers=1).problems == ()


def test_an_index_of_single_files_is_refused(tmp_path: Path, scratch: Path) -> None:
    write_tree(tmp_path / "images", {f"ant/{n}.jpg": jpeg(n) for n in range(3)})
    index(tmp_path / "images", tmp_path / "images.index", workers=1)
    with pytest.raises(
        SourceError, match="is an index of single files, which would be copied one by one"
    ) as got:
        stage(tmp_path / "images.index", scratch)
    assert "feedrate pack" in str(got.value.hint)


def test_what_does_not_fit_is_refused_before_it_starts(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room, words in (
        (Room(1000, 10**6), "which has 1.00 KB free"),
        (Room(10**12, 3), r"the copy needs 14 files on .*, which takes 3 more"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(scratch_module, "measure_room", lambda _, room=room: room)
            with pytest.raises(StorageError, match=words):
                stage(source, scratch)
    for number, words in (
        (errno.EDQUOT, "your quota there does not allow it"),
        (errno.ENOSPC, "cannot be had"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(scratch_module, "try_to_reserve", lambda *_, number=number: OSError(number, ""))
            with pytest.raises(StorageError, match=words):
                stage(source, scratch)
    assert list(scratch.iterdir()) == []


def test_a_small_disk_refuses_and_stays_empty(tmp_path: Path, small_disk: Path) -> None:
    large = write_tree(tmp_path / "p", {"x": bytes(100_000)})
    with pytest.raises(StorageError, match=r"the copy needs 100 KB on .*disk, which has [\d.]+ KB free"):
        stage(large, small_disk)
    assert list(small_disk.iterdir()) == []


def test_memory_as_scratch_must_fit_into_the_job(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tree(tmp_path / "p", {"x": bytes(10_000)})
    said: list[str] = []
    assert Path(stage(folder, small_disk, say=said.append).path, "x").stat().st_size == 10_000
    assert any("that is memory" in sentence for sentence in said)
    release_all()  # or the disk could not be unmounted
    shutil.rmtree(small_disk / f"feedrate-{os.getuid()}")
    memory = replace(MemoryGauge().measure(), limit_bytes=15_000)
    monkeypatch.setattr(MemoryGauge, "measure", lambda _: memory)
    with pytest.raises(StorageError, match=r"which is memory, and this job may use 15\.0 KB in all"):
        stage(folder, small_disk)


def test_scratch_inside_of_the_source_and_a_copy_of_a_copy_are_refused(source: Path, scratch: Path) -> None:
    with pytest.raises(UsageError, match="lies in the source"):
        stage(source.parent, scratch)
    path = stage(source, scratch).path
    with pytest.raises(UsageError, match="is a copy on scratch already"):
        stage(path, scratch)


def test_a_longer_time_to_keep_wins(source: Path, scratch: Path) -> None:
    for keep, expected in (("1d", 86400), ("2d", 172800), ("1h", 172800), ("forever", None), ("1d", None)):
        assert stage(source, scratch, keep=keep).keep_s == expected
        assert list_copies(scratch)[0].keep_s == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": 0}, "streams must be at least 1, got 0"),
        ({"rate_limit": -1}, "rate_limit must be above 0 bytes per second, got -1"),
        ({"rate_limit": "fast"}, "'fast' is not a size"),
        ({"keep": "soon"}, "'soon' is not a time"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    source: Path, scratch: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        stage(source, scratch, **options)  # type: ignore[arg-type]


def test_a_copy_that_is_deleted_while_it_is_made_is_a_sentence(
    source: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_staging(source, scratch) as staging:
        running = Running(staging)
        assert gate.is_reached.wait(120)
        shutil.rmtree(staging.copy.folder)
        gate.open.set()
        running._thread.join(120)
        assert isinstance(running.error, StorageError)
        assert "was deleted while it was made" in str(running.error)


def test_many_small_files_are_synced_together_before_they_have_their_names(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tree(tmp_path / "plain", {f"{n}.txt": b"%d" % n for n in range(1100)})
    landed: list[int] = []

    def count(paths: Sequence[Path]) -> None:
        assert all(path.name.endswith(".part") for path in paths)
        landed.append(len([name for name in os.listdir(paths[0].parent) if not name.startswith(".")]))

    monkeypatch.setattr("feedrate.scratch.copy.sync_files", count)
    monkeypatch.setattr("feedrate.scratch.staging._TOGETHER", 512)
    result = stage(folder, scratch)
    assert result.copied_files == 1100
    assert len(os.listdir(result.path)) == 1100
    assert len(landed) == 3  # 512, 512 and 76
    assert landed[0] == 0


def test_a_few_small_files_do_not_wait_for_what_others_wrote_to_the_disk(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, []

    def fsync(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr("feedrate.files.atomic.sync_file_system", lambda _: pytest.fail("synced all"))
    assert stage(write_tree(tmp_path / "plain", TREE), scratch).copied_files == 4
    assert {f".{Path(name).name}.part" for name in TREE} <= set(synced)


def test_small_files_that_were_whole_when_it_was_killed_only_need_their_names(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tree(tmp_path / "plain", TREE)

    def fail(_: Sequence[Path]) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("feedrate.scratch.copy.sync_files", fail)
        with pytest.raises(StorageError, match=r"cannot write .*: Input/output error"):
            stage(folder, scratch)
    assert list_copies(scratch)[0].landed_files == 0
    result = stage(folder, scratch)
    assert (result.copied_files, result.copied_bytes) == (4, 0)
    assert copied_tree(result.path) == TREE


STAGE_AND_DIE_AT_A_SYNC = """
import os, signal, sys
from feedrate.scratch.commands import stage
from feedrate.scratch import copy as copies, staging
real, syncs = copies.sync_files, 0
def die_at_the_last(paths):
    global syncs
    syncs += 1
    if syncs == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(paths)
copies.sync_files, staging._TOGETHER = die_at_the_last, 40
stage(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("sync", [1, 3])
def test_killed_before_a_sync_only_what_was_synced_is_believed_and_what_was_cut_is_brought_again(
    tmp_path: Path, scratch: Path, sync: int
) -> None:
    files = {f"{n % 3}/{n}.bin": b"%d " % n * 50 for n in range(200)}
    folder = write_tree(tmp_path / "plain", files)
    with process(STAGE_AND_DIE_AT_A_SYNC, folder, scratch, sync) as child:
        assert child.wait() == -signal.SIGKILL
    (copy,) = list_copies(scratch)
    assert copy.landed_files < 200
    there = read_tree(Path(copy.path))
    assert {name: data for name, data in there.items() if not Path(name).name.startswith(".")}.items() <= (
        files.items()
    )
    # What a crash of the machine could do to bytes that nobody waited for.
    parts = sorted(path for path in Path(copy.path).rglob(".*.part"))
    assert len(parts) >= 40
    for part, size_bytes in zip(parts, itertools.cycle([0, 1, 20]), strict=False):
        os.truncate(part, size_bytes)
    assert copied_tree(stage(folder, scratch).path) == files
