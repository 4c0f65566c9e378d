# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import PackError
from feedrate.format.containers import Member
from feedrate.format.containers.tar import END_OF_ARCHIVE, member_bytes, member_header, padding, read_members


def make_tar(names: list[str], data: bytes = b"hello") -> bytes:
    members = [member_header(name, len(data)) + data + padding(len(data)) for name in names]
    return b"".join(members) + END_OF_ARCHIVE


@pytest.mark.parametrize("name", ["a.jpg", "x" * 150 + ".jpg", "/".join(["y" * 90] * 5) + ".jpg"])
def test_members_are_read_back_by_the_standard_library(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(make_tar([name]))
    with tarfile.open(path) as archive:
        (info,) = archive.getmembers()
        assert (info.name, info.mode, info.uid, info.gid, info.mtime) == (name, 0o644, 0, 0, 0)
        assert archive.extractfile(info).read() == b"hello"


def test_members_are_found_with_their_positions(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(make_tar(["a", "b"]))
    assert list(read_members(path)) == [Member("a", 512, 5), Member("b", 1536, 5)]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513])
def test_room_of_a_member_is_its_header_and_whole_blocks(size: int) -> None:
    assert member_bytes(size) == len(member_header("a", size)) + size + len(padding(size))


@given(st.binary(min_size=1, max_size=1500))
def test_any_bytes_as_tar_end_in_members_or_a_pack_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("tar") / "t.tar"
    path.write_bytes(data)
    with contextlib.suppress(PackError):
        list(read_members(path))


def test_tar_that_holds_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(PackError, match="'link' at byte 0 is not a plain file"):
        list(read_members(path))
