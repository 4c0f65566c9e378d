# SPDX-License-Identifier: Apache-2.0
"""An interrupted pack goes on, and ends with the bytes of an undisturbed one (real kills: slow/)."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feedrate import AppendOptions, PackOptions, append, pack, verify
from feedrate.errors import AlreadyExists, FeedrateError, NotFound, StorageError
from feedrate.files import atomic
from feedrate.packing.build import pack as making
from feedrate.packing.build import unfinished as unfinished_folder
from feedrate.packing.workers import run_tasks
from feedrate.progress import Tick
from support.images import read_tree, save_image
from support.worker_functions import die_on_one, divide_one_by, list_semaphores, make_lock

SMALL = PackOptions(shard_bytes=10_000, workers=1)


class Stop(Exception):
    pass


def stop_after(samples: int) -> Callable[[Tick], None]:
    def watch(tick: Tick) -> None:
        if tick.stage == "packing" and tick.done >= samples:
            raise Stop("stopped by the test")

    return watch


@pytest.fixture
def unfinished(jpeg_folder: Path, tmp_path: Path) -> Path:
    with pytest.raises(Stop, match="stopped by the test"):
        pack(jpeg_folder, tmp_path / "p", SMALL, watch=stop_after(9))
    assert (tmp_path / "p" / "packing.json").exists()
    return tmp_path / "p"


def test_interrupted_pack_goes_on_to_the_same_bytes(
    unfinished: Path, jpeg_folder: Path, tmp_path: Path
) -> None:
    result = pack(jpeg_folder, unfinished, SMALL)
    assert 0 < result.resumed_shards < result.shards
    pack(jpeg_folder, tmp_path / "undisturbed", SMALL)
    assert read_tree(unfinished) == read_tree(tmp_path / "undisturbed")


def test_rejections_of_the_first_run_are_in_the_second_runs_report(jpeg_folder: Path, tmp_path: Path) -> None:
    (jpeg_folder / "cat" / "bad.jpg").write_text("x")
    with pytest.raises(Stop, match="stopped by the test"):
        pack(jpeg_folder, tmp_path / "p", SMALL, watch=stop_after(17))
    assert [r.path for r in pack(jpeg_folder, tmp_path / "p", SMALL).rejected] == ["cat/bad.jpg"]


def test_interrupted_pack_is_no_pack_yet(unfinished: Path) -> None:
    with pytest.raises(NotFound, match="run the same 'feedrate pack' command again"):
        verify(unfinished)


def test_number_of_workers_may_change_when_going_on(unfinished: Path, jpeg_folder: Path) -> None:
    assert pack(jpeg_folder, unfinished, PackOptions(shard_bytes=10_000, workers=2)).samples == 16


def test_leftovers_of_killed_runs_are_cleaned_away(unfinished: Path, jpeg_folder: Path) -> None:
    (unfinished / ".shard-00001.tar.123-0123abcd.tmp").write_bytes(b"half")
    pack(jpeg_folder, unfinished, SMALL)
    assert not list(unfinished.glob(".*"))


def test_shard_that_lost_bytes_is_made_again(unfinished: Path, jpeg_folder: Path) -> None:
    shard = unfinished / "shard-00000.tar"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    pack(jpeg_folder, unfinished, SMALL)
    assert shard.read_bytes() == whole


def test_run_that_died_between_manifest_and_clean_up_ends_well(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_folder: Path) -> None:
        raise Stop("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr(unfinished_folder, "finish", die)
        with pytest.raises(Stop, match="stopped by the test"):
            pack(jpeg_folder, tmp_path / "p", SMALL)
    assert pack(jpeg_folder, tmp_path / "p", SMALL).samples == 16
    assert not (tmp_path / "p" / "packing.json").exists()


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (PackOptions(shard_bytes=10_000, seed=1), "seed is 1 here, 0 there"),
        (PackOptions(shard_bytes=20_000), "shard size is 20.0 KB here, 10.0 KB there"),
    ],
)
def test_unfinished_pack_with_other_settings_is_refused_by_the_difference(
    unfinished: Path, jpeg_folder: Path, options: PackOptions, difference: str
) -> None:
    with pytest.raises(AlreadyExists, match=f"unfinished pack of something else: {difference}"):
        pack(jpeg_folder, unfinished, options)


def test_unfinished_pack_of_a_source_that_grew_is_refused(unfinished: Path, jpeg_folder: Path) -> None:
    for n in range(12):
        save_image(jpeg_folder / "cat" / f"new{n}.jpg", n)
    with pytest.raises(AlreadyExists, match="the source has 12 files more than when packing began"):
        pack(jpeg_folder, unfinished, SMALL)


def test_unfinished_pack_of_a_source_that_was_touched_is_refused(unfinished: Path, jpeg_folder: Path) -> None:
    os.utime(jpeg_folder / "cat" / "1.jpg", (1, 1))
    with pytest.raises(AlreadyExists, match="other names, sizes or times"):
        pack(jpeg_folder, unfinished, SMALL)


def test_finished_pack_is_refused_and_untouched(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    before = read_tree(tmp_path / "p")
    with pytest.raises(
        AlreadyExists, match=r"already holds a finished pack of 16 samples \(seed is 3 here, 0 there\)"
    ):
        pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=10_000, seed=3))
    assert read_tree(tmp_path / "p") == before


def test_second_pack_into_the_same_folder_is_refused(jpeg_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    with open(tmp_path / "p" / ".packing.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AlreadyExists, match="another 'feedrate pack' is writing"):
            pack(jpeg_folder, tmp_path / "p", SMALL)
    assert pack(jpeg_folder, tmp_path / "p", SMALL).samples == 16


def test_too_little_room_is_said_before_packing(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"packing needs about \d+\.\d KB, .*p has 1\.00 KB free"):
        pack(jpeg_folder, tmp_path / "p", SMALL)


def test_full_disk_leaves_no_half_file_and_the_pack_goes_on_later(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls = iter(range(100))

    def fail_once(fd: int) -> None:
        if next(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(atomic.os, "fsync", fail_once)
    with pytest.raises(StorageError, match=r"the disk is full at .*p: shard-0000\d.* needs about .* free"):
        pack(jpeg_folder, tmp_path / "p", SMALL)
    assert not list((tmp_path / "p").glob(".*"))
    assert not (tmp_path / "p" / "pack.json").exists()
    pack(jpeg_folder, tmp_path / "p", SMALL)
    pack(jpeg_folder, tmp_path / "undisturbed", SMALL)
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "undisturbed")


def test_really_full_disk_is_a_sentence_also_from_a_worker(
    jpeg_folder: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(60):
        save_image(jpeg_folder / "cat" / f"big{n}.jpg", n)
    monkeypatch.setattr(making, "free_bytes", lambda _: 10**9)
    two = PackOptions(shard_bytes=20_000, workers=2)
    with pytest.raises(StorageError, match="the disk is full at"):
        pack(jpeg_folder, small_disk / "p", two)
    assert not list((small_disk / "p").glob(".*"))
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    pack(jpeg_folder, small_disk / "p", two)
    pack(jpeg_folder, tmp_path / "undisturbed", two)
    assert read_tree(small_disk / "p") == read_tree(tmp_path / "undisturbed")


def test_read_only_target_is_a_sentence(jpeg_folder: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageError, match=r"cannot write .*p: Read-only file system"):
        pack(jpeg_folder, small_disk / "p", SMALL)


def test_worker_that_dies_is_noticed() -> None:
    with pytest.raises(FeedrateError, match="a worker process died"):
        list(run_tasks(die_on_one, [0, 1, 2, 3], workers=2, size_bytes=0, watch=lambda *_: None))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_workers_share_nothing_that_a_kill_would_leave_behind() -> None:
    before = list_semaphores(0)
    of_workers = run_tasks(list_semaphores, range(3), workers=2, size_bytes=0, watch=lambda *_: None)
    found = [next(of_workers), list_semaphores(0) - before, *of_workers]
    assert found == [set()] * 4


def test_an_error_in_a_worker_comes_with_the_lines_that_raised_it() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_tasks(divide_one_by, [1, 0], workers=2, size_bytes=0, watch=lambda *_: None))
    assert "in divide_one_by" in str(caught.value.__cause__)


def test_an_answer_that_cannot_be_sent_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match=r"a worker's answer cannot be sent: .*lock"):
        list(run_tasks(make_lock, [0, 1], workers=2, size_bytes=0, watch=lambda *_: None))


def test_packing_json_names_no_path_of_the_machine(unfinished: Path, jpeg_folder: Path) -> None:
    assert str(jpeg_folder) not in (unfinished / "packing.json").read_text()
    assert set(json.loads((unfinished / "packing.json").read_text())) == {"settings", "source"}


def test_interrupt_ends_workers_and_leaves_a_pack_that_goes_on(jpeg_folder: Path, tmp_path: Path) -> None:
    # A process of its own, in its own group, since the signal goes to all of them as from a terminal.
    script = (
        "import os, signal, sys\nfrom feedrate.cli import main\nfrom feedrate.report import progress\n"
        "def update(self, tick):\n    if tick.stage == 'packing' and tick.done: os.killpg(0, signal.SIGINT)\n"
        "progress.ProgressBar.update = update\nif __name__ == '__main__': sys.exit(main())\n"
    )
    (tmp_path / "run.py").write_text(script)
    command = [
        sys.executable,
        tmp_path / "run.py",
        "pack",
        jpeg_folder,
        tmp_path / "p",
        "--shard-size",
        "10KB",
    ]
    done = subprocess.run(
        [*command, "--workers", "2"], capture_output=True, text=True, start_new_session=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("\nerror: interrupted\n\nhint: run the same command again to go on\n")
    assert not list((tmp_path / "p").glob(".*"))
    assert pack(jpeg_folder, tmp_path / "p", SMALL).samples == 16


def test_an_interrupt_that_meets_a_worker_at_its_start_is_the_parents_affair(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    # The whole group is interrupted when its first worker has been started, and imports what it needs.
    script = (
        "import os, signal, sys\nfrom feedrate.cli import main\nfrom feedrate.packing import workers\n"
        "start_worker = workers.start_worker\n"
        "def start(*fds):\n"
        "    process = start_worker(*fds)\n    os.killpg(0, signal.SIGINT)\n    return process\n"
        "workers.start_worker = start\nsys.exit(main())\n"
    )
    (tmp_path / "run.py").write_text(script)
    words = ["pack", jpeg_folder, tmp_path / "p", "--shard-size", "10KB", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, tmp_path / "run.py", *words],
        cwd=tmp_path, capture_output=True, text=True, start_new_session=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("error: interrupted\n\nhint: run the same command again to go on\n")
    assert not list((tmp_path / "p").glob(".*"))


def refuse_to_unlink(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = os.unlink

    def unlink(path: str, **words: int) -> None:
        if os.path.basename(path) == name:
            raise OSError(errno.EIO, "Input/output error")
        real(path, **words)

    monkeypatch.setattr(os, "unlink", unlink)


@pytest.mark.parametrize(
    ("container", "name"),
    [
        ("tar", "packing.listing"),
        ("tar", "packing.json"),
        ("hdf5", "packing.json"),
        ("hdf5", "part-00000.bin"),
    ],
)
def test_a_disk_that_fails_in_the_last_steps_is_a_sentence_and_the_pack_is_good(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str, name: str
) -> None:
    options = dataclasses.replace(SMALL, container=container)
    with monkeypatch.context() as patch:
        refuse_to_unlink(patch, name)
        with pytest.raises(StorageError, match=r"cannot write .*: Input/output error"):
            pack(jpeg_folder, tmp_path / "p", options)
    assert verify(tmp_path / "p", workers=1).problems == ()
    pack(jpeg_folder, tmp_path / "p", options)
    pack(jpeg_folder, tmp_path / "undisturbed", options)
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "undisturbed")


def test_a_lock_that_cannot_be_removed_is_in_nobodys_way(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse_to_unlink(patch, ".packing.lock")
        pack(jpeg_folder, tmp_path / "p", SMALL)
    save_image(tmp_path / "new" / "cat" / "new.jpg", 7)
    append(tmp_path / "new", tmp_path / "p", AppendOptions(workers=1))
    assert verify(tmp_path / "p", workers=1).extra_files == ()
