# SPDX-License-Identifier: Apache-2.0
"""A merged pack holds what the packs hold, one behind the other, and copies none of it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from feedrate import (
    ColumnOptions,
    Dataset,
    Loader,
    MergeOptions,
    PackOptions,
    Recode,
    add_column,
    index,
    merge,
    pack,
    split,
    unpack,
    verify,
)
from feedrate.errors import AlreadyExists, NotFound, PackError, SourceError, StorageError, UsageError
from feedrate.format.manifest import dump_manifest, parse_manifest, read_manifest
from feedrate.packing.check.describe import describe
from feedrate.packing.check.quality_report import read_quality
from support.damage import without_digest
from support.examples import examples
from support.images import read_tree, save_image
from support.packs import LABEL, write_pack

SMALL = PackOptions(workers=1, shard_bytes=8_000)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    for number in range(6):
        save_image(tmp_path / "a" / ("cat" if number % 2 else "dog") / f"a{number}.jpg", number)
        save_image(tmp_path / "b" / ("dog" if number % 2 else "bee") / f"b{number}.jpg", 10 + number)
    for name in "ab":
        pack(tmp_path / name, tmp_path / f"{name}.pack", SMALL)
    return tmp_path / "a.pack", tmp_path / "b.pack"


def samples_of(packed: Path, *fields: str) -> list[Any]:
    dataset = Dataset(packed, fields=("key", *fields), output="numpy")
    return dataset.__getitems__(range(len(dataset)))


def named_labels(packed: Path) -> list[tuple[str, str]]:
    dataset = Dataset(packed, fields=("key", "label"))
    return [(key, dataset.classes[label]) for key, label in dataset.__getitems__(range(len(dataset)))]


@pytest.mark.parametrize("refer", [False, True])
def test_the_whole_is_its_parts_one_behind_the_other(
    two: tuple[Path, Path], tmp_path: Path, refer: bool
) -> None:
    result = merge(two, tmp_path / "m.pack", MergeOptions(refer=refer))
    assert (result.samples, result.classes) == (12, 3)
    assert [one.linked for one in result.packs] == [not refer] * 2
    assert named_labels(tmp_path / "m.pack") == [pair for one in two for pair in named_labels(one)]
    whole = samples_of(tmp_path / "m.pack", "image")
    parts = [sample for one in two for sample in samples_of(one, "image")]
    assert all((a[1] == b[1]).all() for a, b in zip(whole, parts, strict=True))
    assert sorted(Dataset(tmp_path / "m.pack", fields=("number",))[i] for i in range(12)) == list(range(12))
    assert verify(tmp_path / "m.pack", workers=1).problems == ()
    assert verify(tmp_path / "m.pack", workers=1).extra_files == ()
    unpack(tmp_path / "m.pack", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "a") | read_tree(tmp_path / "b")


def test_classes_are_united_by_name_and_the_first_packs_numbers_stay(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    merge(two, tmp_path / "m.pack")
    assert describe(tmp_path / "m.pack").class_counts == {"cat": 3, "dog": 6, "bee": 3}
    with Loader(tmp_path / "m.pack", 12, fields=("label",), output="numpy", weights="balanced") as loader:
        assert loader.classes == ["cat", "dog", "bee"]
        assert len(next(iter(loader))[0]) == 12


def test_linked_shards_stay_when_the_originals_are_deleted(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "m.pack")
    assert os.stat(tmp_path / "m.pack" / "shard-00000.tar").st_nlink == 2
    for one in two:
        shutil.rmtree(one)
    assert verify(tmp_path / "m.pack", workers=1).problems == ()


def test_a_pack_that_refers_to_others_moves_with_them_and_misses_them(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    moved = [one.rename(together / one.name) for one in two]
    merge(moved, together / "m.pack", MergeOptions(refer=True))
    assert not list((together / "m.pack").glob("*.tar"))
    elsewhere = together.rename(tmp_path / "elsewhere")
    assert verify(elsewhere / "m.pack", workers=1).problems == ()
    shutil.rmtree(elsewhere / "b.pack")
    problems = verify(elsewhere / "m.pack", workers=1).problems
    assert {problem.text for problem in problems} == {"cannot be read: No such file or directory"}
    dataset = Dataset(elsewhere / "m.pack", fields=("image",))
    assert dataset[0] is not None
    with pytest.raises(StorageError, match=r"b\.pack/.* cannot be read: No such file"):
        dataset[11]


def test_a_pack_that_was_made_anew_is_not_taken_for_the_old_one(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    merge(two, tmp_path / "m.pack", MergeOptions(refer=True))
    split(two[1], {"a": 0.5, "b": 0.5})
    assert len(Dataset(tmp_path / "m.pack")) == 12, "what is added to it does no harm"
    shutil.rmtree(two[1])
    pack(tmp_path / "b", two[1], dataclasses.replace(SMALL, seed=1))
    with pytest.raises(PackError, match=r"refers to \.\./b\.pack/shard-.*, and that is another pack now"):
        Loader(tmp_path / "m.pack")


def test_where_links_cannot_be_made_it_refers(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert [one.linked for one in merge(two, tmp_path / "m.pack").packs] == [False, False]
    assert verify(tmp_path / "m.pack", workers=1).problems == ()


def test_equal_keys_are_refused_or_told_apart_by_a_prefix(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    pack(tmp_path / "a", tmp_path / "other" / "copy.pack", SMALL)
    same = (two[0], tmp_path / "other" / "copy.pack")
    with pytest.raises(SourceError, match=r"6 keys stand in two packs: '(cat|dog)/a\d' in") as caught:
        merge(same, tmp_path / "m.pack")
    assert "--prefix" in str(caught.value.hint)
    assert not (tmp_path / "m.pack").exists()
    merge(same, tmp_path / "m.pack", MergeOptions(prefix=True))
    keys = [key for key, _ in samples_of(tmp_path / "m.pack", "label")]
    assert len(set(keys)) == 12
    assert {key.split("/")[0] for key in keys} == {"a", "copy"}
    assert verify(tmp_path / "m.pack", workers=1).problems == ()
    unpack(tmp_path / "m.pack", tmp_path / "out", workers=1)
    assert (
        read_tree(tmp_path / "out" / "a") == read_tree(tmp_path / "out" / "copy") == read_tree(tmp_path / "a")
    )


def test_merged_packs_merge_again(two: tuple[Path, Path], tmp_path: Path) -> None:
    save_image(tmp_path / "c" / "ant" / "c.jpg", 30)
    pack(tmp_path / "c", tmp_path / "c.pack", SMALL)
    merge(two, tmp_path / "m.pack", MergeOptions(prefix=True, refer=True))
    merge([tmp_path / "c.pack", tmp_path / "m.pack"], tmp_path / "n.pack", MergeOptions(prefix=True))
    assert verify(tmp_path / "n.pack", workers=1).problems == ()
    keys = dict(named_labels(tmp_path / "n.pack"))
    assert keys == {
        "c/ant/c": "ant",
        **{f"m/{one.stem}/{key}": name for one in two for key, name in named_labels(one)},
    }
    assert sorted(Dataset(tmp_path / "n.pack", fields=("number",))[i] for i in range(13)) == list(range(13))


def test_added_columns_and_splits_come_along(two: tuple[Path, Path], tmp_path: Path) -> None:
    for i, one in enumerate(two):
        table = tmp_path / "t.jsonl"
        lines = describe(one, samples=10).first_samples
        table.write_text(
            "".join(
                json.dumps({"key": s.key, "age": i + n / 8 if i else n, "sex": "mfx"[n % 2 + i]}) + "\n"
                for n, s in enumerate(lines)
            )
        )
        add_column(one, table, ColumnOptions(column="age"))
        add_column(one, table, ColumnOptions(column="sex", kind="class"))
        add_column(one, table, ColumnOptions(column="age", name="words", kind="text"))
    split(two[0], {"train": 0.5, "test": 0.5})
    result = merge(two, tmp_path / "m.pack")
    assert result.unassigned == ("split",)
    assert samples_of(tmp_path / "m.pack", "age", "words") == [
        sample for one in two for sample in samples_of(one, "age", "words")
    ]
    assert describe(tmp_path / "m.pack").column_counts == {
        "sex": {"f": 6, "m": 3, "x": 3},
        "split": {"train": 3, "test": 3},
    }
    assert verify(tmp_path / "m.pack", workers=1).problems == ()


@pytest.mark.parametrize("refer", [False, True])
def test_packs_of_several_containers_merge(two: tuple[Path, Path], tmp_path: Path, refer: bool) -> None:
    pytest.importorskip("h5py")
    packs = [two[0]]
    for container in ("tfrecord", "hdf5"):
        source = (tmp_path / "b").rename(tmp_path / container) if container == "tfrecord" else tmp_path / "c"
        if container == "hdf5":
            for number in range(6):
                save_image(source / "cat" / f"c{number}.jpg", 40 + number)
        packs.append(tmp_path / f"{container}.pack")
        pack(source, packs[-1], dataclasses.replace(SMALL, container=container))
    merge(packs, tmp_path / "m.pack", MergeOptions(refer=refer))
    assert [s.container for s in read_manifest(tmp_path / "m.pack").shards][-1] == "hdf5"
    check = verify(tmp_path / "m.pack", workers=1)
    assert (check.problems, check.extra_files) == ((), ())
    assert named_labels(tmp_path / "m.pack") == [pair for one in packs for pair in named_labels(one)]
    with Loader(tmp_path / "m.pack", 18, fields=("image", "key"), output="numpy", shuffle=False) as loader:
        images, keys = next(iter(loader))
    for one in packs:
        for key, image in samples_of(one, "image"):
            assert (images[keys.index(key)] == image).all()


def test_files_that_were_indexed_where_they_lie_are_referred_to(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    index(tmp_path / "b", tmp_path / "b.index")
    result = merge([two[0], tmp_path / "b.index"], tmp_path / "m.pack", MergeOptions(prefix=True))
    assert result.samples == 12
    assert verify(tmp_path / "m.pack", workers=1).problems == ()
    assert named_labels(tmp_path / "m.pack")[6:] == [
        (f"b.index/{key}", name) for key, name in named_labels(tmp_path / "b.index")
    ]
    whole = samples_of(tmp_path / "m.pack", "image")[6:]
    assert all(
        (a[1] == b[1]).all() for a, b in zip(whole, samples_of(tmp_path / "b.index", "image"), strict=True)
    )
    split(tmp_path / "b.index", {"train": 0.5, "test": 0.5})
    assert len(Dataset(tmp_path / "b.index", split="test")) == 3


def test_rejected_inputs_and_quality_are_those_of_all(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "a" / "cat" / "bad.jpg").write_text("no image")
    pack(tmp_path / "a", tmp_path / "again.pack", SMALL)
    merge([tmp_path / "again.pack", two[1]], tmp_path / "m.pack")
    assert read_quality(tmp_path / "m.pack").rejected == describe(tmp_path / "m.pack").rejected == 1
    assert "bad.jpg" in (tmp_path / "m.pack" / "rejected.jsonl").read_text()


def test_tables_of_labels_come_back_from_a_merged_pack(tmp_path: Path) -> None:
    for name in "ab":
        save_image(tmp_path / name / f"{name}.jpg", 1)
        table = tmp_path / name / "labels.csv"
        table.write_text(f"path,label\n{name}.jpg,{name}\n")
        pack(tmp_path / name, tmp_path / f"{name}.pack", PackOptions(labels=table, workers=1))
    merge([tmp_path / "a.pack", tmp_path / "b.pack"], tmp_path / "m.pack")
    assert verify(tmp_path / "m.pack", workers=1).problems == ()
    unpack(tmp_path / "m.pack", tmp_path / "out", workers=1)
    assert (tmp_path / "out" / "labels.csv").read_text() == (tmp_path / "a" / "labels.csv").read_text()
    assert (tmp_path / "out" / "labels-2.csv").read_text() == (tmp_path / "b" / "labels.csv").read_text()


def test_packs_that_do_not_fit_together_are_refused_by_field(two: tuple[Path, Path], tmp_path: Path) -> None:
    save_image(tmp_path / "flat" / "1.jpg", 1)
    pack(tmp_path / "flat", tmp_path / "flat.pack", SMALL)
    pack(tmp_path / "b", tmp_path / "raw.pack", PackOptions(workers=1, recode=Recode(raw=True)))
    table = tmp_path / "t.csv"
    table.write_text("path,label\n1.jpg,0.5\n")
    pack(tmp_path / "flat", tmp_path / "real.pack", PackOptions(labels=table, workers=1))
    table.write_text("path,label\n1.jpg,3\n")
    pack(tmp_path / "flat", tmp_path / "whole.pack", PackOptions(labels=table, workers=1))
    for other, message in {
        "flat": "a.pack stores a field 'label', .*flat.pack does not",
        "raw": "field 'image' is stored as 'file' in .*a.pack, and raw in",
        "real": "field 'label' is int64 in .*a.pack, and float64 in",
        "whole": "field 'label' is a class in .*a.pack, a plain number in",
    }.items():
        with pytest.raises(SourceError, match=message):
            merge([two[0], tmp_path / f"{other}.pack"], tmp_path / "m.pack")
    assert not (tmp_path / "m.pack").exists()
    table.write_text(
        "path,age\n"
        + "".join(f"{s.path},{i}\n" for i, s in enumerate(describe(two[0], samples=9).first_samples))
    )
    add_column(two[0], table)
    with pytest.raises(SourceError, match=r"samples of .*b.pack have no value of 'age'"):
        merge(two, tmp_path / "m.pack")
    assert not (tmp_path / "m.pack").exists()


def test_the_target_must_be_new(two: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two packs"):
        merge(two[:1], tmp_path / "m.pack")
    with pytest.raises(UsageError, match="is one of the packs"):
        merge(two, two[0])
    with pytest.raises(NotFound, match="no pack at"):
        merge([two[0], tmp_path / "none.pack"], tmp_path / "m.pack")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(AlreadyExists, match="holds 'thesis"):
        merge(two, tmp_path / "full")
    merge(two, tmp_path / "m.pack")
    with pytest.raises(AlreadyExists, match="already holds a finished pack of 12 samples"):
        merge(two, tmp_path / "m.pack")


packs_of_labels = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
        st.lists(st.integers(0, 5), max_size=8),
    ),
    min_size=2,
    max_size=4,
)


@given(packs=packs_of_labels)
@hypothesis_settings(max_examples=examples(20))
def test_whatever_the_class_lists_every_sample_keeps_its_class(
    tmp_path_factory: pytest.TempPathFactory, packs: list[tuple[list[str], list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    expected: list[str] = []
    for i, (classes, labels) in enumerate(packs):
        field = type(LABEL)(LABEL.name, LABEL.kind, dtype="int64", classes=tuple(classes))
        samples = [{"label": label % len(classes)} for label in labels]
        write_pack(folder / f"p{i}", (field,), samples, shards=1)
        expected += [classes[sample["label"]] for sample in samples]
    merge([folder / f"p{i}" for i in range(len(packs))], folder / "m", MergeOptions(prefix=True))
    merged = Dataset(folder / "m", fields=("label",))
    assert [merged.classes[merged[i]] for i in range(len(merged))] == expected
    assert merged.targets == [merged[i] for i in range(len(merged))]
    assert merged.classes[: len(packs[0][0])] == packs[0][0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"folder": "../a.pack"', b'"folder": "/etc"', "is not a relative folder"),
        (b'"folder": "../a.pack"', b'"folder": "../a/../b"', "is not a relative folder"),
        (b'"folder": "../a.pack"', b'"folder": "a\\u0000b"', "is not a folder"),
        (b'"folder": "../a.pack"', b'"folder": 7', "is not a folder"),
        (b'"prefix": "a"', b'"prefix": "../a"', "is not a plain file name"),
        (b'"prefix": "a"', b'"prefix": 3', "is not a prefix"),
        (b'"first": 6', b'"first": 7', "samples that the pack does not have"),
        (
            b'"fields": [\n    "label"',
            b'"fields": [\n    "image"',
            "field 'image' that the pack does not have",
        ),
    ],
)
def test_a_manifest_that_a_stranger_wrote_is_checked(
    two: tuple[Path, Path], tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    merge(two, tmp_path / "m.pack", MergeOptions(prefix=True, refer=True))
    text = (tmp_path / "m.pack" / "pack.json").read_bytes()
    assert old in text
    with pytest.raises(PackError, match=message):
        parse_manifest(without_digest(text).replace(old, new))


def test_an_added_field_that_some_sample_lacks_is_damage(two: tuple[Path, Path]) -> None:
    split(two[0], {"a": 0.5, "b": 0.5})
    text = (two[0] / "pack.json").read_bytes()
    short = text.replace(b'"first": 0,\n   "samples": 6', b'"first": 0,\n   "samples": 5')
    assert short != text
    with pytest.raises(PackError, match="sample 5 has no value of field 'split'"):
        parse_manifest(without_digest(short))
    assert dump_manifest(read_manifest(two[0])) == text
