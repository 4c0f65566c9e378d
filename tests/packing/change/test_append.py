# SPDX-License-Identifier: Apache-2.0
"""A pack that grows: what was there stays as it was, byte for byte, and new samples come behind it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
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
    SplitOptions,
    add_column,
    append,
    pack,
    split,
    unpack,
    verify,
)
from feedrate.errors import AlreadyExists, NotFound, SourceError, StorageError, UsageError
from feedrate.format.manifest import read_manifest
from feedrate.packing.change import append as appending
from feedrate.packing.check.describe import describe
from feedrate.packing.check.quality_report import read_quality
from feedrate.packing.mapping import find_map
from feedrate.source.options import FieldSpec
from support.images import read_tree, save_image

SMALL = PackOptions(workers=1, shard_bytes=8_000)
ONE = AppendOptions(workers=1)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for number in range(8):
        save_image(tmp_path / "old" / ("cat" if number % 2 else "dog") / f"{number}.jpg", number)
        save_image(tmp_path / "new" / ("ape" if number % 2 else "dog") / f"n{number}.jpg", 20 + number)
    pack(tmp_path / "old", tmp_path / "p", SMALL)
    return tmp_path / "p"


def labels_of(packed: Path, **options: Any) -> dict[str, str]:
    dataset = Dataset(packed, fields=("key", "label"), **options)
    return {key: dataset.classes[label] for key, label in dataset.__getitems__(range(len(dataset)))}


def test_new_samples_come_behind_the_old_ones_which_stay_as_they_were(packed: Path, tmp_path: Path) -> None:
    before, old = read_tree(packed), labels_of(packed)
    del before["pack.json"], before["quality.json"]
    result = append(tmp_path / "new", packed, ONE)
    assert (result.samples, result.added, result.new_classes) == (16, 8, ("ape",))
    assert before.items() <= read_tree(packed).items()
    assert list(labels_of(packed).items())[:8] == list(old.items())
    assert labels_of(packed).items() - old.items() == {
        (f"{'ape' if n % 2 else 'dog'}/n{n}", "ape" if n % 2 else "dog") for n in range(8)
    }
    assert Dataset(packed).classes == ["cat", "dog", "ape"]
    assert sorted(Dataset(packed, fields=("number",))[i] for i in range(16)) == list(range(16))
    check = verify(packed, workers=1)
    assert (check.problems, check.extra_files) == ((), ())
    names = sorted(shard.name for shard in read_manifest(packed).shards)
    assert names == [f"shard-{number:05d}.tar" for number in range(len(names))]
    unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "old") | read_tree(tmp_path / "new")


def test_a_reader_that_has_the_pack_open_is_not_disturbed(packed: Path, tmp_path: Path) -> None:
    with Loader(packed, 2, fields=("key", "label"), output="numpy") as loader:
        batches = iter(loader)
        given = list(next(batches)[0])
        append(tmp_path / "new", packed, ONE)
        given += [key for keys, _ in batches for key in keys]
        assert len(set(given)) == 8
        state = loader.state_dict()
    longer = Loader(packed, 2, fields=("key", "label"), output="numpy")
    with longer, pytest.raises(ValueError, match="was taken from another pack"):
        longer.load_state_dict(state)


def test_files_that_the_pack_has_are_refused_or_skipped(packed: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "old" / "cat" / "later.jpg", 40)
    before = read_tree(packed)
    with pytest.raises(SourceError, match=r"'cat/1\.jpg' is in .* already") as caught:
        append(tmp_path / "old", packed, ONE)
    assert "--skip-existing" in str(caught.value.hint)
    assert read_tree(packed) == before
    skip = AppendOptions(workers=1, skip_existing=True)
    result = append(tmp_path / "old", packed, skip)
    assert (result.added, result.skipped) == (1, 8)
    again = append(tmp_path / "old", packed, skip)
    assert (again.added, again.skipped, again.samples) == (0, 9, 9)
    assert verify(packed, workers=1).problems == ()


def test_keys_stay_unique_where_names_differ_only_in_their_suffix(packed: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "more" / "cat" / "1.png", 50)
    save_image(tmp_path / "more" / "cat" / "1.webp", 51)
    append(tmp_path / "more", packed, ONE)
    assert {"cat/1", "cat/1~2", "cat/1~2~2"} <= labels_of(packed).keys()
    assert verify(packed, workers=1).problems == ()


def test_a_pack_grows_again_and_again(packed: Path, tmp_path: Path) -> None:
    for number in range(3):
        save_image(tmp_path / f"more{number}" / f"class{number}" / f"{number}.jpg", 60 + number)
        append(tmp_path / f"more{number}", packed, ONE)
    assert Dataset(packed).classes == ["cat", "dog", "class0", "class1", "class2"]
    assert verify(packed, workers=1).problems == ()


@pytest.mark.parametrize("container", ["tfrecord", "hdf5"])
@pytest.mark.usefixtures("packed")
def test_packs_of_other_containers_grow_too(tmp_path: Path, container: str) -> None:
    if container == "hdf5":
        pytest.importorskip("h5py")
    target = tmp_path / container
    pack(tmp_path / "old", target, dataclasses.replace(SMALL, container=container))
    old = labels_of(target)
    append(tmp_path / "new", target, ONE)
    assert {shard.container for shard in read_manifest(target).shards} == {container}
    check = verify(target, workers=1)
    assert (check.problems, check.extra_files) == ((), ())
    assert old.items() <= labels_of(target).items()
    assert len(labels_of(target)) == 16
    unpack(target, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "old") | read_tree(tmp_path / "new")


def test_the_quality_of_the_whole_is_known_afterwards(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "new" / "dog" / "bad.jpg").write_text("no image")
    append(tmp_path / "new", packed, ONE)
    quality = read_quality(packed)
    assert (quality.samples, quality.rejected) == (16, 1)
    assert {one.name: one.samples for one in quality.classes} == {"cat": 4, "dog": 8, "ape": 4}


def test_what_comes_from_an_archive_can_be_appended(packed: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "new"), "zip", tmp_path / "new")
    append(archive, packed, ONE)
    assert len(labels_of(packed)) == 16
    assert Dataset(packed).classes == ["cat", "dog", "ape"]
    assert verify(packed, workers=1).problems == ()


MAPS = """
def smaller(sample):
    return {"image": sample["image"].reduce(2), "label": sample["label"]}
