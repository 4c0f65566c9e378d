# SPDX-License-Identifier: Apache-2.0
"""Disks without room: what is there already is used, and what cannot be written gets a sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate import Loader, RandomResizedCrop
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


def test_a_cache_does_without_a_full_shared_memory(tmp_path: Path) -> None:
    write_images(tmp_path / "p", count=4)
    script = (
        "import sys\nfrom feedrate import Cache, Loader, RandomResizedCrop\n"
        "with Loader(sys.argv[1], 2, fields=('image',), image=RandomResizedCrop(8), output='numpy',"
        " cache=Cache()) as loader: print(len(list(loader)))"
    )
    mounted = "mount -t tmpfs -o size=64k tmpfs /dev/shm && { head -c 1m /dev/zero >/dev/shm/fill; true; }"
    command = ["unshare", "-m", "sh", "-c", f'{mounted} 2>/dev/null && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("mounting another /dev/shm needs root")
    done = subprocess.run([*command, sys.executable, "-c", script, tmp_path / "p"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr.decode()


def test_used_up_inodes_are_not_called_a_full_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", small_disk], check=True)
    (small_disk / "one").touch()
    with pytest.raises(StorageError, match=r"takes no more files \(its inodes are used up\)"):
        write_file(small_disk / "two", b"x")


def test_no_message_names_a_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        said = explain_write_error(OSError(errno.EIO, "Input/output error"), Path(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)
    assert str(said) == f"cannot write {tmp_path}: Input/output error"
