# SPDX-License-Identifier: Apache-2.0
"""A run of `unpack` that a power cut or a kill ends: files are whole, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate import PackOptions, pack, unpack
from feedrate.errors import AlreadyExists
from feedrate.files import atomic
from support.images import read_tree

# Ends itself as a power cut would, after some files got their names.
KILLED = """
import os, signal, sys
from feedrate import unpack
real, left = os.link, [3]
def link(*args, **words):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args, **words)
os.link = link
unpack(sys.argv[1], sys.argv[2], workers=1)
"""


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    (jpeg_folder / "dog" / "notes.txt").unlink()
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))
    return tmp_path / "p"


@pytest.fixture
def killed(packed: Path, tmp_path: Path) -> Path:
    """The folder of a run that was killed when three files had their names."""
    done = subprocess.run([sys.executable, "-c", KILLED, packed, tmp_path / "out"])
    assert done.returncode == -signal.SIGKILL
    return tmp_path / "out"


def find_named(folder: Path) -> Path:
    return next(path for path in sorted(folder.rglob("*.jp*g")) if not path.name.startswith("."))


def test_a_file_is_durable_before_it_gets_its_name(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: set[int] = set()
    unsynced: list[str] = []
    real_link, real_sync, real_fsync = os.link, atomic.sync_file_system, os.fsync

    def fsync(fd: int) -> None:
        durable.add(os.fstat(fd).st_ino)
        real_fsync(fd)

    def sync_file_system(folder: Path) -> None:
        durable.update(path.stat().st_ino for path in (tmp_path / "out").rglob("*"))
        real_sync(folder)

    def link(source: str, name: bytes, *, src_dir_fd: int, **words: object) -> None:
        if os.stat(source, dir_fd=src_dir_fd).st_ino not in durable:
            unsynced.append(os.fsdecode(name))
        real_link(source, name, src_dir_fd=src_dir_fd, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(atomic, "sync_file_system", sync_file_system)
    unpack(packed, tmp_path / "out", workers=1)
    assert unsynced == []


@pytest.mark.parametrize("left", [lambda _: b"", lambda data: data[:700] + bytes(len(data) - 700)])
def test_a_file_that_a_power_cut_emptied_is_replaced(
    packed: Path, killed: Path, jpeg_folder: Path, left: object
) -> None:
    named = find_named(killed)
    named.write_bytes(left(named.read_bytes()))  # type: ignore[operator]
    unpack(packed, killed, workers=1)
    assert read_tree(killed) == read_tree(jpeg_folder)


def test_nothing_is_left_of_a_killed_run_after_the_next_one(
    packed: Path, killed: Path, jpeg_folder: Path
) -> None:
    assert [name for name in read_tree(killed) if name.endswith(".tmp")]
    unpack(packed, killed, workers=1)
    assert read_tree(killed) == read_tree(jpeg_folder)


def test_a_file_of_the_user_stays_also_after_a_killed_run(packed: Path, killed: Path) -> None:
    named = find_named(killed)
    named.write_text("mine")
    for _ in range(2):
        with pytest.raises(AlreadyExists, match="with other bytes"):
            unpack(packed, killed, workers=1)
    assert named.read_text() == "mine"


def test_a_run_that_gets_sigterm_leaves_no_temporary_file(packed: Path, tmp_path: Path) -> None:
    script = KILLED.replace("SIGKILL", "SIGTERM").replace(
        "unpack(sys.argv[1], sys.argv[2], workers=1)",
        "from feedrate.cli import main; sys.argv.insert(1, 'unpack'); sys.exit(main())",
    )
    done = subprocess.run([sys.executable, "-c", script, packed, tmp_path / "out"], capture_output=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert not [name for name in read_tree(tmp_path / "out") if Path(name).name.startswith(".")]


def test_an_empty_file_of_the_user_stays_where_no_run_was_killed(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "cat").mkdir(parents=True)
    (tmp_path / "out" / "cat" / "1.jpg").touch()
    with pytest.raises(AlreadyExists, match="with other bytes"):
        unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out")["cat/1.jpg"] == b""