"""


@pytest.mark.usefixtures("packed")
def test_new_samples_go_through_the_map_of_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "append_maps.py").write_text(MAPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mapped = tmp_path / "mapped"
    pack(tmp_path / "old", mapped, dataclasses.replace(SMALL, map=find_map("append_maps:smaller")))
    append(tmp_path / "new", mapped, AppendOptions(workers=1, map="append_maps:smaller"))
    assert len(labels_of(mapped)) == 16
    assert {Dataset(mapped, fields=("image",))[i].size for i in range(16)} == {(32, 24)}
    assert verify(mapped, workers=1).problems == ()
    with pytest.raises(UsageError, match="the pack was made without a map"):
        append(tmp_path / "new", tmp_path / "p", AppendOptions(workers=1, map="append_maps:smaller"))


@pytest.mark.usefixtures("packed")
def test_pixels_are_stored_as_the_pack_stores_them(tmp_path: Path) -> None:
    pack(tmp_path / "old", tmp_path / "raw", PackOptions(workers=1, recode=Recode(resize=20, raw=True)))
    append(tmp_path / "new", tmp_path / "raw", ONE)
    assert verify(tmp_path / "raw", workers=1).problems == ()
    field = read_manifest(tmp_path / "raw").field("image")
    assert field is not None
    assert (field.coding, min(field.shape or ())) == ("raw", 20)


def test_samples_with_a_table_need_the_fields_of_the_pack(tmp_path: Path) -> None:
    tables = []
    for name in ("a", "b"):
        save_image(tmp_path / name / f"{name}.jpg", 1)
        tables.append(tmp_path / name / "t.csv")
        tables[-1].write_text(f"path,label,caption\n{name}.jpg,{name},word {name}\n")
    fields = (FieldSpec.parse("caption:text"),)
    pack(tmp_path / "a", tmp_path / "p", PackOptions(labels=tables[0], fields=fields, workers=1))
    with pytest.raises(SourceError, match=r"p has a field 'label' \(number\), and .*b has not"):
        append(tmp_path / "b", tmp_path / "p", ONE)
    with pytest.raises(SourceError, match=r"p has a field 'caption' \(text\), and .*b has not"):
        append(tmp_path / "b", tmp_path / "p", AppendOptions(labels=tables[1], fields=(), workers=1))
    append(tmp_path / "b", tmp_path / "p", AppendOptions(labels=tables[1], workers=1))
    captions = dict(Dataset(tmp_path / "p", fields=("key", "caption")).__getitems__(range(2)))
    assert captions == {"a": "word a", "b": "word b"}
    assert verify(tmp_path / "p", workers=1).problems == ()
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert (tmp_path / "out" / "t.csv").read_bytes() == tables[0].read_bytes()
    assert (tmp_path / "out" / "t-2.csv").read_bytes() == tables[1].read_bytes()


def test_a_column_that_was_replaced_goes_on_with_labels_of_the_source_and_texts_by_default(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        save_image(tmp_path / name / f"{name}.jpg", 1)
        (tmp_path / f"{name}.csv").write_text(f"path,label,caption\n{name}.jpg,{name},word {name}\n")
    fields, target = (FieldSpec.parse("caption:text"),), tmp_path / "p"
    pack(tmp_path / "a", target, PackOptions(labels=tmp_path / "a.csv", fields=fields, workers=1))
    (tmp_path / "new.csv").write_text("path,label,caption\na.jpg,lion,other words\n")
    for kind, name in (("class", "label"), ("text", "caption")):
        add_column(target, tmp_path / "new.csv", ColumnOptions(column=name, kind=kind, replace=True))
    options = AppendOptions(labels=tmp_path / "b.csv", workers=1)
    with pytest.raises(SourceError, match=r"no value of the column 'caption' \(text\)"):
        append(tmp_path / "b", target, options)
    append(tmp_path / "b", target, dataclasses.replace(options, defaults={"caption": "none"}))
    dataset = Dataset(target, fields=("label", "caption"))
    assert [(dataset.classes[label], text) for label, text in (dataset[0], dataset[1])] == [
        ("lion", "other words"), ("b", "none"),
    ]  # fmt: skip
    assert verify(target, workers=1).problems == ()


def test_what_does_not_fit_is_named_before_anything_is_packed(packed: Path, tmp_path: Path) -> None:
    before = read_tree(packed)
    save_image(tmp_path / "flat" / "x.jpg", 1)
    with pytest.raises(SourceError, match=r"has a field 'label' \(number\), and .*flat has not"):
        append(tmp_path / "flat", packed, ONE)
    table = tmp_path / "t.csv"
    for value, message in {
        "3": "field 'label' is a class in .*, and a plain number in",
        "0.5": "field 'label' is a class in .*, and a plain number in",
    }.items():
        table.write_text(f"path,label\nx.jpg,{value}\n")
        with pytest.raises(SourceError, match=message):
            append(tmp_path / "flat", packed, AppendOptions(labels=table, workers=1))
    with pytest.raises(NotFound):
        append(tmp_path / "nowhere", packed, ONE)
    with pytest.raises(NotFound, match="no pack at"):
        append(tmp_path / "new", tmp_path / "nowhere", ONE)
    assert read_tree(packed) == before


def test_several_labels_are_read_as_the_pack_was_made_and_their_classes_must_be_its_own(
    tmp_path: Path,
) -> None:
    for name, labels in {"a": "ill|old", "b": "ill|old\nb-empty.jpg,", "c": "new"}.items():
        save_image(tmp_path / name / f"{name}.jpg", 1)
        save_image(tmp_path / name / f"{name}-empty.jpg", 2)
        (tmp_path / f"{name}.csv").write_text(f"path,label\n{name}.jpg,{labels}\n")
    target = tmp_path / "p"
    options = PackOptions(labels=tmp_path / "a.csv", label_separator="|", empty_label="reject", workers=1)
    pack(tmp_path / "a", target, options)
    before = read_tree(target)
    with pytest.raises(SourceError, match=r"classes of field 'labels' are ill, old in .*p, and new in .*c"):
        append(tmp_path / "c", target, AppendOptions(labels=tmp_path / "c.csv", workers=1))
    assert read_tree(target) == before
    result = append(tmp_path / "b", target, AppendOptions(labels=tmp_path / "b.csv", workers=1))
    assert (result.added, len(result.rejected)) == (1, 1)


def test_added_columns_need_a_value_and_a_split_leaves_new_samples_out(packed: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = [f"{s.path},{i},{'mf'[i % 2]}\n" for i, s in enumerate(describe(packed, samples=9).first_samples)]
    table.write_text("path,age,sex\n" + "".join(rows))
    add_column(packed, table, ColumnOptions(column="age"))
    add_column(packed, table, ColumnOptions(column="sex"))
    split(packed, {"train": 0.5, "test": 0.5})
    train = labels_of(packed, split="train")
    with pytest.raises(SourceError, match=r"no value of the column 'age' \(number\)"):
        append(tmp_path / "new", packed, ONE)
    with pytest.raises(SourceError, match="'old' is no value of 'age'"):
        append(tmp_path / "new", packed, AppendOptions(workers=1, defaults={"age": "old", "sex": "f"}))
    with pytest.raises(SourceError, match="'x' is no value of 'sex'; it has f, m"):
        append(tmp_path / "new", packed, AppendOptions(workers=1, defaults={"age": "7", "sex": "x"}))
    with pytest.raises(NotFound, match="has no added column 'aeg'"):
        append(tmp_path / "new", packed, AppendOptions(workers=1, defaults={"aeg": "7"}))
    result = append(tmp_path / "new", packed, AppendOptions(workers=1, defaults={"age": "7", "sex": "f"}))
    assert result.unassigned == ("split",)
    assert labels_of(packed, split="train") == train
    ages = Dataset(packed, fields=("age",))
    assert [ages[i] for i in range(16)] == [*range(8), *[7] * 8]
    assert verify(packed, workers=1).problems == ()
    again = split(packed, {"train": 0.5, "test": 0.5}, SplitOptions(replace=True))
    assert sum(again.parts.values()) == 16


def test_rejected_inputs_are_named_behind_those_of_before(packed: Path, tmp_path: Path) -> None:
    for name in ("new", "more"):
        (tmp_path / name / "dog").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "dog" / f"bad-{name}.jpg").write_text("no image")
    save_image(tmp_path / "more" / "dog" / "good.jpg", 3)
    assert len(append(tmp_path / "new", packed, ONE).rejected) == 1
    append(tmp_path / "more", packed, ONE)
    lines = (packed / "rejected.jsonl").read_text().splitlines()
    assert ["bad-new" in lines[0], "bad-more" in lines[1], len(lines)] == [True, True, 2]
    assert describe(packed).rejected == 2


def test_interrupted_before_the_last_step_it_is_done_when_run_again(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(appending, "remove_folder", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path / "new", packed, ONE)
    assert (packed / "appending").exists()
    result = append(tmp_path / "new", packed, ONE)
    assert (result.added, result.skipped, result.samples) == (0, 8, 16)
    assert not (packed / "appending").exists()


def test_another_append_does_not_take_over_one_that_was_interrupted(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (packed / "pack.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(appending.join, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path / "new", packed, ONE)
    assert (packed / "pack.json").read_bytes() == before
    save_image(tmp_path / "more" / "cat" / "x.jpg", 3)
    with pytest.raises(AlreadyExists, match="holds an unfinished pack of something else") as caught:
        append(tmp_path / "more", packed, ONE)
    assert f"rm -r {packed / 'appending'}" in str(caught.value.hint)
    append(tmp_path / "new", packed, ONE)
    append(tmp_path / "more", packed, ONE)
    assert verify(packed, workers=1).problems == ()


# Ends itself as a power cut would, when some of the new shards have their names in the pack.
KILLED = """
import os, signal, sys
from feedrate import AppendOptions, append
real, left = os.link, [3]
def link(*args, **words):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args, **words)
os.link = link
append(sys.argv[1], sys.argv[2], AppendOptions(workers=1))
"""


@pytest.mark.parametrize("container", ["tar", "hdf5"])
def test_an_append_that_was_given_up_does_not_block_another_one(tmp_path: Path, container: str) -> None:
    for number in range(8):
        for source, seed in (("old", 0), ("new", 20), ("more", 40)):
            save_image(tmp_path / source / "dog" / f"{source}{number}.jpg", seed + number)
    packed = tmp_path / "p"
    pack(tmp_path / "old", packed, dataclasses.replace(SMALL, container=container))
    script = KILLED if container == "tar" else KILLED.replace("[3]", "[1]")  # of one file, with two parts
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "new", packed], check=False)
    assert done.returncode == -signal.SIGKILL
    shutil.rmtree(packed / "appending")
    assert append(tmp_path / "more", packed, ONE).samples == 16
    check = verify(packed, workers=1)
    assert (check.problems, check.extra_files) == ((), ())


def test_what_a_given_up_append_linked_stays_where_somebody_changed_it(packed: Path, tmp_path: Path) -> None:
    before = set(os.listdir(packed))
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "new", packed], check=False)
    shutil.rmtree(packed / "appending")
    linked = sorted(name for name in set(os.listdir(packed)) - before if name.startswith("shard-"))
    assert len(linked) == 3
    (packed / linked[0]).write_text("mine")
    save_image(tmp_path / "more" / "cat" / "x.jpg", 3)
    with pytest.raises(AlreadyExists, match="is there already, and no part of the pack"):
        append(tmp_path / "more", packed, ONE)
    assert (packed / linked[0]).read_text() == "mine"


def test_where_links_cannot_be_made_shards_are_moved(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    shutil.copytree(packed, tmp_path / "q")
    append(tmp_path / "new", tmp_path / "q", ONE)
    monkeypatch.setattr(os, "link", refuse)
    append(tmp_path / "new", packed, ONE)
    assert read_tree(packed) == read_tree(tmp_path / "q")


def test_a_file_of_the_users_under_the_next_shards_name_is_not_touched(packed: Path, tmp_path: Path) -> None:
    number = len(read_manifest(packed).shards)
    mine = packed / f"shard-{number:05d}.tar"
    mine.write_text("mine")
    with pytest.raises(AlreadyExists, match="is there already, and no part of the pack"):
        append(tmp_path / "new", packed, ONE)
    assert mine.read_text() == "mine"
    mine.unlink()
    append(tmp_path / "new", packed, ONE)
    assert verify(packed, workers=1).problems == ()


def test_a_full_disk_leaves_the_pack_as_it_was(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_tree(packed)
    with monkeypatch.context() as patch:
        patch.setattr("feedrate.packing.build.pack.free_bytes", lambda _: 10)
        with pytest.raises(StorageError, match="needs about"):
            append(tmp_path / "new", packed, ONE)
    assert {name: data for name, data in read_tree(packed).items() if "appending" not in name} == before
    append(tmp_path / "new", packed, ONE)
    assert verify(packed, workers=1).problems == ()
