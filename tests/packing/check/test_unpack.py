# SPDX-License-Identifier: Apache-2.0
"""Files come back bit for bit, and a pack from a stranger writes nowhere but into the folder it was given."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate import PackOptions, pack, unpack
from feedrate.errors import AlreadyExists, NotFound, PackError, StorageError, UsageError
from feedrate.format.index import Part
from feedrate.packing.check.unpack import Tree, check_path
from support.damage import edit_manifest, flip_byte, rewrite_index
from support.images import read_tree


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    (jpeg_folder / "dog" / "notes.txt").unlink()
    pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=20_000, workers=1))
    return tmp_path / "p"


def test_files_come_back_bit_for_bit(packed: Path, jpeg_folder: Path, tmp_path: Path) -> None:
    result = unpack(packed, tmp_path / "out", workers=1)
    assert (result.files, result.kept) == (16, 0)
    assert read_tree(tmp_path / "out") == read_tree(jpeg_folder)


def test_two_workers_give_the_same_files(packed: Path, jpeg_folder: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "out", workers=2)
    assert read_tree(tmp_path / "out") == read_tree(jpeg_folder)


def test_second_run_keeps_what_is_there(packed: Path, jpeg_folder: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "out", workers=1)
    (tmp_path / "out" / "cat" / "1.jpg").unlink()
    result = unpack(packed, tmp_path / "out", workers=1)
    assert (result.files, result.kept) == (16, 15)
    assert read_tree(tmp_path / "out") == read_tree(jpeg_folder)


def test_file_with_other_bytes_is_not_overwritten(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "cat").mkdir(parents=True)
    (tmp_path / "out" / "cat" / "1.jpg").write_text("mine")
    with pytest.raises(AlreadyExists, match=r"'cat/1\.jpg' is already in .*, with other bytes"):
        unpack(packed, tmp_path / "out", workers=1)
    assert (tmp_path / "out" / "cat" / "1.jpg").read_text() == "mine"


def test_folder_with_the_name_of_a_file_is_left_alone(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "cat" / "1.jpg").mkdir(parents=True)
    with pytest.raises(AlreadyExists, match=r"'cat/1\.jpg' is already in"):
        unpack(packed, tmp_path / "out", workers=1)


def test_damaged_image_gets_no_name(packed: Path, tmp_path: Path) -> None:
    flip_byte(packed / "shard-00000.tar", 800)
    with pytest.raises(PackError, match=r"is damaged in shard-00000\.tar at byte 512: checksum"):
        unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == {}


def test_damaged_index_restores_nothing_under_a_wrong_name(packed: Path, tmp_path: Path) -> None:
    at = (packed / "shard-00000.arrow").read_bytes().index(b".jpg")
    flip_byte(packed / "shard-00000.arrow", at + 1)
    with pytest.raises(PackError, match=r"shard-00000\.arrow is damaged: checksum"):
        unpack(packed, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "path",
    [
        b"/etc/feedrate-test",
        b"../escaped.jpg",
        b"a/../../escaped.jpg",
        b"a//b",
        b"./a",
        b"a/",
        b"nul\0byte",
        b"..",
    ],
)
def test_path_that_leads_out_is_refused_before_anything_is_written(
    packed: Path, tmp_path: Path, path: bytes
) -> None:
    def plant(part: Part) -> None:
        part.variable["image.path"][-1] = path

    rewrite_index(packed, plant)
    before = read_tree(tmp_path)
    with pytest.raises(
        PackError, match=r"the pack holds the path '.*', which leads out of the folder: refused"
    ):
        unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path) == before
    assert not Path("/etc/feedrate-test").exists()


def test_endless_path_is_refused(packed: Path, tmp_path: Path) -> None:
    def plant(part: Part) -> None:
        part.variable["image.path"][0] = b"a/" * 5000 + b"b"

    rewrite_index(packed, plant)
    with pytest.raises(PackError, match="the pack holds a path of 10001 bytes: refused"):
        unpack(packed, tmp_path / "out", workers=1)


@given(st.binary(max_size=30))
def test_any_path_is_refused_or_stays_inside(path: bytes) -> None:
    try:
        check_path(path)
    except PackError:
        return
    joined = os.path.normpath(os.path.join(b"/root/of/all", path))
    assert joined.startswith(b"/root/of/all/")


def test_link_planted_for_a_folder_is_refused(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cat").symlink_to(tmp_path / "outside")
    with pytest.raises(PackError, match=r"'cat' in .* is a link or a file, not a folder: refused"):
        unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "outside") == {}


def test_link_planted_for_a_file_is_refused(packed: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out" / "cat").mkdir(parents=True)
    (tmp_path / "out" / "cat" / "1.jpg").symlink_to(victim)
    with pytest.raises(PackError, match=r"'cat/1\.jpg' in .* is a symbolic link: refused"):
        unpack(packed, tmp_path / "out", workers=1)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "table",
    [
        {"path": "..%2Fescaped.csv"}, {"path": "%2Fetc%2Ffeedrate-test"}, {"path": 7}, {"name": "../secret"},
        {"name": "/etc/passwd"}, {"name": "link"}, {"crc32c": "00000000"},
    ],
)  # fmt: skip
def test_hostile_table_entry_is_refused(jpeg_folder: Path, tmp_path: Path, table: dict[str, object]) -> None:
    (tmp_path / "t.csv").write_text("path,label\ncat/0.jpg,1\n")
    pack(jpeg_folder, tmp_path / "p", PackOptions(labels=tmp_path / "t.csv", workers=1))
    (tmp_path / "secret").write_text("path,label\ncat/0.jpg,1\n")
    (tmp_path / "p" / "link").symlink_to(tmp_path / "secret")
    edit_manifest(tmp_path / "p", lambda m: m["settings"]["labels"].update(table))
    with pytest.raises(PackError, match=r"refused|cannot be restored"):
        unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("column", "value"), [("image.offset", 2**61), ("image.length", 2**61), ("image.offset", -1)]
)
def test_range_outside_the_shard_is_refused(packed: Path, tmp_path: Path, column: str, value: int) -> None:
    def lie(part: Part) -> None:
        part.rows[column][0] = value

    rewrite_index(packed, lie)
    with pytest.raises(PackError, match=r"is damaged in|has no place in"):
        unpack(packed, tmp_path / "out", workers=1)


def test_shard_that_is_a_link_out_of_the_pack_still_has_to_match_its_checksums(
    packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(bytes(100_000))
    (packed / "shard-00000.tar").unlink()
    (packed / "shard-00000.tar").symlink_to(tmp_path / "secret")
    with pytest.raises(PackError, match="checksum"):
        unpack(packed, tmp_path / "out", workers=1)


def test_missing_shard_is_named(packed: Path, tmp_path: Path) -> None:
    (packed / "shard-00000.tar").unlink()
    with pytest.raises(PackError, match=r"cannot read shard-00000\.tar: No such file"):
        unpack(packed, tmp_path / "out", workers=1)


def test_target_inside_the_pack_is_refused(packed: Path) -> None:
    with pytest.raises(UsageError, match="lies inside the pack"):
        unpack(packed, packed / "out")


def test_no_pack_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no pack at"):
        unpack(tmp_path / "nothing", tmp_path / "out")


def test_tree_with_more_folders_than_it_keeps_open_writes_all(tmp_path: Path) -> None:
    with Tree(tmp_path / "out") as tree:
        for n in range(450):
            tree.write(b"a/%d/b/x" % n, b"%d" % n)
    assert len(read_tree(tmp_path / "out")) == 450
    assert len(os.listdir("/proc/self/fd")) < 200


def test_name_too_long_for_the_disk_is_a_sentence(tmp_path: Path) -> None:
    with Tree(tmp_path) as tree, pytest.raises(StorageError, match=r"cannot write .*: File name too long"):
        tree.write(b"x" * 300, b"")


def test_manifest_settings_of_a_pack_name_no_path_of_the_machine(packed: Path, jpeg_folder: Path) -> None:
    assert str(jpeg_folder.parent) not in json.dumps(json.loads((packed / "pack.json").read_text()))
