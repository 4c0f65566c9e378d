# SPDX-License-Identifier: Apache-2.0
"""Packing a folder by a table of labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from feedrate import FieldSpec, PackOptions, pack, unpack, verify
from feedrate.errors import NotFound, SourceError, UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.packing.results import PackResult
from feedrate.report.pack import draw_pack
from support.images import read_tree, save_image


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for n in range(4):
        save_image(tmp_path / "s" / "images" / f"{n}.jpg", n)
    return tmp_path / "s"


def pack_table(source: Path, text: str, *fields: str, name: str = "labels.csv", **options: str) -> PackResult:
    table = source / name
    table.write_text(text)
    specs = tuple(FieldSpec.parse(field) for field in fields)
    return pack(source, source.parent / "p", PackOptions(labels=table, fields=specs, workers=1, **options))


def read_samples(source: Path, *fields: str) -> dict[str, list[bytes | float]]:
    """Return key -> the fields' bytes (or numbers), read around the loader."""
    opened = Pack(source.parent / "p")
    positions = np.arange(len(opened))
    rows, _ = opened.rows(positions)
    shards, _ = opened.locate(positions)
    values: dict[str, list[bytes | float]] = {}
    for i, key in enumerate(opened.texts("key", positions)):
        values[key.decode()] = []
        for name in fields:
            if name in rows.dtype.names:
                values[key.decode()].append(rows[name][i].item())
            else:
                data = (opened.path / opened.manifest.shards[shards[i]].name).read_bytes()
                start = rows[f"{name}.offset"][i]
                values[key.decode()].append(data[start : start + rows[f"{name}.length"][i]])
    return values


def test_names_of_classes_become_sorted_numbers(flat: Path) -> None:
    result = pack_table(
        flat, "path,label\nimages/0.jpg,zebra\nimages/1.jpg,ant\nimages/2.jpg,zebra\nimages/3.jpg,bee\n"
    )
    assert result.classes == 3
    assert Pack(flat.parent / "p").manifest.field("label").classes == ("ant", "bee", "zebra")
    assert read_samples(flat, "label") == {"images/0": [2], "images/1": [0], "images/2": [2], "images/3": [1]}


def test_whole_numbers_stay_whole_numbers(flat: Path) -> None:
    result = pack_table(flat, "file,class\nimages/0.jpg,7\nimages/1.jpg,-3\n")
    assert result.classes is None
    assert result.unlisted == 2
    assert Pack(flat.parent / "p").manifest.field("label").dtype == "int64"
    assert read_samples(flat, "label") == {"images/0": [7], "images/1": [-3]}


def test_other_numbers_become_floats(flat: Path) -> None:
    pack_table(flat, "filename,target\nimages/0.jpg,0.25\nimages/1.jpg,2\n")
    assert Pack(flat.parent / "p").manifest.field("label").dtype == "float64"
    assert read_samples(flat, "label") == {"images/0": [0.25], "images/1": [2.0]}


@pytest.mark.parametrize("gap", ["nan", "NaN", "NA", "n/a", "null", "None", ""])
def test_a_row_that_says_it_has_no_number_is_rejected_and_the_others_stay_numbers(
    flat: Path, gap: str
) -> None:
    result = pack_table(flat, f"path,label\nimages/0.jpg,0.5\nimages/1.jpg,{gap}\nimages/2.jpg,2\n")
    assert read_samples(flat, "label") == {"images/0": [0.5], "images/2": [2.0]}
    assert [(r.path, r.reason) for r in result.rejected] == [("images/1.jpg", "the table has no label")]


def test_none_among_words_is_a_class(flat: Path) -> None:
    pack_table(flat, "path,label\nimages/0.jpg,rust\nimages/1.jpg,none\n")
    assert read_samples(flat, "label") == {"images/0": [1], "images/1": [0]}


