# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.format.fields import Field, Kind
from feedrate.format.keys import make_key, make_keys, member_name, printable

PARTS = st.binary(min_size=1, max_size=300).map(lambda b: b.replace(b"/", b"x").replace(b"\0", b"y"))
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(b"/".join)


@given(st.lists(PATHS, unique=True, max_size=20))
def test_keys_of_any_file_names_are_unique(paths: list[bytes]) -> None:
    keys = make_keys(paths)
    assert len(set(keys)) == len(paths)


@given(PATHS)
def test_key_of_any_file_name_is_what_webdataset_reads_back(path: bytes) -> None:
    key = make_key(path)
    assert key.isascii()
    assert key.isprintable()
    assert not key.startswith(("/", "__"))
    assert all(part not in ("", ".", "..") and len(part) <= 200 for part in key.split("/"))
    # As webdataset.tariterators.base_plus_ext has it; importing that imports torch.
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", f"{key}.mask.png")
    assert match is not None
    assert match.groups() == (key, "mask.png")


@given(st.lists(PATHS, unique=True, max_size=10))
def test_same_paths_give_the_same_keys(paths: list[bytes]) -> None:
    assert make_keys(paths) == make_keys(paths)


def test_files_that_differ_in_their_suffix_get_different_keys() -> None:
    assert make_keys([b"a.b.jpg", b"a.b.png", b"a_b.jpg"]) == ["a_b", "a_b~2", "a_b~3"]


def test_key_that_is_already_taken_by_a_name_is_not_given_again() -> None:
    assert make_keys([b"a.jpg", b"a.png", b"a~2.jpg"]) == ["a", "a~2", "a~2~2"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (b"cat/1.jpg", "cat/1"),
        (b"v1.0/a.b.jpg", "v1.0/a_b"),
        (b"my cat.jpg", "my%20cat"),
        ("katzé.jpg".encode(), "katz%C3%A9"),
        (b"\xff.jpg", "%FF"),
        (b"__x__/1.jpg", "%5F_x__/1"),
        (b".hidden", "_hidden"),
    ],
)
def test_key_stays_close_to_the_path(path: bytes, key: str) -> None:
    assert make_key(path) == key


@pytest.mark.parametrize(
    ("field", "path", "name"),
    [
        (Field("image", Kind.IMAGE), b"a/B.JPG", "k.jpg"),
        (Field("image", Kind.IMAGE), b"a/noext", "k.bin"),
        (Field("second", Kind.IMAGE), b"x.png", "k.second.png"),
        (Field("label", Kind.NUMBER, dtype="int64"), b"", "k.cls"),
        (Field("label", Kind.NUMBER, dtype="float64"), b"", "k.label.json"),
        (Field("mask", Kind.MASK), b"m.png", "k.mask.png"),
        (Field("features", Kind.ARRAY), b"f.npy", "k.features.npy"),
        (Field("boxes", Kind.BOXES), b"", "k.boxes.npy"),
        (Field("caption", Kind.TEXT), b"", "k.caption.txt"),
        (Field("meta", Kind.JSON), b"", "k.meta.json"),
        (Field("raw", Kind.BYTES), b"r.dat", "k.raw.bin"),
    ],
)
def test_members_are_named_as_webdataset_does(field: Field, path: bytes, name: str) -> None:
    assert member_name("k", field, path) == name


def test_printable_path_has_no_control_characters() -> None:
    assert printable(b"a\nb\xff\x1b[31m") == "a\\nb\\xff\\x1b[31m"
