# SPDX-License-Identifier: Apache-2.0
"""The listing on disk: what is put in comes out, in any order, with keys that are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import StorageError
from feedrate.format.fields import Field, Kind
from feedrate.packing.build import listing
from feedrate.packing.build.listing import Listing, ListingWriter, Sample, order_samples
from feedrate.packing.build.plan import ShardRange, split_into_shards
from feedrate.packing.options import PackOptions
from feedrate.source.record import ContainerValue, FileRange, Record, Value

PATHS = st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"\0", b"y"))
SIZES = st.integers(0, 2**50)
VALUES: st.SearchStrategy[Value] = st.one_of(
    # The times of files are no part of what comes back.
    st.builds(FileRange, PATHS, SIZES, PATHS, SIZES, st.just(0)),
    PATHS.map(lambda path: FileRange(path, 7, path)),
    st.builds(
        ContainerValue, PATHS, SIZES, PATHS, st.just("zip"), st.tuples(st.integers(), st.text()), st.just(0)
    ),
    st.binary(), st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
)  # fmt: skip


def write(path: Path, records: Sequence[Record], fields: Sequence[Field] = ()) -> ListingWriter:
    with open(path, "w+b") as out:
        writer = ListingWriter(out)
        for number, record in enumerate(records):
            writer.add(number, record)
        writer.finish(fields)
    return writer


def read(path: Path) -> list[Sample]:
    opened = Listing(path)
    samples = list(opened.samples(np.arange(len(opened))))
    opened.close()
    return samples


def files(names: Sequence[bytes], size_bytes: int = 100) -> list[Record]:
    return [Record(name, {"image": FileRange(name, size_bytes, name)}) for name in names]


def keys(path: Path, names: Sequence[bytes]) -> list[str]:
    write(path, files(names))
    return [sample.key for sample in read(path)]


@given(values=st.lists(VALUES, min_size=1, max_size=20))
def test_values_of_every_kind_come_back(
    values: list[Value], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("listing") / "l"
    write(path, [Record(b"x", {"value": value}) for value in values], [Field("value", Kind.BYTES)])
    assert [sample.values for sample in read(path)] == [(value,) for value in values]


def test_number_that_is_none_comes_back(tmp_path: Path) -> None:
    field = Field("weight", Kind.NUMBER, dtype="float64")
    write(tmp_path / "l", [Record(b"x", {"weight": math.nan})], [field])
    (weight,) = read(tmp_path / "l")[0].values
    assert isinstance(weight, float)
    assert math.isnan(weight)


def test_names_of_classes_become_their_numbers(tmp_path: Path) -> None:
    label = Field("label", Kind.NUMBER, dtype="int64", classes=("ant", "bee"))
    write(tmp_path / "l", [Record(b"x", {"label": "bee"}), Record(b"y", {"label": "ant"})], [label])
    assert [sample.values for sample in read(tmp_path / "l")] == [(1,), (0,)]


def test_value_that_a_sample_does_not_have_is_none(tmp_path: Path) -> None:
    fields = [Field("caption", Kind.TEXT), Field("note", Kind.TEXT)]
    write(tmp_path / "l", [Record(b"x", {"caption": "a"}), Record(b"y", {"note": "b"})], fields)
    assert [sample.values for sample in read(tmp_path / "l")] == [("a", None), (None, "b")]


def test_samples_of_many_chunks_are_found_in_any_order(tmp_path: Path) -> None:
    names = [b"%d.jpg" % n for n in range(10_000)]
    write(tmp_path / "l", files(names))
    opened = Listing(tmp_path / "l")
    asked = np.random.default_rng(0).permutation(10_000)
    assert [s.key for s in opened.samples(asked)] == [str(n) for n in asked]
    assert [s.number for s in opened.samples(asked)] == asked.tolist()


@given(names=st.lists(PATHS, max_size=20))
def test_keys_of_any_names_are_apart(names: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    given_keys = keys(tmp_path_factory.mktemp("listing") / "l", names)
    assert len(set(given_keys)) == len(names)


def test_samples_that_want_the_same_key_are_numbered(tmp_path: Path) -> None:
    assert keys(tmp_path / "l", [b"a.b.jpg", b"a.b.png", b"a_b.jpg"]) == ["a_b", "a_b~2", "a_b~3"]


def test_key_that_another_sample_has_by_name_is_not_given(tmp_path: Path) -> None:
    assert keys(tmp_path / "l", [b"a.jpg", b"a.png", b"a~2.jpg"]) == ["a", "a~3", "a~2"]


def test_keys_are_apart_across_chunks(tmp_path: Path) -> None:
    given_keys = keys(tmp_path / "l", [b"%d.%d" % (n % 3000, n // 3000) for n in range(9000)])
    assert len(set(given_keys)) == 9000
    assert given_keys[6001] == "1~3"


def test_digest_knows_paths_and_sizes_and_no_times(tmp_path: Path) -> None:
    records = [
        [Record(b"x", {"image": FileRange(b"x", size, b"x", 0, time)})]
        for size, time in ((1, 1), (1, 2), (2, 2))
    ]
    writers = [write(tmp_path / "l", one) for one in records]
    digests = [writer.digest() for writer in writers]
    assert digests[0] == digests[1] != digests[2]
    assert len({str(writer.fingerprint()) for writer in writers}) == 3


def test_listing_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write(tmp_path / "l", files([b"x"]))
    whole = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(whole[:-3])
    with pytest.raises(StorageError, match=r"cannot read .*l: "):
        Listing(tmp_path / "l")


@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
def test_rows_in_the_order_of_the_pack_are_those_of_its_samples(
    held_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_HELD_BYTES", held_bytes)
    write(tmp_path / "l", files([b"%d" % n for n in range(50)]))
    opened = Listing(tmp_path / "l")
    for seed in (0, 7, 0):
        rows = opened.rows_in_order(10, 30, seed)
        assert rows["number"].tolist() == order_samples(10, 30, 50, seed).tolist()
    opened.close()


def plan(path: Path, sizes: Sequence[int], shard_bytes: int) -> list[ShardRange]:
    write(path, [Record(b"%d" % n, {"raw": FileRange(b"x", size, b"x")}) for n, size in enumerate(sizes)])
    return list(split_into_shards(Listing(path), PackOptions(shard_bytes=shard_bytes)))


@pytest.mark.parametrize("block", [1, 3, 1000])
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=30), shard_bytes=st.integers(1, 20_000))
def test_shards_hold_all_samples_once_and_are_as_full_as_they_may_be(
    sizes: list[int], shard_bytes: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from feedrate.packing.build import plan as planning

    path = tmp_path_factory.mktemp("listing") / "l"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "BLOCK", block)
        shards = plan(path, sizes, shard_bytes)
    stored = [512 + size + -size % 512 for size in sizes]
    in_order = [stored[i] for i in order_samples(0, len(sizes), len(sizes), 0)]
    assert [s.first for s in shards] == [0, *(s.last for s in shards[:-1])]
    assert shards[-1].last == len(sizes)
    assert sum(s.source_bytes for s in shards) == sum(sizes)
    for shard in shards:
        held = sum(in_order[shard.first : shard.last])
        assert shard.expected_bytes == held + 1024
        assert held + 1024 <= shard_bytes or shard.last - shard.first == 1
        if shard.last < len(sizes):
            assert held + 1024 + in_order[shard.last] > shard_bytes


def test_shard_of_tiny_samples_has_a_bounded_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedrate.packing.build import plan as planning

    monkeypatch.setattr(planning, "MOST_SAMPLES", 7)
    monkeypatch.setattr(planning, "BLOCK", 5)
    shards = plan(tmp_path / "l", [10] * 40, 10**9)
    assert [s.last - s.first for s in shards] == [7, 7, 7, 7, 7, 5]


def test_large_listing_is_read_in_pieces_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "l", files([b"%d.jpg" % n for n in range(5000)]))
    held = read(tmp_path / "l")
    monkeypatch.setattr(listing, "_HELD_BYTES", 0)
    assert read(tmp_path / "l") == held


@pytest.mark.parametrize("held_bytes", [0, 1 << 24])
def test_listing_whose_rows_point_outside_is_told_to_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(listing, "_HELD_BYTES", held_bytes)
    write(tmp_path / "l", files([b"1.jpg"]))
    whole = bytearray((tmp_path / "l").read_bytes())
    whole[:8] = (2**40).to_bytes(8, "little")
    (tmp_path / "l").write_bytes(whole)
    with pytest.raises(StorageError, match="changed while it was used"):
        read(tmp_path / "l")