def test_a_word_among_fractions_is_refused(flat: Path) -> None:
    text = "path,label\nimages/0.jpg,0.5\nimages/1.jpg,lots\n"
    with pytest.raises(
        SourceError, match=r"holds numbers such as 0\.5, and 'lots': neither numbers nor classes"
    ):
        pack_table(flat, text)
    pack_table(flat, "path,y\nimages/0.jpg,0.5\nimages/1.jpg,lots\n", "y:label=y")
    assert read_samples(flat, "y") == {"images/0": [0], "images/1": [1]}


def test_an_infinite_number_is_rejected(flat: Path) -> None:
    result = pack_table(flat, "path,label\nimages/0.jpg,0.5\nimages/1.jpg,inf\n")
    assert [r.reason for r in result.rejected] == ["inf is not a number to train with"]


def test_among_all_columns_sentences_stay_texts(flat: Path) -> None:
    captions = ["cat,a cat sits", "cat,a cat runs", "dog,a dog"]
    text = "path,kind,caption\n" + "".join(f"images/{n}.jpg,{words}\n" for n, words in enumerate(captions))
    pack_table(flat, text, label_column="*")
    assert read_samples(flat, "kind", "caption") == {
        "images/0": [0, b"a cat sits"], "images/1": [0, b"a cat runs"], "images/2": [1, b"a dog"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        (b"path;label\nimages/0.jpg;3\n", "has values separated by ';', not by commas", "save it with"),
        ("path,label\nimages/0.jpg,für\n".encode("latin-1"), "not written in UTF-8: it holds the byte 0xfc",
         "iconv -f LATIN1"),
        ("path,größe\nimages/0.jpg,1\n".encode("latin-1"), "not written in UTF-8", "iconv -f LATIN1"),
    ],
    ids=["semicolons", "Latin-1", "Latin-1 in the header"],
)  # fmt: skip
def test_tables_as_spreadsheets_save_them_get_a_hint(
    flat: Path, tmp_path: Path, content: bytes, words: str, hint: str
) -> None:
    (flat / "labels.csv").write_bytes(content)
    with pytest.raises(SourceError, match=words) as raised:
        pack(flat, tmp_path / "pack", PackOptions(workers=1, labels=flat / "labels.csv"))
    assert hint in (raised.value.hint or "")


def test_columns_can_be_named(flat: Path) -> None:
    pack_table(flat, "which,what\nimages/0.jpg,7\n", path_column="which", label_column="what")
    assert read_samples(flat, "label") == {"images/0": [7]}


