# SPDX-License-Identifier: Apache-2.0
"""A column from a table becomes a field: the right value for every sample, or a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from feedrate import ColumnOptions, Dataset, Loader, PackOptions, add_column, pack, unpack, verify
from feedrate.errors import AlreadyExists, BadSample, NotFound, SourceError, UsageError
from feedrate.files.lock import folder_lock
from feedrate.format.manifest import read_manifest
from feedrate.packing.check.describe import describe
from support.examples import examples
from support.images import read_tree
from support.packs import write_numbers


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path) -> Path:
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1, shard_bytes=20_000))
    return tmp_path / "p"


def write_table(path: Path, values: dict[str, Any], column: str = "value", names: str = "path") -> Path:
    rows = [{names: name, column: value} for name, value in values.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def paths_of(packed: Path) -> list[str]:
    return [line.path for line in describe(packed, samples=100).first_samples]


def values_of(packed: Path, name: str) -> dict[str, Any]:
    dataset = Dataset(packed, fields=("key", name))
    keys = {line.key: line.path for line in describe(packed, samples=1000).first_samples}
    return {keys[key]: value for key, value in dataset.__getitems__(range(len(dataset)))}


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("number", lambda i: i * 3 - 5),
        ("number", lambda i: i / 7),
        ("text", lambda i: f"číslo {i}" * (i % 3)),
        ("json", lambda i: {"i": [i]}),
    ],
)
def test_values_come_back_for_the_samples_they_are_about(packed: Path, kind: Any, make: Any) -> None:
    expected = {path: make(i) for i, path in enumerate(paths_of(packed))}
    table = write_table(packed.parent / "t.jsonl", expected)
    before = {name: data for name, data in read_tree(packed).items() if name != "pack.json"}
    default = "" if kind == "text" else None
    result = add_column(packed, table, ColumnOptions(kind=kind, default=default))
    assert (result.samples, result.unused, result.replaced) == (16, 0, False)
    assert values_of(packed, "value") == expected
    with Loader(packed, 5, fields=("key", "value"), output="numpy", shuffle=True) as loader:
        given = {k: v for keys, values in loader for k, v in zip(keys, values, strict=True)}
    keys = {line.key: line.path for line in describe(packed, samples=100).first_samples}
    assert {keys[key]: value for key, value in given.items()} == expected
    assert verify(packed, workers=1).problems == ()
    assert before.items() <= read_tree(packed).items()


def test_words_become_classes_and_numbers_sort_as_numbers(packed: Path) -> None:
    table = write_table(
        packed.parent / "t.jsonl", {p: str(i % 2 * 8 + 2) for i, p in enumerate(paths_of(packed))}
    )
    result = add_column(packed, table, ColumnOptions(kind="class", name="grade"))
    assert result.class_counts == {"2": 8, "10": 8}
    field = read_manifest(packed).field("grade")
    assert field is not None
    assert field.classes == ("2", "10")
    assert set(values_of(packed, "grade").values()) == {0, 1}


def test_many_different_words_ask_what_they_are(packed: Path) -> None:
    table = write_table(packed.parent / "t.jsonl", {p: f"text {p}" for p in paths_of(packed)})
    with pytest.raises(UsageError, match="16 different values for 16 samples: classes, or text"):
        add_column(packed, table)


def test_samples_without_a_row_are_named_or_get_the_default(packed: Path) -> None:
    paths = paths_of(packed)
    table = write_table(packed.parent / "t.jsonl", dict.fromkeys(paths[2:], 1.5) | {"nobody.jpg": 9.0})
    with pytest.raises(
        SourceError, match=f"2 of 16 samples have no value of 'value' in t.jsonl: '{paths[0]}'"
    ):
        add_column(packed, table)
    result = add_column(packed, table, ColumnOptions(default="-1"))
    assert (result.defaults, result.unused) == (2, 1)
    assert values_of(packed, "value") == dict.fromkeys(paths[:2], -1.0) | dict.fromkeys(paths[2:], 1.5)


def test_rows_may_name_keys_instead(tmp_path: Path) -> None:
    numbers = write_numbers(tmp_path / "p", 5)
    table = write_table(tmp_path / "t.jsonl", {f"sample-{n:05d}": n for n in range(5)}, names="key")
    add_column(numbers, table)
    assert Dataset(numbers, fields=("number", "value"))[3] == (3, 3)
    other = write_table(tmp_path / "o.jsonl", {f"sample-{n:05d}": n for n in range(5)}, names="id")
    with pytest.raises(SourceError, match="has no column that says which sample a row is about"):
        add_column(numbers, other, ColumnOptions(column="value", name="again"))
    add_column(numbers, other, ColumnOptions(key_column="id", name="again"))


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([["a.jpg", 1]], {}, SourceError, "16 of 16 samples have no value"),
        ([["a.jpg", 1]], {"default": "0"}, SourceError, "no row of .* is about .*: it names 'a.jpg'"),
        ([["cat/0.jpg", 1], ["cat/0.jpg", 2]], {}, SourceError, "two values for 'cat/0.jpg': 1, and"),
        ([["cat/0.jpg", "x"]], {"kind": "number", "default": "0"}, SourceError, "not made of numbers: 'x'"),
        ([["cat/0.jpg", "{"]], {"kind": "json", "default": "0"}, SourceError, "is not JSON: '{'"),
        ([["cat/0.jpg", 1]], {"column": "age"}, SourceError, "has no column 'age'"),
        ([["cat/0.jpg", 1]], {"name": "key", "default": "0"}, UsageError, "'key' cannot be the name"),
        ([["cat/0.jpg", 1]], {"name": "label", "default": "0"}, AlreadyExists, "already has a field 'label'"),
        ([["cat/0.jpg", 1]], {"name": "image", "replace": True}, AlreadyExists, "no column can replace"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_sentence_and_changes_nothing(
    packed: Path, rows: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = packed.parent / "t.jsonl"
    table.write_text("".join(json.dumps({"path": path, "value": value}) + "\n" for path, value in rows))
    before = read_tree(packed)
    with pytest.raises(error, match=message):
        add_column(packed, table, ColumnOptions(**options))
    assert read_tree(packed) == before


def test_labels_are_replaced_only_when_asked_for(packed: Path) -> None:
    paths = paths_of(packed)
    table = write_table(packed.parent / "t.csv", {})
    table.write_text("path,species\n" + "".join(f"{p},{'lion' if 'cat' in p else 'wolf'}\n" for p in paths))
    add_column(packed, table, ColumnOptions(name="label", replace=True))
    assert describe(packed).class_counts == {"lion": 8, "wolf": 8}
    with Loader(packed, 16, fields=("label",), output="numpy") as loader:
        assert loader.classes == ["lion", "wolf"]
        (labels,) = next(iter(loader))
    assert sorted(labels) == [0] * 8 + [1] * 8
    assert verify(packed, workers=1).problems == ()
    table.write_text("path,age\n" + "".join(f"{p},{i / 2}\n" for i, p in enumerate(paths)))
    add_column(packed, table, ColumnOptions(name="label", replace=True))
    assert values_of(packed, "label") == {p: i / 2 for i, p in enumerate(paths)}


def test_a_flipped_bit_in_a_column_is_a_bad_sample_and_verify_names_the_file(packed: Path) -> None:
    table = write_table(packed.parent / "t.jsonl", {p: i for i, p in enumerate(paths_of(packed))})
    add_column(packed, table)
    part = read_manifest(packed).parts[0]
    data = bytearray((packed / part.name).read_bytes())
    data[part.columns["value"][0] + 8 * 3] ^= 4
    (packed / part.name).write_bytes(data)
    dataset = Dataset(packed, fields=("value",))
    with pytest.raises(BadSample, match="row of the index cannot be used"):
        dataset[3]
    assert dataset[4] == 4
    assert Dataset(packed, fields=("label",))[3] in (0, 1), "who does not ask for it reads on"
    (problem,) = verify(packed, workers=1).problems
    assert (problem.file, problem.text) == (
        part.name, "its bytes are not those that were added (checksum of the file)"
    )  # fmt: skip
    (packed / part.name).unlink()
    assert [p.text for p in verify(packed, workers=1).problems] == [
        "cannot be read: No such file or directory"
    ]


def test_a_flipped_bit_in_an_added_text_is_a_bad_sample(packed: Path) -> None:
    table = write_table(packed.parent / "t.jsonl", {p: f"text of {p}" for p in paths_of(packed)})
    add_column(packed, table, ColumnOptions(kind="text"))
    part = read_manifest(packed).parts[0]
    data = bytearray((packed / part.name).read_bytes())
    data[part.columns["value"][1] + 2] ^= 1
    (packed / part.name).write_bytes(data)
    with pytest.raises(BadSample, match="checksum"):
        Dataset(packed, fields=("value",))[0]


def test_unpack_gives_the_same_files_as_before(packed: Path, jpeg_folder: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.jsonl", {p: i for i, p in enumerate(paths_of(packed))})
    add_column(packed, table)
    unpack(packed, tmp_path / "out", workers=1)
    (jpeg_folder / "dog" / "notes.txt").unlink()
    assert read_tree(tmp_path / "out") == read_tree(jpeg_folder)


def test_one_process_changes_a_pack_at_a_time(packed: Path) -> None:
    table = write_table(packed.parent / "t.jsonl", dict.fromkeys(paths_of(packed), 1))
    with folder_lock(packed), pytest.raises(AlreadyExists, match=r"is writing .* right now"):
        add_column(packed, table)
    add_column(packed, table)


def test_an_unfinished_pack_and_no_pack_are_refused(packed: Path) -> None:
    table = write_table(packed.parent / "t.jsonl", dict.fromkeys(paths_of(packed), 1))
    (packed / "packing.json").write_text("{}")
    with pytest.raises(AlreadyExists, match="is not finished: packing was interrupted"):
        add_column(packed, table)
    with pytest.raises(NotFound, match="no pack at"):
        add_column(packed.parent / "none", table)


finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)


@hypothesis_settings(max_examples=examples(25))
@given(values=st.lists(finite, min_size=1, max_size=30))
def test_any_numbers_come_back(tmp_path_factory: pytest.TempPathFactory, values: list[float | int]) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    numbers = write_numbers(folder / "p", len(values), shards=2)
    add_column(
        numbers,
        write_table(folder / "t.jsonl", {f"sample-{n:05d}": v for n, v in enumerate(values)}, names="key"),
    )
    found = [
        value
        for _, value in sorted(Dataset(numbers, fields=("number", "value")).__getitems__(range(len(values))))
    ]
    if all(isinstance(value, int) for value in values):
        assert found == values
    else:
        assert all(math.isclose(a, float(b), rel_tol=0) for a, b in zip(found, values, strict=True))


@hypothesis_settings(max_examples=examples(25))
@given(values=st.lists(st.text(min_size=1), min_size=1, max_size=30))
def test_any_texts_come_back(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    numbers = write_numbers(folder / "p", len(values), shards=2)
    table = write_table(folder / "t.jsonl", {f"sample-{n:05d}": v for n, v in enumerate(values)}, names="key")
    add_column(numbers, table, ColumnOptions(kind="text"))
    found = [
        value
        for _, value in sorted(Dataset(numbers, fields=("number", "value")).__getitems__(range(len(values))))
    ]
    assert found == values
