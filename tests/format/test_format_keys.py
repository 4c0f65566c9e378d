# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.format.fields import Field, Kind, make_key, make_stem, member_name
from feedrate.units import printable

PARTS = st.binary(min_size=1, max_size=300).map(lambda b: b.replace(b"/", b"x").replace(b"\0", b"y"))
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(b"/".join)


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


@given(PATHS, PATHS)
def test_paths_want_the_same_key_just_when_their_stems_are_the_same(one: bytes, two: bytes) -> None:
    assert (make_key(one) == make_key(two)) == (make_stem(one) == make_stem(two))


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
