# SPDX-License-Identifier: Apache-2.0
"""What lies under a path, what of it is in memory, and how fast it is: on made-up mounts and on real ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedrate.errors import StorageError
from feedrate.machine import memory
from feedrate.machine.disk import (
    describe_storage,
    find_disk,
    find_scratch,
    is_scratch,
    measure_scratch,
    read_rotational,
)
from feedrate.machine.memory import measure_file_residency, measure_residency

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:45 / /home rw,relatime shared:5 - nfs4 server:/export/home rw,vers=4.2
31 27 0:46 / /mnt/my\\040data rw,nosuid - fuse.sshfs me@host:/data rw
32 27 0:47 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
33 27 0:48 / /container rw - overlay overlay rw,lowerdir=/a
34 27 0:49 / /dev/shm rw - tmpfs tmpfs rw
35 27 8:1 / /scratch rw - xfs /dev/sda1 rw
36 35 0:50 / /scratch rw - tmpfs late rw
37 27 0:51 / /squash rw - fuse.squashfuse image.sqfs rw
a line that makes no sense
"""


@pytest.fixture
def mountinfo(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "source", "network", "fuse", "memory"),
    [
        ("/etc", "ext4", "/dev/vda", False, False, False),
        ("/home", "nfs4", "server:/export/home", True, False, False),
        ("/home/me/not/there", "nfs4", "server:/export/home", True, False, False),
        ("/homely", "ext4", "/dev/vda", False, False, False),
        ("/mnt/my data/x.jpg", "fuse.sshfs", "me@host:/data", True, True, False),
        ("/lustre/set", "lustre", "10.0.0.1@o2ib:/fs", True, False, False),
        ("/container", "overlay", "overlay", False, False, False),
        ("/dev/shm/x", "tmpfs", "tmpfs", False, False, True),
        ("/scratch/x", "tmpfs", "late", False, False, True),
        ("/squash/x", "fuse.squashfuse", "image.sqfs", False, True, False),
    ],
)
def test_the_deepest_mount_made_last_tells_the_kind(
    mountinfo: Path, path: str, kind: str, source: str, network: bool, fuse: bool, memory: bool
) -> None:
    found = describe_storage(path, mountinfo)
    assert (found.kind, found.source) == (kind, source)
    assert (found.is_network, found.is_fuse, found.is_memory) == (network, fuse, memory)


def test_without_mountinfo_the_kind_is_unknown(tmp_path: Path) -> None:
    found = describe_storage("/etc", tmp_path / "none")
    assert (found.kind, found.is_network, found.rotational) == ("unknown", False, None)


def make_disk(root: Path, name: str, rotational: str | None) -> Path:
    folder = root / "devices" / name
    (folder / "queue").mkdir(parents=True)
    if rotational is not None:
        (folder / "queue" / "rotational").write_text(rotational + "\n")
    return folder


def link(root: Path, number: str, target: Path) -> None:
    (root / "block").mkdir(exist_ok=True)
    (root / "block" / number).symlink_to(target)


def test_a_partition_and_a_logical_volume_lead_to_their_disk(tmp_path: Path) -> None:
    disk = make_disk(tmp_path, "sda", "1")
    (disk / "sda1").mkdir()
    (disk / "sda1" / "partition").write_text("1\n")
    link(tmp_path, "8:1", disk / "sda1")
    volume = make_disk(tmp_path, "dm-0", "0")
    (volume / "slaves").mkdir()
    (volume / "slaves" / "sda1").symlink_to(disk / "sda1")
    link(tmp_path, "253:0", volume)
    for number in ("8:1", "253:0"):
        found = find_disk(number, tmp_path / "block")
        assert found == disk
        assert read_rotational(found) is True
    assert find_disk("9:9", tmp_path / "block") is None


