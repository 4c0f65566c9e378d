# SPDX-License-Identifier: Apache-2.0
"""Disks without room: what is there already is used, and what cannot be written gets a sentence."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate import Loader, RandomResizedCrop, cached
from feedrate.cli import main
from feedrate.errors import StorageError
from feedrate.files.atomic import explain_write_error, write_file
from support.packs import write_images
from support.scratch_copies import stage


def fill(folder: Path) -> None:
    with open(folder / "fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def full(small_disk: Path, tmp_path: Path) -> Path:
    """A full disk with a finished copy of `tmp_path/p`."""
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    stage(write_images(tmp_path / "p", count=4), small_disk)
    fill(small_disk)
    return small_disk


def test_a_finished_copy_on_a_full_disk_is_staged_again(full: Path, tmp_path: Path) -> None:
    assert stage(tmp_path / "p", full).is_complete()


def test_a_finished_copy_on_a_full_disk_is_loaded(full: Path, tmp_path: Path) -> None:
    image = RandomResizedCrop(8)
    with Loader(tmp_path / "p", 2, fields=("image",), image=image, output="numpy", scratch=full) as loader:
        assert len(list(loader)) == 2


CACHING_LOADER = (
    "import sys\nfrom feedrate import Cache, Loader, RandomResizedCrop\n"
    "with Loader(sys.argv[1], 2, fields=('image',), image=RandomResizedCrop(8), output='numpy',"
    " cache=Cache()) as loader: print(len(list(loader)))"
)
CACHED_DATASET = (
    "import sys, numpy\nfrom feedrate import Dataset, cached\n"
    "samples = cached(Dataset(sys.argv[1], fields=('image',), output='numpy'))\n"
    "assert all(numpy.array_equal(samples[i], samples.dataset[i]) for _ in range(2) for i in range(4))\n"
    "print(2)"
)


@pytest.mark.parametrize("script", [CACHING_LOADER, CACHED_DATASET], ids=["Cache", "cached"])
def test_a_cache_does_without_a_full_shared_memory(tmp_path: Path, script: str) -> None:
    write_images(tmp_path / "p", count=4)
    mounted = "mount -t tmpfs -o size=64k tmpfs /dev/shm && { head -c 1m /dev/zero >/dev/shm/fill; true; }"
    command = ["unshare", "-m", "sh", "-c", f'{mounted} 2>/dev/null && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("mounting another /dev/shm needs root")
    done = subprocess.run([*command, sys.executable, "-c", script, tmp_path / "p"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr.decode()


@pytest.fixture
def full_loop(tmp_path: Path) -> Iterator[Path]:
    """A full ext4 in a file, as a node's own disk is one."""
    image, folder = tmp_path / "image", tmp_path / "loop"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(8 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], capture_output=True).returncode == 0
    if not made or subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode:
        pytest.skip("mounting a file needs root, mkfs.ext4 and a loop device")
    yield folder
    gc.collect()  # what an exception's frames hold keeps files open there
    subprocess.run(["umount", folder], check=True)


def test_a_loader_does_without_an_automatic_scratch_that_is_full(
    full_loop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "p", count=4)
    fill(full_loop)
    monkeypatch.setenv("SLURM_TMPDIR", str(full_loop))
    image = RandomResizedCrop(8)
    with Loader(tmp_path / "p", 2, fields=("image",), image=image, output="numpy", scratch="auto") as loader:
        assert len(list(loader)) == 2
    assert f"{tmp_path / 'p'} is read without a copy on scratch" in caplog.text
    assert sorted(path.name for path in full_loop.iterdir()) == ["fill", "lost+found"]


def test_staging_to_an_automatic_scratch_that_is_full_is_a_sentence(
    full_loop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "p", count=4)
    fill(full_loop)
    monkeypatch.setenv("SLURM_TMPDIR", str(full_loop))
    assert main(["stage", str(tmp_path / "p")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert str(full_loop) in said.err
    assert "\nhint: " in said.err


def test_copies_on_a_full_disk_are_cleared_away(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(full.rglob("pack.json"))
    assert main(["scratch", "gc", "--scratch", str(full), "--limit", "1B"]) == 0
    assert "deleted " in capsys.readouterr().out
    assert not list(full.rglob("pack.json"))
    assert os.statvfs(full).f_bavail > 0


def test_used_up_inodes_are_not_called_a_full_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", small_disk], check=True)
    (small_disk / "one").touch()
    with pytest.raises(StorageError, match=r"takes no more files \(its inodes are used up\)"):
        write_file(small_disk / "two", b"x")


@pytest.mark.parametrize("command", ["unpack", "pack", "index"])
def test_used_up_inodes_are_named_where_the_folder_itself_cannot_be_made(
    small_disk: Path, tmp_path: Path, jpeg_folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    source = write_images(tmp_path / "p", count=4) if command == "unpack" else jpeg_folder
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", small_disk], check=True)
    (small_disk / "one").touch()
    assert main([command, str(source), str(small_disk / "new" / "out")]) == 1
    assert f"the disk at {small_disk} takes no more files (its inodes are used up)" in capsys.readouterr().err


def test_staging_to_a_disk_without_inodes_says_so(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "p", count=4)
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", small_disk], check=True)
    (small_disk / "one").touch()
    assert main(["stage", str(tmp_path / "p"), "--scratch", str(small_disk)]) == 1
    said = capsys.readouterr().err
    assert f"cannot write to the scratch folder {small_disk}: its inodes are used up" in said


def test_a_cache_on_a_disk_without_inodes_says_so(full_loop: Path) -> None:
    (full_loop / "fill").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (full_loop / str(number)).touch()
    with pytest.raises(StorageError, match=r"cannot keep samples in .*: its inodes are used up"):
        cached([b"one", b"two"], ram=0, disk=f"{full_loop}:1MB", key="k")


def test_no_message_names_a_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        said = explain_write_error(OSError(errno.EIO, "Input/output error"), Path(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)
    assert str(said) == f"cannot write {tmp_path}: Input/output error"
