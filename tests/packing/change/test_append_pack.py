# SPDX-License-Identifier: Apache-2.0
"""A pack that another one was appended to holds what both hold, and copies none of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from feedrate import (
    AppendOptions,
    ColumnOptions,
    Dataset,
    Loader,
    PackOptions,
    Recode,
    add_column,
    append,
    index,
    pack,
    set_entries,
    split,
    unpack,
    verify,
)
from feedrate.errors import PackError, SourceError, StorageError, UsageError
from feedrate.format.manifest import dump_manifest, parse_manifest, read_manifest
from feedrate.packing.check.describe import describe
from feedrate.packing.check.quality_report import read_quality
from support.damage import without_digest
from support.images import read_tree, save_image

SMALL = PackOptions(workers=1, shard_bytes=8_000)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    for number in range(6):
        save_image(tmp_path / "a" / ("cat" if number % 2 else "dog") / f"a{number}.jpg", number)
        save_image(tmp_path / "b" / ("dog" if number % 2 else "cat") / f"b{number}.jpg", 10 + number)
    for name in "ab":
        pack(tmp_path / name, tmp_path / f"{name}.pack", SMALL)
    return tmp_path / "a.pack", tmp_path / "b.pack"


def samples_of(packed: Path, *fields: str) -> list[Any]:
    dataset = Dataset(packed, fields=("key", *fields), output="numpy")
    return dataset.__getitems__(range(len(dataset)))


def named_labels(packed: Path) -> list[tuple[str, str]]:
    dataset = Dataset(packed, fields=("key", "label"))
    return [(key, dataset.classes[label]) for key, label in dataset.__getitems__(range(len(dataset)))]


def test_the_whole_is_its_parts_one_behind_the_other(two: tuple[Path, Path], tmp_path: Path) -> None:
    parts = [sample for one in two for sample in samples_of(one, "image")]
    labels = [pair for one in two for pair in named_labels(one)]
    other = read_tree(two[1])
    result = append(two[1], two[0])
    assert (result.added, result.samples, result.refers, result.new_classes) == (6, 12, True, ())
    assert read_tree(two[1]) == other
    assert named_labels(two[0]) == labels
    assert all((a[1] == b[1]).all() for a, b in zip(samples_of(two[0], "image"), parts, strict=True))
    assert sorted(Dataset(two[0], fields=("number",))[i] for i in range(12)) == list(range(12))
    assert verify(two[0], workers=1).problems == ()
    assert verify(two[0], workers=1).extra_files == ()
    unpack(two[0], tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "a") | read_tree(tmp_path / "b")


def test_unequal_classes_are_refused_with_both_lists_and_what_to_type(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    save_image(tmp_path / "c" / "bee" / "c.jpg", 30)
    pack(tmp_path / "c", tmp_path / "c.pack", SMALL)
    before = read_tree(two[0])
    with pytest.raises(
        SourceError, match=r"of 'label' are cat, dog in .*a.pack, and bee in .*c.pack"
    ) as caught:
        append(tmp_path / "c.pack", two[0])
    assert f"feedrate append SOURCE {two[0]}" in str(caught.value.hint)
    assert read_tree(two[0]) == before
    append(tmp_path / "c", two[0], AppendOptions(workers=1))
    assert dict(named_labels(two[0]))["bee/c"] == "bee"


def test_what_only_says_how_files_are_read_is_refused_for_a_pack(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is a pack, whose samples have their labels") as caught:
        append(two[1], two[0], AppendOptions(skip_existing=True))
    assert "--prefix, --default and --allow-address" in str(caught.value.hint)
    with pytest.raises(UsageError, match="'x/y' cannot stand before keys"):
        append(two[1], two[0], AppendOptions(prefix="x/y"))
    with pytest.raises(UsageError, match="--prefix goes before the keys of a pack"):
        append(tmp_path / "b", two[0], AppendOptions(prefix="b"))
    with pytest.raises(UsageError, match="is the source itself"):
        append(two[0], two[0])


def test_pixels_and_entry_points_of_both_are_made_alike(two: tuple[Path, Path], tmp_path: Path) -> None:
    small = PackOptions(workers=1, recode=Recode(resize=16))
    pack(tmp_path / "b", tmp_path / "small.pack", small)
    with pytest.raises(SourceError, match=r"are unchanged, and those of .* are lossy: shorter side 16"):
        append(tmp_path / "small.pack", two[0])
    pack(tmp_path / "b", tmp_path / "unscanned.pack", dataclasses.replace(SMALL, scan=False))
    with pytest.raises(SourceError, match=r"images of .*unscanned.pack have no entry points") as caught:
        append(tmp_path / "unscanned.pack", two[0])
    assert f"feedrate index {tmp_path / 'unscanned.pack'} --entries auto" in str(caught.value.hint)
    set_entries(tmp_path / "unscanned.pack", "auto", workers=1)
    assert append(tmp_path / "unscanned.pack", two[0]).samples == 12


def test_a_pack_that_refers_to_others_moves_with_them_and_misses_them(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    moved = [one.rename(together / one.name) for one in two]
    append(moved[1], moved[0])
    away = together.rename(tmp_path / "away")
    assert verify(away / "a.pack", workers=1).problems == ()
    shutil.rmtree(away / "b.pack")
    problems = verify(away / "a.pack", workers=1).problems
    assert {problem.text for problem in problems} == {"cannot be read: No such file or directory"}
    dataset = Dataset(away / "a.pack", fields=("image",))
    assert dataset[0] is not None
    with pytest.raises(StorageError, match=r"b\.pack/.* cannot be read: No such file"):
        dataset[11]


def test_a_pack_that_was_made_anew_is_not_taken_for_the_old_one(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    append(two[1], two[0])
    split(two[1], {"a": 0.5, "b": 0.5})
    assert len(Dataset(two[0])) == 12, "what is added to it does no harm"
    shutil.rmtree(two[1])
    pack(tmp_path / "b", two[1], dataclasses.replace(SMALL, seed=1))
    with pytest.raises(PackError, match=r"refers to \.\./b\.pack/shard-.*, and that is another pack now"):
        Loader(two[0])


def test_equal_keys_are_refused_or_told_apart_by_a_prefix(two: tuple[Path, Path], tmp_path: Path) -> None:
    pack(tmp_path / "a", tmp_path / "copy.pack", SMALL)
    before = read_tree(two[0])
    with pytest.raises(SourceError, match=r"6 keys stand in two packs: '(cat|dog)/a\d' in") as caught:
        append(tmp_path / "copy.pack", two[0])
    assert "--prefix" in str(caught.value.hint)
    assert read_tree(two[0]) == before
    append(tmp_path / "copy.pack", two[0], AppendOptions(prefix="copy"))
    keys = [key for key, _ in samples_of(two[0], "label")]
    assert len(set(keys)) == 12
    assert {key.split("/")[0] for key in keys} == {"cat", "dog", "copy"}
    assert verify(two[0], workers=1).problems == ()
    unpack(two[0], tmp_path / "out", workers=1)
    copied = {f"copy/{name}": data for name, data in read_tree(tmp_path / "a").items()}
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "a") | copied
    again = append(tmp_path / "copy.pack", two[0], AppendOptions(prefix="copy"))
    assert (again.added, again.skipped, again.samples) == (0, 6, 12)


def test_a_pack_with_another_behind_it_is_appended_in_its_turn(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    for number, name in enumerate(("cat", "dog")):
        save_image(tmp_path / "c" / name / f"c{number}.jpg", 30 + number)
    pack(tmp_path / "c", tmp_path / "c.pack", SMALL)
    labels = [named_labels(one) for one in two]
    append(two[1], two[0], AppendOptions(prefix="b"))
    append(two[0], tmp_path / "c.pack", AppendOptions(prefix="m"))
    assert verify(tmp_path / "c.pack", workers=1).problems == ()
    assert dict(named_labels(tmp_path / "c.pack")) == {
        "cat/c0": "cat",
        "dog/c1": "dog",
        **{f"m/{key}": name for key, name in labels[0]},
        **{f"m/b/{key}": name for key, name in labels[1]},
    }
    assert sorted(Dataset(tmp_path / "c.pack", fields=("number",))[i] for i in range(14)) == list(range(14))


def test_added_columns_and_splits_come_along(two: tuple[Path, Path], tmp_path: Path) -> None:
    for i, one in enumerate(two):
        table = tmp_path / "t.jsonl"
        lines = describe(one, samples=10).first_samples
        table.write_text(
            "".join(
                json.dumps({"key": s.key, "age": 10 * i + n, "sex": "mf"[n % 2]}) + "\n"
                for n, s in enumerate(lines)
            )
        )
        add_column(one, table, ColumnOptions(column="age"))
        add_column(one, table, ColumnOptions(column="sex", kind="class"))
        add_column(one, table, ColumnOptions(column="age", name="words", kind="text"))
    split(two[0], {"train": 0.5, "test": 0.5})
    expected = [sample for one in two for sample in samples_of(one, "age", "words")]
    result = append(two[1], two[0])
    assert result.unassigned == ("split",)
    assert samples_of(two[0], "age", "words") == expected
    assert describe(two[0]).column_counts == {
        "sex": {"f": 6, "m": 6},
        "split": {"train": 3, "test": 3},
    }
    assert verify(two[0], workers=1).problems == ()
    with pytest.raises(
        SourceError, match=r"a.pack has a column 'split' that was added to it, and .*b.pack has"
    ):
        append(two[0], two[1], AppendOptions(prefix="a"))


def test_packs_of_several_containers_come_together(two: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    packs = [two[0]]
    for container in ("tfrecord", "hdf5"):
        source = (tmp_path / "b").rename(tmp_path / container) if container == "tfrecord" else tmp_path / "c"
        if container == "hdf5":
            for number in range(6):
                save_image(source / ("dog" if number % 2 else "cat") / f"c{number}.jpg", 40 + number)
        packs.append(tmp_path / f"{container}.pack")
        pack(source, packs[-1], dataclasses.replace(SMALL, container=container))
    expected = [pair for one in packs for pair in named_labels(one)]
    for one in packs[1:]:
        append(one, two[0])
    assert [s.container for s in read_manifest(two[0]).shards][-1] == "hdf5"
    check = verify(two[0], workers=1)
    assert (check.problems, check.extra_files) == ((), ())
    assert named_labels(two[0]) == expected
    with Loader(two[0], 18, fields=("image", "key"), output="numpy", shuffle=False) as loader:
        images, keys = next(iter(loader))
    for one in packs[1:]:
        for key, image in samples_of(one, "image"):
            assert (images[keys.index(key)] == image).all()


def test_files_that_were_indexed_where_they_lie_are_referred_to(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    index(tmp_path / "b", tmp_path / "b.index")
    assert append(tmp_path / "b.index", two[0], AppendOptions(prefix="b")).samples == 12
    assert verify(two[0], workers=1).problems == ()
    assert named_labels(two[0])[6:] == [
        (f"b/{key}", name) for key, name in named_labels(tmp_path / "b.index")
    ]
    whole = samples_of(two[0], "image")[6:]
    assert all(
        (a[1] == b[1]).all() for a, b in zip(whole, samples_of(tmp_path / "b.index", "image"), strict=True)
    )
    split(tmp_path / "b.index", {"train": 0.5, "test": 0.5})
    assert len(Dataset(tmp_path / "b.index", split="test")) == 3


def test_rejected_inputs_and_quality_are_those_of_all(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "a" / "cat" / "bad.jpg").write_text("no image")
    pack(tmp_path / "a", tmp_path / "again.pack", SMALL)
    append(tmp_path / "again.pack", two[1])
    assert read_quality(two[1]).rejected == describe(two[1]).rejected == 1
    assert "bad.jpg" in (two[1] / "rejected.jsonl").read_text()


def test_tables_of_labels_come_back_from_both_packs(tmp_path: Path) -> None:
    for name in "ab":
        save_image(tmp_path / name / f"{name}.jpg", 1)
        table = tmp_path / name / "labels.csv"
        table.write_text(f"path,label\n{name}.jpg,ant\n")
        pack(tmp_path / name, tmp_path / f"{name}.pack", PackOptions(labels=table, workers=1))
    append(tmp_path / "b.pack", tmp_path / "a.pack")
    assert verify(tmp_path / "a.pack", workers=1).problems == ()
    unpack(tmp_path / "a.pack", tmp_path / "out", workers=1)
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
    before = read_tree(two[0])
    for other, message in {
        "flat": "a.pack stores a field 'label', .*flat.pack does not",
        "raw": "a.pack are unchanged, and those of .*raw.pack are raw",
        "real": "field 'label' is int64 in .*a.pack, and float64 in",
        "whole": "field 'label' is a class in .*a.pack, a plain number in",
    }.items():
        with pytest.raises(SourceError, match=message):
            append(tmp_path / f"{other}.pack", two[0])
    assert read_tree(two[0]) == before
    table.write_text(
        "path,age\n"
        + "".join(f"{s.path},{i}\n" for i, s in enumerate(describe(two[0], samples=9).first_samples))
    )
    add_column(two[0], table)
    with pytest.raises(SourceError, match=r"new samples would have no value of the column 'age' \(number\)"):
        append(two[1], two[0])
    append(two[1], two[0], AppendOptions(defaults={"age": "7"}))
    assert [age for _, age in samples_of(two[0], "age")][6:] == [7] * 6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"folder": "../b.pack"', b'"folder": "/etc"', "is not a relative folder"),
        (b'"folder": "../b.pack"', b'"folder": "../a/../b"', "is not a relative folder"),
        (b'"folder": "../b.pack"', b'"folder": "a\\u0000b"', "is not a folder"),
        (b'"folder": "../b.pack"', b'"folder": 7', "7 is no str"),
        (b'"prefix": "b"', b'"prefix": "../a"', "is not a plain file name"),
        (b'"prefix": "b"', b'"prefix": 3', "is not a prefix"),
        (b'"first": 6', b'"first": 7', "samples that the pack does not have"),
        (
            b'"fields": [\n    "split"',
            b'"fields": [\n    "image"',
            "field 'image' that the pack does not have",
        ),
    ],
)
def test_a_manifest_that_a_stranger_wrote_is_checked(
    two: tuple[Path, Path], old: bytes, new: bytes, message: str
) -> None:
    split(two[0], {"train": 0.5, "test": 0.5})
    append(two[1], two[0], AppendOptions(prefix="b"))
    text = (two[0] / "pack.json").read_bytes()
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