@pytest.mark.parametrize(
    ("name", "text", "rotational"),
    [("nvme0n1", "0", False), ("sdb", "1", True), ("vda", "1", None), ("sdc", None, None)],
)
def test_a_virtual_disk_or_a_silent_one_is_not_known_to_spin(
    tmp_path: Path, name: str, text: str | None, rotational: bool | None
) -> None:
    assert read_rotational(make_disk(tmp_path, name, text)) is rotational


def make_cold(path: Path, size_bytes: int = 1 << 20) -> Path:
    path.write_bytes(os.urandom(size_bytes))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if measure_file_residency(path) != (size_bytes, 0.0):
        pytest.skip(f"pages of {describe_storage(path).kind} cannot be dropped here")
    return path


def test_a_file_is_resident_after_it_was_read_and_not_after_it_was_dropped(tmp_path: Path) -> None:
    cold, warm = make_cold(tmp_path / "cold"), make_cold(tmp_path / "warm")
    warm.read_bytes()
    assert measure_residency([cold]) == 0.0
    assert measure_residency([warm]) == 1.0
    assert measure_residency([cold, warm]) == 0.5


def test_asking_does_not_make_a_file_resident(tmp_path: Path) -> None:
    cold = make_cold(tmp_path / "cold")
    for _ in range(3):
        assert measure_residency([cold]) == 0.0


def test_a_file_of_somebody_else_is_asked_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, warm = make_cold(tmp_path / "cold"), make_cold(tmp_path / "warm")
    warm.read_bytes()
    # The kernel tells owners and root more: be neither.
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("os.access", lambda *_: False)
    with monkeypatch.context() as busy:
        busy.setattr(memory, "_FROM_MEMORY_NS", 10**12)  # this machine may be busy
        assert measure_residency([warm]) == 1.0
    share = measure_residency([cold])
    assert share is not None
    assert share < 1.0


def test_residency_of_nothing_readable_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert measure_residency([]) is None
    assert measure_residency([tmp_path / "none", tmp_path / "empty"]) is None


def test_of_many_files_only_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(memory, "measure_file_residency", lambda path: asked.append(path) or (4096, 1.0))
    assert measure_residency([str(n) for n in range(1000)], limit=10) == 1.0
    assert len(asked) == 10
    assert "900" in asked


def test_a_scratch_folder_is_measured_and_left_empty(tmp_path: Path) -> None:
    rate = measure_scratch(tmp_path, size_bytes=3_000_000)
    assert rate.size_bytes == 3_000_000
    assert rate.write_bytes_per_s > 0
    assert rate.read_bytes_per_s is not None
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot measure .*none: No such file"):
        measure_scratch(tmp_path / "none")


def test_scratch_is_what_the_scheduler_names_and_never_plain_tmp(tmp_path: Path) -> None:
    if not is_scratch(tmp_path):
        pytest.skip(f"tests run on {describe_storage(tmp_path).kind}, which is not scratch")
    assert find_scratch({"SLURM_TMPDIR": str(tmp_path), "TMPDIR": "/elsewhere"}) == tmp_path
    assert find_scratch({"TMPDIR": str(tmp_path)}) == tmp_path
    assert find_scratch({"TMPDIR": "/tmp/"}) in (None, find_scratch({}))
    assert not is_scratch("/proc")
    assert not is_scratch(tmp_path / "none")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MB."""
    point = tmp_path / "mounted here"
    point.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(point)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program")
    if done.returncode:
        pytest.skip(f"mounting needs root: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_a_real_memory_file_system_is_recognised_and_is_no_scratch(mounted: Path) -> None:
    found = describe_storage(mounted / "file")
    assert (found.mount_point, found.kind, found.is_memory) == (str(mounted), "tmpfs", True)
    assert not is_scratch(mounted)


def test_a_small_scratch_is_not_filled(mounted: Path) -> None:
    assert measure_scratch(mounted).size_bytes <= 1 << 20


def test_a_full_scratch_is_a_sentence(mounted: Path) -> None:
    (mounted / "full").write_bytes(b"x" * (4 << 20))
    with pytest.raises(StorageError, match=r"cannot measure .*: no room left"):
        measure_scratch(mounted)
