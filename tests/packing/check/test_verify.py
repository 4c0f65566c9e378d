# SPDX-License-Identifier: Apache-2.0
"""Each way in which a pack can be wrong is found and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import PackOptions, pack, verify
from feedrate.errors import NotFound, PackError
from feedrate.format.index import Part, fill_derived
from feedrate.format.manifest import read_manifest
from support.damage import edit_manifest, flip_byte, read_part, replace_index, rewrite_index


@pytest.fixture
def good(jpeg_folder: Path, tmp_path: Path) -> Path:
    pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=20_000, workers=1))
    return tmp_path / "p"


def problems(folder: Path) -> list[str]:
    found = verify(folder, workers=1)
    assert found.is_good == (not found.problems)
    return [f"{p.file} [{p.key}] {p.text}" for p in found.problems]


def test_good_pack_has_no_problems(good: Path) -> None:
    found = verify(good, workers=1)
    assert (found.problems, found.extra_files, found.samples) == ((), (), 16)


def test_two_workers_find_the_same(good: Path) -> None:
    flip_byte(good / "shard-00001.tar", 700)
    assert verify(good, workers=2).problems == verify(good, workers=1).problems


def test_changed_image_is_named_by_key_and_place(good: Path) -> None:
    rows = read_part(good / "shard-00000.arrow", read_manifest(good).fields)
    at = int(rows.rows["image.offset"][1])
    flip_byte(good / "shard-00000.tar", at + 300)
    key = rows.variable["key"][1].decode()
    found = verify(good, workers=1).problems
    assert [(p.key, p.offset) for p in found] == [(None, None), (key, at)]
    assert found[0].text == "its bytes are not those that were packed (checksum of the file)"
    assert found[1].text == "field 'image' its bytes are not those that were packed (checksum)"


def test_every_changed_byte_of_a_shard_is_found(good: Path) -> None:
    whole = (good / "shard-00000.tar").read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        flip_byte(good / "shard-00000.tar", at)
        assert problems(good), at
        (good / "shard-00000.tar").write_bytes(whole)


def test_every_changed_byte_of_an_index_is_found(good: Path) -> None:
    whole = (good / "shard-00000.arrow").read_bytes()
    for at in range(0, len(whole), len(whole) // 30):
        flip_byte(good / "shard-00000.arrow", at)
        assert problems(good), at
        (good / "shard-00000.arrow").write_bytes(whole)


@pytest.mark.parametrize("name", ["shard-00000.tar", "shard-00000.arrow"])
def test_missing_file_is_named(good: Path, name: str) -> None:
    (good / name).unlink()
    assert f"{name} [None] cannot be read: No such file or directory" in problems(good)


@pytest.mark.parametrize("name", ["shard-00000.tar", "shard-00000.arrow"])
def test_file_cut_short_is_named_with_both_sizes(good: Path, name: str) -> None:
    whole = (good / name).read_bytes()
    (good / name).write_bytes(whole[:-2000])
    assert problems(good)[0] == f"{name} [None] has {len(whole) - 2000} bytes, pack.json says {len(whole)}"


def test_extra_file_is_named_and_no_problem(good: Path) -> None:
    (good / "README").write_text("mine")
    found = verify(good, workers=1)
    assert (found.extra_files, found.problems) == (("README",), ())


def test_wrong_row_checksum_is_found(good: Path) -> None:
    rewrite_index(good, lambda part: part.rows["check"].__iadd__(1), refill=False)
    assert any("row 0 fails its checksum" in text for text in problems(good))


def test_names_of_columns_that_are_not_text_are_found(good: Path) -> None:
    path = good / "shard-00000.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"key.crc32c", b"key.crc3\x80c"))
    assert path.read_bytes() != whole
    assert any("is not an index part of this pack" in text for text in problems(good))


def test_columns_that_are_not_where_the_manifest_says_are_found(good: Path) -> None:
    edit_manifest(good, lambda m: m["shards"][0]["index"]["columns"].update(number=[8]))
    assert problems(good) == ["shard-00000.arrow [None] its columns do not begin where pack.json says"]


def test_key_that_occurs_twice_is_found(good: Path) -> None:
    other = read_part(good / "shard-00001.arrow", read_manifest(good).fields).variable["key"][0]

    def steal(part: Part) -> None:
        part.variable["key"][0] = other

    rewrite_index(good, steal)
    assert any(
        f"[{other.decode()}] its key also stands in shard-00000.tar" in text for text in problems(good)
    )


def test_entry_points_of_another_image_are_found(good: Path) -> None:
    def swap(part: Part) -> None:
        entries = part.variable["image.entries"]
        good_ones = [i for i, e in enumerate(entries) if e]
        a, b = good_ones[:2]
        entries[a], entries[b] = entries[b], entries[a]

    rewrite_index(good, swap)
    assert any("has entry points in the index that do not fit it" in text for text in problems(good))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("label", 77, "has 1 bytes in the tar, 2 in the index"),
        ("image.offset", 0, "the tar has"),
        ("image.length", 5, "in the index"),
        ("image.width", 1, "the index says 1 x"),
        ("image.crc32c", 0, "checksum"),
        ("number", 10**6, None),
    ],
)
def test_index_that_disagrees_with_the_tar_is_found(
    good: Path, column: str, value: int, words: str | None
) -> None:
    def lie(part: Part) -> None:
        part.rows[column][0] = value

    rewrite_index(good, lie)
    assert (problems(good) == []) if words is None else any(words in text for text in problems(good))


def test_member_that_the_index_does_not_know_is_found(good: Path) -> None:
    def drop(document: dict[str, Any]) -> None:
        document["samples"] -= 1
        document["shards"][0]["samples"] -= 1

    manifest = read_manifest(good)
    part = read_part(good / manifest.shards[0].index.name, manifest.fields)
    shorter = Part(part.rows[:-1].copy(), {k: list(v)[:-1] for k, v in part.variable.items()}, part.metadata)
    fill_derived(shorter.rows, shorter.variable)
    replace_index(good, shorter)
    edit_manifest(good, drop)
    assert any("which the index does not know" in text for text in problems(good))


def test_table_that_was_changed_is_found(jpeg_folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\ncat/0.jpg,1\n")
    pack(jpeg_folder, tmp_path / "p", PackOptions(labels=table, workers=1))
    (tmp_path / "p" / "labels-source.csv").write_text("other")
    assert problems(tmp_path / "p") == [
        "labels-source.csv [None] its bytes are not those of the table that was packed"
    ]


def test_no_pack_is_not_a_good_pack(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no pack at"):
        verify(tmp_path / "nothing")


def test_damaged_manifest_is_an_error(good: Path) -> None:
    (good / "pack.json").write_bytes(b"{")
    with pytest.raises(PackError, match=r"pack\.json: is not JSON"):
        verify(good)


def test_rotten_shard_is_not_listed_sample_by_sample(good: Path) -> None:
    size = (good / "shard-00000.tar").stat().st_size
    (good / "shard-00000.tar").write_bytes(np.random.default_rng(0).bytes(size))
    assert 1 < len(problems(good)) <= 40