def test_fields_of_every_kind_are_packed(flat: Path) -> None:
    save_image(flat / "masks" / "0.png", 9, mode="L")
    save_image(flat / "small.jpg", 10)
    np.save(flat / "f.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    (flat / "raw.dat").write_bytes(b"\0\1\2")
    row = {
        "path": "images/0.jpg", "label": "cat", "mask_file": "masks/0.png", "npy": "f.npy", "raw": "raw.dat",
        "second": "small.jpg", "boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]], "caption": "ein Kätzchen",
        "meta": {"a": [1, None]}, "age": 2.5,
    }  # fmt: skip
    fields = ("mask:mask=mask_file", "features:array=npy", "raw:bytes", "second:image", "boxes:boxes",
              "caption:text", "meta:json", "age:number")  # fmt: skip
    result = pack_table(flat, json.dumps(row), *fields, name="labels.jsonl")
    assert result.rejected == ()
    names = ["image", "label", "mask", "features", "raw", "second", "boxes", "caption", "meta", "age"]
    assert list(result.fields) == names
    (values,) = read_samples(flat, *names).values()
    image, label, mask, features, raw, second, boxes, caption, meta, age = values
    assert image == (flat / "images" / "0.jpg").read_bytes()
    assert mask == (flat / "masks" / "0.png").read_bytes()
    assert features == (flat / "f.npy").read_bytes()
    assert second == (flat / "small.jpg").read_bytes()
    assert (label, raw, caption, age) == (0, b"\0\1\2", "ein Kätzchen".encode(), 2.5)
    assert json.loads(meta) == {"a": [1, None]}
    assert verify(flat.parent / "p", workers=1).problems == ()
    opened = Pack(flat.parent / "p").manifest
    assert (opened.field("features").dtype, opened.field("features").shape) == ("float32", (2, 3))
    assert opened.field("mask").shape == (48, 64)
    (flat / "boxes.npy").write_bytes(boxes)
    assert np.load(flat / "boxes.npy").tolist() == [[1, 2, 3, 4], [5, 6, 7, 8.5]]


def test_table_comes_back_with_the_files(flat: Path) -> None:
    save_image(flat / "masks" / "0.png", 9, mode="L")
    text = "path,label,mask\n" + "".join(f"images/{n}.jpg,{n},masks/0.png\n" for n in range(4))
    pack_table(flat, text, "mask:mask")
    unpack(flat.parent / "p", flat.parent / "out", workers=1)
    assert read_tree(flat.parent / "out") == read_tree(flat)


def test_table_from_elsewhere_comes_back_at_the_top(flat: Path, tmp_path: Path) -> None:
    table = tmp_path / "my table.csv"
    table.write_text("path,label\nimages/0.jpg,1\n")
    pack(flat, tmp_path / "p", PackOptions(labels=table, workers=1))
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert set(read_tree(tmp_path / "out")) == {"my table.csv", "images/0.jpg"}


def test_parquet_gives_the_same_samples_as_csv(flat: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = tmp_path / "t.parquet"
    columns = {"path": ["images/0.jpg", "images/1.jpg"], "label": ["b", "a"], "boxes": [[[1.0, 2, 3, 4]], []]}
    parquet.write_table(pa.table(columns), table)
    boxes = FieldSpec("boxes", Kind.BOXES, "boxes")
    result = pack(flat, tmp_path / "p", PackOptions(labels=table, fields=(boxes,), workers=1))
    assert (result.samples, result.classes, result.rejected) == (2, 2, ())


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ("images/9.jpg,1", "image", "no such file in the source folder"),
        ("images/1.jpg,", "label", "the table has no label"),
        ("images/0.jpg,5", "label", "row 2 of the table names it again, after row 1"),
        ("../outside.jpg,1", "image", "lies outside the source folder"),
    ],
)
def test_bad_row_is_rejected_and_the_others_are_packed(flat: Path, row: str, field: str, reason: str) -> None:
    result = pack_table(flat, f"path,label\nimages/0.jpg,1\n{row}\n")
    assert result.samples == 1
    assert [(r.field, r.reason) for r in result.rejected] == [(field, reason)]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("boxes", "[[1,2,3]]", "boxes must be rows of at least 4 finite numbers, got shape (1, 3)"),
        ("boxes", "[[1,2,3,4],[1]]", "boxes must be rows of equally many numbers"),
        ("json", "{", "is not JSON"),
        ("array", "images/1.jpg", "is not a .npy file"),
        ("mask", "note.txt", "not a JPEG"),
    ],
)
def test_sample_with_one_bad_field_is_rejected_whole(flat: Path, kind: str, value: str, reason: str) -> None:
    (flat / "note.txt").write_text("hello")
    good = {"boxes": "[]", "json": "1", "array": "f.npy", "mask": "images/2.jpg"}[kind]
    np.save(flat / "f.npy", np.zeros(3))
    rows = f"path\tlabel\tmore\nimages/0.jpg\t1\t{value}\nimages/1.jpg\t1\t{good}\n"
    result = pack_table(flat, rows, f"more:{kind}", name="t.tsv")
    assert result.samples == 1
    assert [r.field for r in result.rejected] == ["more"]
    assert reason in result.rejected[0].reason


