# SPDX-License-Identifier: Apache-2.0
"""Readers of containers against independent writers, on data that hypothesis makes; and on damaged files."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedrate.errors import FeedrateError
from feedrate.format.containers.tfrecord import BadMessage
from feedrate.source import tar, tfrecord
from feedrate.source import zip as zips
from feedrate.source.bytes import Bytes
from feedrate.source.opening import open_reader
from feedrate.source.record import ContainerValue, FileRange, Record, UnusableValue
from feedrate.source.tfrecord import BytesFeature, parse_example
from support.examples import examples
from support.sources import (
    dump_example,
    jpeg,
    write_tar,
    write_tfrecord,
    write_zip,
)

quick = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
parts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\:."),
    min_size=1,
    max_size=60,
)
names = st.lists(parts, min_size=1, max_size=4).map("/".join).map(lambda name: name + ".x")
trees = st.dictionaries(names, st.binary(max_size=2000), max_size=8)


@quick
@given(trees, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_every_member_of_a_tar_is_found_where_it_lies(
    tmp_path: Path, files: dict[str, bytes], form: int
) -> None:
    path = write_tar(tmp_path / "d.tar", files, format=form)
    data = path.read_bytes()
    members = list(tar.read_members(io.BytesIO(data), "d.tar", len(data)))
    assert {m.name.decode(): data[m.offset : m.offset + m.size_bytes] for m in members} == files


@quick
@given(trees, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.booleans())
def test_every_member_of_a_zip_gives_its_bytes(
    tmp_path: Path, files: dict[str, bytes], compression: int, is_streamed: bool
) -> None:
    path = tmp_path / "d.zip"
    with open(path, "wb") as raw:
        # What cannot be positioned makes zipfile write sizes behind the data.
        target = _Stream(raw) if is_streamed else raw
        with zipfile.ZipFile(target, "w", compression) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    data = path.read_bytes()
    found = {
        m.name.decode(): zips.read_member(data[m.header :], m.place(), m.size_bytes)
        for m in zips.read_members(io.BytesIO(data), "d.zip", len(data))
    }
    assert found == files


class _Stream:
    def __init__(self, raw: io.BufferedWriter) -> None:
        self.write, self.flush = raw.write, raw.flush


features = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.one_of(
        st.lists(st.binary(max_size=100), min_size=1, max_size=5),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    ),
    min_size=1,
    max_size=6,
)


@quick
@given(features, st.booleans())
def test_an_example_gives_the_features_that_were_written(wanted: dict[str, list], packed: bool) -> None:
    data = dump_example(wanted, packed=packed)
    found = {}
    for name, feature in parse_example(data).items():
        if isinstance(feature, BytesFeature):
            found[name] = [data[start : start + size] for start, size in feature.spans]
        else:
            found[name] = feature.tolist()
    assert found == dict(sorted(wanted.items()))


# A file of one Example, from TensorFlow 2.21: label -7, t 'hi', x 0.5 and 2.
TENSORFLOW_WROTE = bytes.fromhex(
    "3b000000000000001a23ac5c0a390a170a056c6162656c120e1a0c0a0af9ffffffffffffffff010a0b0a017412"
    "060a040a0268690a110a0178120c120a0a080000003f000000403da2a876"
)


def test_what_tensorflow_wrote_is_read() -> None:
    ((start, record),) = tfrecord.read_records(io.BytesIO(TENSORFLOW_WROTE), "d")
    found = parse_example(record)
    text = found["t"]
    assert isinstance(text, BytesFeature)
    ((at, size),) = text.spans
    assert TENSORFLOW_WROTE[start + at : start + at + size] == b"hi"
    assert (found["label"].tolist(), found["x"].tolist()) == ([-7], [0.5, 2.0])  # type: ignore[union-attr]


@quick
@given(st.binary(max_size=300))
def test_any_bytes_are_an_example_or_a_sentence(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        parse_example(data)


@quick
@given(st.lists(st.binary(max_size=500), max_size=8))
def test_tfrecords_come_back_with_their_places(tmp_path: Path, records: list[bytes]) -> None:
    data = write_tfrecord(tmp_path / "d", records).read_bytes()
    found = list(tfrecord.read_records(io.BytesIO(data), "d"))
    assert [record for _, record in found] == records
    assert [data[start : start + len(record)] for start, record in found] == records


def make_zip(folder: Path) -> Path:
    files = {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate("aabb")}
    return write_zip(folder / "d.zip", files)


def make_tar(folder: Path) -> Path:
    return write_tar(folder / "d.tar", {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate("aabb")})


def make_compressed(folder: Path) -> Path:
    return write_tar(folder / "d.tar.gz", {f"{n}.jpg": jpeg(n) for n in range(3)}, "w:gz")


def make_shard(folder: Path) -> Path:
    files = {
        f"{n}.{ext}": data for n in range(3) for ext, data in (("jpg", jpeg(n)), ("cls", b"3"), ("txt", b"t"))
    }
    return write_tar(folder / "s.tar", files)


def make_tfrecord(folder: Path) -> Path:
    """Write checksums anew after the damage, so that it reaches the parser."""
    return write_tfrecord(
        folder / "d.tfrecord",
        [dump_example({"image": [jpeg(n)], "label": [n], "t": [b"a", b"b"], "f": [0.5]}) for n in range(3)],
    )


def make_parquet(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"image": [{"bytes": jpeg(n), "path": "x"} for n in range(3)], "label": [0, 1, 2]})
    parquet.write_table(table, folder / "d.parquet")
    return folder / "d.parquet"


def make_hdf5(folder: Path) -> Path:
    import h5py
    import numpy as np

    with h5py.File(folder / "d.h5", "w") as file:
        pixels = np.arange(3 * 16 * 16 * 3, dtype=np.uint8).reshape(3, 16, 16, 3)
        file.create_dataset("images", data=pixels, chunks=(2, 16, 16, 3), compression="gzip")
        file["label"] = [0, 1, 2]
        file["name"] = ["a", "b", "c"]
    return folder / "d.h5"


MAKERS = [
    make_zip, make_tar, make_compressed, make_shard, make_tfrecord, make_parquet, make_hdf5
]  # fmt: skip


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        # Heads and directories lie at the ends, so most of the damage is done there.
        at = rng.choice(
            (
                rng.randrange(len(changed)),
                rng.randrange(min(700, len(changed))),
                -1 - rng.randrange(min(400, len(changed))),
            )
        )
        action = rng.randrange(5)
        if action == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            changed[at] = rng.choice((0, 255, 127, 128))
        elif action == 2 and len(changed) > 100:
            at %= len(changed)
            del changed[at : at + rng.randrange(1, 40)]
        elif action == 3:
            struct.pack_into(
                "<I", changed, at % (len(changed) - 4), rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 2**20))
            )
        else:
            del changed[max(50, at % len(changed)) :]
    return bytes(changed)


def read_everything(source: Path) -> None:
    bytes_of = Bytes(str(source.parent), str(source.parent))
    try:
        reader = open_reader(str(source), scratch=str(source.parent))
        values = [v for record in reader if isinstance(record, Record) for v in record.values.values()]
        reader.fields()
        for value in values:
            if isinstance(value, (FileRange, ContainerValue)):
                assert len(bytes_of.read(value)) <= value.size_bytes
    except (FeedrateError, UnusableValue):
        pass
    finally:
        bytes_of.close()


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_damaged_files_end_in_a_sentence_and_cost_no_memory(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    source = make(tmp_path)
    whole = source.read_bytes()
    rng = random.Random(5)
    read_everything(source)  # what is imported on the way is not counted
    tracemalloc.start()
    try:
        for _ in range(100):
            source.write_bytes(mutate(whole, rng))
            read_everything(source)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_damaged_examples_behind_right_checksums_end_in_a_sentence(tmp_path: Path) -> None:
    rng = random.Random(6)
    whole = dump_example({"image": [jpeg(1)], "label": [1], "t": [b"a", b"b"], "f": [0.5, 1.5]})
    for _ in range(200):
        read_everything(write_tfrecord(tmp_path / "d.tfrecord", [mutate(whole, rng), whole]))


def test_names_that_come_twice_are_found_among_many() -> None:
    from feedrate.source.names import Repeats

    names = [b"%d" % n for n in range(1000)]
    repeats = Repeats()
    for name in [*names, b"500"]:
        repeats.add(name)
    assert repeats.find([*names, b"500"]) == b"500"
    assert Repeats().find([]) is None
