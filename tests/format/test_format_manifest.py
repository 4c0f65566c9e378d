# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import NotFound, PackError
from feedrate.format.containers.tar import Tar
from feedrate.format.fields import Field, Kind
from feedrate.format.manifest import (
    Manifest,
    dump_manifest,
    index_name,
    parse_manifest,
    read_manifest,
)
from support.damage import without_digest
from support.packs import make_index, make_shard

COUNTS = st.integers(0, 2**40)
CRCS = st.integers(0, 2**32 - 1)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda n: n not in ("key", "number", "check")
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    kinds = [draw(st.sampled_from(Kind)) for _ in names]
    fields = [
        Field(
            name,
            kind,
            dtype=draw(st.sampled_from(["int64", "float64"])) if kind is Kind.NUMBER else None,
            shape=draw(st.none() | st.tuples(COUNTS, COUNTS)),
            classes=draw(st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)),
        )
        for name, kind in zip(names, kinds, strict=True)
    ]
    shards = []
    for number in range(draw(st.integers(0, 3))):
        columns = draw(st.dictionaries(NAMES, st.tuples(COUNTS) | st.tuples(COUNTS, COUNTS), max_size=3))
        index = make_index(index_name(number), draw(COUNTS), draw(CRCS), columns)
        shards.append(make_shard(Tar().shard_name(number), draw(COUNTS), draw(CRCS), draw(COUNTS), index))
    return Manifest(tuple(fields), tuple(shards), {"seed": draw(COUNTS)})


@given(manifests())
def test_manifest_comes_back_as_it_was_written(manifest: Manifest) -> None:
    assert parse_manifest(dump_manifest(manifest)) == manifest


@given(manifests())
def test_equal_manifests_give_equal_bytes(manifest: Manifest) -> None:
    assert dump_manifest(parse_manifest(dump_manifest(manifest))) == dump_manifest(manifest)


@given(st.binary(max_size=200))
def test_any_bytes_as_manifest_end_in_a_pack_error(data: bytes) -> None:
    with pytest.raises(PackError, match="is not"):
        parse_manifest(data)


PLAIN = Manifest(
    (Field("label", Kind.NUMBER, dtype="int64", classes=("c2", "c3")),),
    (
        make_shard(
            "shard-00000.tar", 10, 0x0A1B2C3D, 2, make_index("shard-00000.arrow", 20, 7, {"key": (8, 24)})
        ),
    ),
    {"seed": 0, "plan": "caf\u00e9"},
)


def test_every_flipped_bit_of_a_manifest_is_refused() -> None:
    whole = dump_manifest(PLAIN)
    unseen = []
    for at, bit in itertools.product(range(len(whole)), range(8)):
        text = bytearray(whole)
        text[at] ^= 1 << bit
        with contextlib.suppress(PackError):
            parse_manifest(bytes(text))
            unseen.append((at, bit))
    assert unseen == []


def test_manifest_without_a_digest_is_read_as_before() -> None:
    assert parse_manifest(without_digest(dump_manifest(PLAIN))) == PLAIN


def test_digest_is_the_sha256_of_the_file_without_that_entry() -> None:
    text = dump_manifest(PLAIN)
    assert json.loads(text)["digest"] == hashlib.sha256(without_digest(text)).hexdigest()


def test_manifest_that_was_laid_out_anew_is_refused_with_what_to_do() -> None:
    text = json.dumps(json.loads(dump_manifest(PLAIN)), indent=4).encode()
    with pytest.raises(PackError, match="does not fit the digest in it") as caught:
        parse_manifest(text)
    assert caught.value.hint is not None
    assert "delete its last entry, 'digest'" in caught.value.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(manifests(), st.data())
def test_manifest_with_any_value_put_in_any_place_is_read_or_refused_in_words(
    manifest: Manifest, data: Any
) -> None:
    document = json.loads(dump_manifest(manifest))
    place = document
    while isinstance(place, (dict, list)) and place:
        key = data.draw(
            st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1)
        )
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = inner
    document.pop("digest", None)  # or nothing but that would be looked at
    with contextlib.suppress(PackError):
        parse_manifest(json.dumps(document).encode())


def test_deeply_nested_manifest_is_refused() -> None:
    with pytest.raises(PackError, match="is not JSON"):
        parse_manifest(b"[" * 100_000)


@pytest.mark.parametrize(
    "name", ["../x.tar", "/etc/passwd", "a/b", "", ".", "..", "a\0b", ".hidden", "\udcff"]
)
def test_manifest_cannot_name_a_file_outside_the_pack(name: str) -> None:
    manifest = Manifest((), (make_shard("NAME", 1, 1, 0, make_index("i.arrow", 1, 1, {})),), {})
    text = without_digest(dump_manifest(manifest)).replace(b'"NAME"', json.dumps(name).encode())
    with pytest.raises(PackError, match="is not a plain file name"):
        parse_manifest(text)


def test_manifest_that_names_a_file_twice_is_refused() -> None:
    shard = make_shard("s.tar", 1, 1, 0, make_index("i.arrow", 1, 1, {}))
    with pytest.raises(PackError, match="two of its files have the same name"):
        parse_manifest(dump_manifest(Manifest((), (shard, shard), {})))


def test_newer_version_asks_for_a_newer_feedrate() -> None:
    text = dump_manifest(Manifest((), (), {})).replace(b'"version": 1', b'"version": 4')
    with pytest.raises(
        PackError, match="has format version 4; this feedrate reads versions 1 to 3"
    ) as caught:
        parse_manifest(text)
    assert caught.value.hint == "update feedrate: pip install --upgrade feedrate"


def test_folder_without_manifest_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"is not a pack: it has no pack\.json"):
        read_manifest(tmp_path)


def test_unfinished_pack_says_how_to_finish_it(tmp_path: Path) -> None:
    (tmp_path / "shard-00000.tar").write_bytes(b"")
    with pytest.raises(NotFound, match="run the same 'feedrate pack' command again"):
        read_manifest(tmp_path)