def test_pickled_array_is_rejected(flat: Path) -> None:
    np.save(flat / "evil.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(flat / "good.npy", np.zeros(2))
    rows = "path,label,more\nimages/0.jpg,1,evil.npy\nimages/1.jpg,1,good.npy\n"
    result = pack_table(flat, rows, "more:array")
    assert result.samples == 1
    assert "allow_pickle=False" in result.rejected[0].reason


def test_table_that_does_not_match_at_all_shows_an_example_of_both(flat: Path) -> None:
    with pytest.raises(SourceError, match=r"the table says '8\.jpg', .* holds 'images/0\.jpg'"):
        pack_table(flat, "path,label\n8.jpg,1\n9.jpg,2\n")
    assert not (flat.parent / "p").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column that says which file a row is about"),
        ("path,b\nimages/0.jpg,2\n", "has no column of labels"),
        ("path,label\n", "has no rows"),
        ("path,label\nimages/0.jpg\n", "line 2 has 1 values, the header has 2"),
        ("path,path\n1,2\n", "two columns have the same name"),
    ],
)
def test_table_that_cannot_be_used_is_refused_in_words(flat: Path, text: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        pack_table(flat, text)


def test_column_that_is_not_there_is_named(flat: Path) -> None:
    with pytest.raises(SourceError, match="has no column 'mask_file' for the field 'mask'"):
        pack_table(flat, "path,label\nimages/0.jpg,1\n", "mask:mask=mask_file")


def test_a_mistyped_column_is_answered_with_the_nearest(flat: Path) -> None:
    with pytest.raises(SourceError, match="has no column 'findings' for the labels") as caught:
        pack_table(flat, "path,finding\nimages/0.jpg,1\n", label_column="findings")
    assert caught.value.hint == "did you mean 'finding'? it has: path, finding"


def test_missing_table_is_named(flat: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"cannot read the table .*no\.csv"):
        pack(flat, tmp_path / "p", PackOptions(labels=tmp_path / "no.csv"))


@pytest.mark.parametrize("text", ["mask", "mask:picture", "Mask:mask", "key:text", "image:image"])
def test_senseless_field_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a field|cannot be the name|cannot make 'image' again"):
        FieldSpec.parse(text)


def read_arrays(source: Path, name: str) -> dict[str, list[int]]:
    import io

    samples = read_samples(source, name)
    return {key: np.load(io.BytesIO(data)).tolist() for key, (data,) in samples.items()}  # type: ignore[arg-type]


def test_texts_with_a_separator_become_arrays_of_several_classes(flat: Path) -> None:
    text = "Image Index,Finding Labels\nimages/0.jpg,Hernia|Mass\nimages/1.jpg,\nimages/2.jpg,Mass\n"
    pack_table(flat, text, path_column="Image Index", label_column="Finding Labels", label_separator="|")
    field = Pack(flat.parent / "p").manifest.field("labels")
    assert (field.kind, field.dtype, field.shape, field.classes) == (
        Kind.ARRAY,
        "uint8",
        (2,),
        ("Hernia", "Mass"),
    )
    assert read_arrays(flat, "labels") == {"images/0": [1, 1], "images/1": [0, 0], "images/2": [0, 1]}


def test_lists_become_arrays_of_several_classes(flat: Path) -> None:
    rows = [{"path": "images/0.jpg", "label": [10, 2]}, {"path": "images/1.jpg", "label": []}]
    pack_table(flat, "\n".join(map(json.dumps, rows)), name="t.jsonl")
    assert Pack(flat.parent / "p").manifest.field("labels").classes == ("2", "10")
    assert read_arrays(flat, "labels") == {"images/0": [1, 1], "images/1": [0, 0]}


@pytest.mark.parametrize("columns", ["rust,scab,healthy", "*"])
def test_columns_of_0_and_1_become_one_array(flat: Path, columns: str) -> None:
    pack_table(
        flat, "file,rust,scab,healthy\nimages/0.jpg,0,1,0\nimages/1.jpg,1,1,-1\n", label_column=columns
    )
    assert Pack(flat.parent / "p").manifest.field("labels").classes == ("rust", "scab", "healthy")
    assert read_arrays(flat, "labels") == {"images/0": [0, 1, 0], "images/1": [1, 1, 0]}


def test_several_columns_become_a_field_each(flat: Path) -> None:
    text = "path,Age,Blood type,is_sick\nimages/0.jpg,3.5,AB,1\nimages/1.jpg,40,0,0\n"
    pack_table(flat, text, label_column="Age,Blood type,is_sick")
    manifest = Pack(flat.parent / "p").manifest
    assert manifest.field("blood_type").classes == ("0", "AB")
    assert manifest.field("age").dtype == "float64"
    values = read_samples(flat, "age", "blood_type", "is_sick")
    assert values == {"images/0": [3.5, 1, 1], "images/1": [40.0, 0, 0]}


def test_further_columns_can_be_classes(flat: Path) -> None:
    text = "path,label,breed,tags\nimages/0.jpg,dog,pug,a|b\nimages/1.jpg,cat,manx,\n"
    pack_table(flat, text, "breed:label", "tags:labels")
    manifest = Pack(flat.parent / "p").manifest
    assert (manifest.field("breed").classes, manifest.field("tags").classes) == (("manx", "pug"), ("a", "b"))
    assert read_samples(flat, "label", "breed") == {"images/0": [1, 1], "images/1": [0, 0]}
    assert read_arrays(flat, "tags") == {"images/0": [1, 1], "images/1": [0, 0]}


def test_a_table_of_captions_needs_no_label(flat: Path) -> None:
    rows = [{"file_name": "images/0.jpg", "text": "a cat"}, {"file_name": "images/1.jpg", "text": "ein Hund"}]
    pack_table(flat, "\n".join(map(json.dumps, rows)), name="metadata.jsonl")
    assert read_samples(flat, "text") == {"images/0": [b"a cat"], "images/1": [b"ein Hund"]}


def test_two_columns_that_would_be_one_field_are_refused(flat: Path) -> None:
    with pytest.raises(SourceError, match=r"two columns of .* would be the field 'a_b'"):
        pack_table(flat, "path,a b,a-b\nimages/0.jpg,3,4\n", label_column="a b,a-b")


def test_a_column_with_too_many_words_is_no_label(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedrate.source.table._MOST_CLASSES", 1)
    with pytest.raises(SourceError, match="column 'label' has more than 1 different texts: no classes"):
        pack_table(flat, "path,label\nimages/0.jpg,a\nimages/1.jpg,b\nimages/2.jpg,c\n")


def test_columns_without_a_table_are_refused(flat: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name columns of a table, and there is none"):
        pack(flat, tmp_path / "p", PackOptions(path_column="x"))
    assert not (tmp_path / "p").exists()


def test_a_cell_with_several_classes_stops_with_the_line_to_type(flat: Path) -> None:
    text = "path,labels\nimages/0.jpg,covid|pneumonia\nimages/1.jpg,covid\n"
    with pytest.raises(SourceError, match=r"several classes in one cell: 'covid\|pneumonia'") as caught:
        pack_table(flat, text)
    assert "--label-separator '|'" in str(caught.value.hint)
    assert pack_table(flat, text, label_separator="none").classes == 2


def test_many_rows_without_a_label_are_a_question(flat: Path) -> None:
    text = "path,label\nimages/0.jpg,ill\n" + "images/1.jpg,\n" * 5
    with pytest.raises(SourceError, match=r"5 of 6 rows of .* have no label in column 'label'"):
        pack_table(flat, text)
    rejected = pack_table(flat, text, empty_label="reject")
    assert (rejected.samples, len(rejected.rejected)) == (1, 5)


def test_rows_without_a_label_are_a_question_in_each_column_that_is_asked_for(flat: Path) -> None:
    text = "path,age,sex\nimages/0.jpg,3,f\n" + "images/1.jpg,4,\n" * 5
    with pytest.raises(SourceError, match=r"5 of 6 rows of .* have no label in column 'sex'"):
        pack_table(flat, text, label_column="age,sex")


def test_rows_that_say_that_they_have_no_number_are_a_question_too(flat: Path) -> None:
    text = "path,label\nimages/0.jpg,7\n" + "images/1.jpg,NA\n" * 5
    with pytest.raises(SourceError, match=r"5 of 6 rows of .* have no label in column 'label'"):
        pack_table(flat, text)


def test_rows_without_any_of_several_classes_are_a_question_with_three_answers(flat: Path) -> None:
    text = "path,label\nimages/0.jpg,a|b\n" + "".join(f"images/{n}.jpg,\n" for n in (1, 2, 3, 4, 5))
    with pytest.raises(SourceError, match=r"5 of 6 rows of .* have no label") as caught:
        pack_table(flat, text, label_separator="|")
    assert "--empty-label none" in str(caught.value.hint)
    pack_table(flat, text, label_separator="|", empty_label="none")
    assert read_arrays(flat, "labels")["images/1"] == [0, 0]


def test_rows_without_any_of_several_classes_can_be_left_out(flat: Path) -> None:
    text = "path,label\nimages/0.jpg,a|b\nimages/1.jpg,\n"
    result = pack_table(flat, text, label_separator="|", empty_label="reject")
    assert (result.samples, len(result.rejected)) == (1, 1)


@pytest.mark.parametrize("separator", [None, "|"])
def test_rows_without_a_label_can_be_a_class(flat: Path, separator: str | None) -> None:
    text = "path,label\nimages/0.jpg,ill\nimages/1.jpg,\n"
    options = {} if separator is None else {"label_separator": separator}
    assert pack_table(flat, text, empty_label="healthy", **options).samples == 2
    field = Pack(flat.parent / "p").manifest.field("labels" if separator else "label")
    assert field.classes == ("healthy", "ill")


def test_the_result_says_which_column_the_labels_are_from(flat: Path) -> None:
    result = pack_table(flat, "file,target,age\nimages/0.jpg,ill,7\n")
    assert result.label_columns == ("target",)
    assert "column 'target' of the table" in draw_pack(result)


def test_a_folder_of_images_and_a_table_beside_it_get_the_line_that_works(flat: Path) -> None:
    (flat / "metadata.csv").write_text("image,label\n0.jpg,ill\n1.jpg,healthy\n")
    line = f"feedrate pack {flat}/images PACK --labels {flat}/metadata.csv"
    for source in (flat, flat / "metadata.csv"):
        with pytest.raises(SourceError) as caught:
            pack(source, flat.parent / "p", PackOptions(workers=1))
        assert line in str(caught.value.hint)
    options = PackOptions(labels=flat / "metadata.csv", workers=1)
    assert pack(flat / "images", flat.parent / "p", options).samples == 2


@pytest.mark.parametrize("names", ["images/{}.jpg", "{}.jpg"])
def test_a_folder_of_images_and_several_tables_is_not_one_class(flat: Path, names: str) -> None:
    for table, number in (("train", 0), ("val", 1)):
        (flat / f"{table}.csv").write_text(f"image,label\n{names.format(number)},ill\n")
    (flat / "notes.csv").write_bytes(b"caf\xe9\n")
    with pytest.raises(SourceError, match=r"a table that names them: .*train\.csv") as caught:
        pack(flat, flat.parent / "p", PackOptions(workers=1))
    folder = flat if "/" in names else flat / "images"
    assert f"feedrate pack {folder} PACK --labels {flat}/train.csv" in str(caught.value.hint)
    assert pack(folder, flat.parent / "p", PackOptions(labels=flat / "train.csv", workers=1)).samples == 1


def test_a_table_that_cannot_be_read_does_not_keep_images_from_being_packed(flat: Path) -> None:
    (flat / "notes.csv").write_bytes(b"caf\xe9\n")
    assert pack(flat, flat.parent / "p", PackOptions(workers=1)).samples == 4


def test_where_the_images_are_is_said_before_anything_is_asked_about_labels(flat: Path) -> None:
    table = flat / "metadata.csv"
    table.write_text("name,label\n0.jpg,a|b\n" + "1.jpg,\n" * 5)
    options = PackOptions(labels=table, path_column="name", workers=1)
    with pytest.raises(SourceError, match=r"the files that .*metadata\.csv names are in .*images") as caught:
        pack(flat, flat.parent / "p", options)
    assert f"feedrate pack {flat}/images PACK --labels {table} --path-column name" in str(caught.value.hint)
