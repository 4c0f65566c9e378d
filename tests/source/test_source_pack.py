# SPDX-License-Identifier: Apache-2.0
"""Packing whatever people arrive with: what is in the pack is what was in the source."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import Dataset, FieldSpec, PackOptions, pack, unpack, verify
from feedrate.errors import NotFound, SourceError, StorageError, UsageError
from feedrate.kernel import list_folder
from feedrate.packing.results import PackResult
from support.images import read_tree, save_image
from support.sources import (
    dump_example,
    jpeg,
    png_mask,
    read_pack,
    write_tar,
    write_tfrecord,
    write_zip,
)

CLASSES = {f"{name}/{n}.jpg": jpeg(n) for n, name in enumerate(["ant", "bee", "ant", "bee"])}
SHARDS = [
    {f"{n:04d}.{ext}": data for n in numbers for ext, data in
     (("jpg", jpeg(n)), ("cls", b"%d" % (n % 2)), ("json", b'{"n": %d}' % n), ("caption.txt", b"c"),
      ("mask.png", png_mask(n)))}
    for numbers in (range(3), range(3, 5))
]  # fmt: skip


def packed(source: Path | str, target: Path, **options: Any) -> PackResult:
    result = pack(source, target, PackOptions(workers=1, **options))
    assert verify(target, workers=1).problems == ()
    assert {p.suffix for p in target.iterdir()} <= {".json", ".tar", ".arrow", ".jsonl", ".csv"}
    return result


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_of_class_folders_comes_back_as_it_was(tmp_path: Path, compression: int) -> None:
    source = write_zip(tmp_path / "d.zip", CLASSES, compression)
    result = packed(source, tmp_path / "p")
    assert (result.samples, result.classes, result.source) == (4, 2, str(source))
    samples = read_pack(tmp_path / "p")
    assert {key: sample["label"] for key, sample in samples.items()} == {
        "ant/0": "ant", "ant/2": "ant", "bee/1": "bee", "bee/3": "bee"
    }  # fmt: skip
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == CLASSES


@pytest.mark.parametrize(
    ("name", "mode", "format"),
    [
        ("d.tar", "w", tarfile.PAX_FORMAT), ("d.tar", "w", tarfile.GNU_FORMAT),
        ("d.tar", "w", tarfile.USTAR_FORMAT),
        ("d.tar.gz", "w:gz", tarfile.PAX_FORMAT), ("d.tgz", "w:gz", tarfile.GNU_FORMAT),
        ("d.tar.bz2", "w:bz2", tarfile.PAX_FORMAT), ("d.tar.xz", "w:xz", tarfile.PAX_FORMAT),
    ],
)  # fmt: skip
def test_a_tar_of_class_folders_comes_back_as_it_was(
    tmp_path: Path, name: str, mode: str, format: int
) -> None:
    files = {f"data/{path}": data for path, data in CLASSES.items()} | {"data/README": b"hello"}
    files |= {f"data/ant/{'long' * 22}.jpg": jpeg(7)}
    result = packed(write_tar(tmp_path / name, files, mode, format), tmp_path / "p")
    assert (result.samples, result.classes, dict(result.ignored)) == (5, 2, {"": 1})
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    del files["data/README"]
    assert read_tree(tmp_path / "out") == files


def test_an_archive_without_folders_has_no_labels(tmp_path: Path) -> None:
    result = packed(write_zip(tmp_path / "d.zip", {"a.jpg": jpeg(1), "b.jpg": jpeg(2)}), tmp_path / "p")
    assert (list(result.fields), result.samples) == (["image"], 2)


def check_shards(folder: Path) -> None:
    samples = read_pack(folder)
    numbers = {key: int(key.rpartition("/")[2]) for key in samples}
    assert sorted(numbers.values()) == list(range(5))
    for key, n in numbers.items():
        sample = samples[key]
        assert list(sample) == ["image", "label", "json", "caption", "mask"]
        assert (sample["image"], sample["mask"]) == (jpeg(n), png_mask(n))
        assert (sample["label"], sample["json"], sample["caption"]) == (n % 2, {"n": n}, "c")


def test_a_folder_of_webdataset_shards_gives_all_fields(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for number, files in enumerate(SHARDS):
        write_tar(tmp_path / "s" / f"train-{number:03d}.tar", files)
    result = packed(tmp_path / "s", tmp_path / "p")
    assert (result.samples, result.rejected) == (5, ())
    check_shards(tmp_path / "p")
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    out = read_tree(tmp_path / "out")
    assert out["train-001/0004.jpg"] == jpeg(4)
    assert out["train-000/0002.mask.png"] == png_mask(2)


@pytest.mark.parametrize(
    "pattern", ["train-{000..001}.tar.gz", "train-*.tar.gz", "{train-000,train-001}.tar.gz"]
)
def test_shards_can_be_named_by_a_pattern_and_be_compressed(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "s").mkdir()
    for number, files in enumerate(SHARDS):
        write_tar(tmp_path / "s" / f"train-{number:03d}.tar.gz", files, "w:gz")
    write_tar(tmp_path / "s" / "val-000.tar.gz", SHARDS[0], "w:gz")
    packed(f"{tmp_path}/s/{pattern}", tmp_path / "p")
    check_shards(tmp_path / "p")


def test_shards_that_webdataset_itself_wrote(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "d.tar")) as sink:
        for n in range(3):
            sink.write(
                {"__key__": f"a/{n:03d}", "jpg": jpeg(n), "cls": n, "json": {"n": n}, "npy": np.arange(n)}
            )
    result = packed(tmp_path / "d.tar", tmp_path / "p")
    assert result.fields == {"image": "image", "label": "number", "array": "array", "json": "json"}
    samples = read_pack(tmp_path / "p")
    assert [sample["label"] for sample in samples.values()] == [0, 1, 2]
    assert samples["a/002"]["array"] == [0, 1]
    assert samples["a/001"]["json"] == {"n": 1}


def test_a_sample_that_lacks_what_the_others_have_is_rejected(tmp_path: Path) -> None:
    files = dict(SHARDS[0])
    del files["0001.cls"]
    result = packed(write_tar(tmp_path / "d.tar", files), tmp_path / "p")
    assert [(r.path, r.field) for r in result.rejected] == [("0001", "label")]


def test_words_in_cls_become_classes(tmp_path: Path) -> None:
    files = {"1.jpg": jpeg(1), "1.cls": b"zebra\n", "2.jpg": jpeg(2), "2.cls": b"ant"}
    packed(write_tar(tmp_path / "d.tar", files), tmp_path / "p")
    assert {k: s["label"] for k, s in read_pack(tmp_path / "p").items()} == {"1": "zebra", "2": "ant"}


def examples(count: int = 4) -> list[bytes]:
    return [
        dump_example(
            {
                "image/encoded": [jpeg(n)], "image/class/label": [n], "image/class/text": [b"class %d" % n],
                "image/height": [32], "weight": [n / 4], "boxes": [float(x) for x in range(4 * n)],
                "tags": [b"x", b"y"][: n or 1], "blob": [b"\0\1\xff%d" % n], "mask/encoded": [png_mask(n)],
            },
            packed=n % 2 == 0,
        )
        for n in range(count)
    ]  # fmt: skip


def check_examples(folder: Path, count: int = 4) -> None:
    samples = list(read_pack(folder).values())
    assert len(samples) == count
    for n, sample in enumerate(samples):
        assert (sample["image"], sample["mask_encoded"]) == (jpeg(n), png_mask(n))
        assert (sample["label"], sample["image_height"], sample["weight"]) == (n, 32, n / 4)
        assert (sample["image_class_text"], sample["blob"]) == (f"class {n}", b"\0\1\xff%d" % n)
        assert sample["boxes"] == list(range(4 * n))
        assert sample["tags"] == ["x", "y"][: n or 1]


def test_tfrecord_examples_give_all_features(tmp_path: Path) -> None:
    result = packed(write_tfrecord(tmp_path / "d.tfrecord", examples()), tmp_path / "p")
    assert result.rejected == ()
    check_examples(tmp_path / "p")


def test_a_folder_of_tfrecords_and_gzip_ones(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "s").mkdir()
    records = examples()
    write_tfrecord(tmp_path / "s" / "d.tfrecord-00000-of-00002", records[:2])
    plain = write_tfrecord(tmp_path / "x", records[2:])
    (tmp_path / "s" / "d.tfrecord-00001-of-00002").write_bytes(gzip.compress(plain.read_bytes()))
    packed(tmp_path / "s", tmp_path / "p")
    check_examples(tmp_path / "p")


@pytest.mark.parametrize("name", ["d.rec", "folder"])
def test_recordio_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "d.rec", tmp_path / "folder" / "d.rec"):
        path.write_bytes(b"\x0a\x23\xd7\xce" + bytes(28))
    with pytest.raises(
        SourceError, match=r"d\.rec is a RecordIO file, which feedrate no longer reads"
    ) as refused:
        packed(tmp_path / name, tmp_path / "p")
    assert "recordio.unpack(record)" in str(refused.value.hint)


def test_hdf5_with_pixels_labels_and_names(tmp_path: Path) -> None:
    import h5py
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 20, 30, 3), np.uint8)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["images"] = pixels
        file["labels"] = np.array([0, 1, 0, 1, 1])
        file["names"] = ["a", "b", "c", "d", "é"]
        file["age"] = np.arange(5) / 2
        file.create_dataset("features", data=np.arange(10.0).reshape(5, 2), chunks=(2, 2), compression="gzip")
        file["masks"] = pixels[:, :, :, 0] // 64
        file["list_classes"] = ["cat", "dog"]
    result = packed(tmp_path / "d.h5", tmp_path / "p")
    assert dict(result.ignored) == {"dataset list_classes": 1}
    for n, sample in enumerate(read_pack(tmp_path / "p").values()):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["image"]))), pixels[n])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["masks"]))), pixels[n, :, :, 0] // 64)
        assert sample["label"] == ["cat", "dog", "cat", "dog", "dog"][n]
        assert (sample["names"], sample["age"], sample["features"]) == (
            "abcdé"[n],
            n / 2,
            [2.0 * n, 2 * n + 1],
        )


def test_the_hdf5_file_of_a_pack_is_known_again(tmp_path: Path) -> None:
    save_image(tmp_path / "src" / "a" / "0.jpg", 0)
    pack(tmp_path / "src", tmp_path / "p", PackOptions(workers=1, container="hdf5"))
    with pytest.raises(SourceError, match=r"data\.h5 is part of a feedrate pack"):
        pack(tmp_path / "p" / "data.h5", tmp_path / "again", PackOptions(workers=1))
    assert not (tmp_path / "again").exists()


def test_a_class_folder_that_cannot_be_listed_stops_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "lost+found"):
        save_image(tmp_path / "src" / name / "0.jpg", 0)
    closed = {b"b", b"lost+found"}  # root may list everything

    def list_open(folder: bytes, suffixes: list[str]) -> Any:
        if os.path.basename(folder) in closed:
            raise PermissionError(13, "Permission denied", folder)
        return list_folder(folder, suffixes)

    monkeypatch.setattr("feedrate.source.folders.list_folder", list_open)
    with pytest.raises(StorageError, match="src/b: folder cannot be listed: Permission denied"):
        pack(tmp_path / "src", tmp_path / "p", PackOptions(workers=1))
    assert not (tmp_path / "p").exists()
    closed.remove(b"b")
    assert pack(tmp_path / "src", tmp_path / "p", PackOptions(workers=1)).samples == 2


def test_hdf5_with_encoded_images(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        group = file.create_group("train")
        images = group.create_dataset("jpeg", (3,), h5py.vlen_dtype(np.uint8))
        for n in range(3):
            images[n] = np.frombuffer(jpeg(n), np.uint8)
        group["y"] = [b"x", b"y", b"x"]
        file["test/jpeg"] = np.zeros((7, 9, 9), np.uint8)
    with pytest.raises(SourceError, match=r"several sets of images, of 3, 7 rows"):
        pack(tmp_path / "d.hdf5", tmp_path / "p")
    assert not (tmp_path / "p").exists()
    packed(tmp_path / "d.hdf5" / "train", tmp_path / "p")
    assert [s["image"] for s in read_pack(tmp_path / "p").values()] == [jpeg(n) for n in range(3)]
    assert [s["label"] for s in read_pack(tmp_path / "p").values()] == ["x", "y", "x"]


def test_hugging_face_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    features = {
        "image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
        "tags": {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["a", "b", "c"]}},
    }  # fmt: skip
    (tmp_path / "s").mkdir()
    for part, numbers in enumerate(([0, 1, 2], [3, 4])):
        table = pa.table({
            "image": [{"bytes": jpeg(n), "path": None} for n in numbers], "label": [n % 2 for n in numbers],
            "tags": [[0, 2] if n else [] for n in numbers], "caption": [f"text {n}" for n in numbers],
            "depth": pa.array([None if n == 1 else n for n in numbers], pa.int64()),
            "segmentation": [png_mask(n) for n in numbers],
        })  # fmt: skip
        metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        parquet.write_table(
            table.replace_schema_metadata(metadata), tmp_path / "s" / f"train-{part:05d}-of-00002.parquet",
            row_group_size=2,
        )  # fmt: skip
    packed(tmp_path / "s", tmp_path / "p")
    for n, sample in enumerate(read_pack(tmp_path / "p").values()):
        assert (sample["image"], sample["segmentation"]) == (jpeg(n), png_mask(n))
        assert (sample["label"], sample["caption"]) == (["cat", "dog"][n % 2], f"text {n}")
        assert sample["tags"] == ([1, 0, 1] if n else [0, 0, 0])
        assert sample["depth"] == (None if n == 1 else n)


def test_parts_of_a_dataset_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for name in ("train-0.tar", "test-0.tar"):
        write_tar(tmp_path / "s" / name, SHARDS[0])
    with pytest.raises(SourceError, match=r"holds the parts of a dataset \(test, train\)"):
        pack(tmp_path / "s", tmp_path / "p")


@pytest.mark.parametrize("top", ["", "photos/"])
@pytest.mark.parametrize("beside", [[], ["extra/3.jpg"]])
def test_parts_in_an_archive_are_no_classes_whatever_lies_beside_them(
    tmp_path: Path, top: str, beside: list[str]
) -> None:
    names = ["train/cat/1.jpg", "test/cat/2.jpg", *beside]
    write_tar(tmp_path / "d.tar", {f"{top}{name}": jpeg(n) for n, name in enumerate(names)})
    with pytest.raises(SourceError, match=r"holds the parts of a dataset \(test, train\), not classes"):
        pack(tmp_path / "d.tar", tmp_path / "p")


def test_a_class_in_an_archive_may_be_called_train(tmp_path: Path) -> None:
    write_tar(tmp_path / "d.tar", {"train/1.jpg": jpeg(1), "bus/2.jpg": jpeg(2)})
    pack(tmp_path / "d.tar", tmp_path / "p")
    assert Dataset(tmp_path / "p").classes == ["bus", "train"]


def test_a_list_of_paths_with_labels(tmp_path: Path) -> None:
    (tmp_path / "my images").mkdir()
    for n in range(3):
        (tmp_path / "my images" / f"{n}.jpg").write_bytes(jpeg(n))
    lines = [
        "# comment",
        "my images/0.jpg cat",
        f"{tmp_path}/my images/1.jpg\tdog",
        "./my images/2.jpg,cat",
        "no.jpg cat",
    ]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    result = packed(tmp_path / "list.txt", tmp_path / "p")
    assert [(r.path, r.reason) for r in result.rejected] == [("no.jpg", "no such file")]
    assert sorted((s["image"], s["label"]) for s in read_pack(tmp_path / "p").values()) == sorted(
        [(jpeg(0), "cat"), (jpeg(1), "dog"), (jpeg(2), "cat")]
    )


def test_a_list_of_paths_without_labels(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    (tmp_path / "list.lst").write_text("a.jpg\n")
    assert list(packed(tmp_path / "list.lst", tmp_path / "p").fields) == ["image"]


def test_a_table_is_a_source_by_itself(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.jpg").write_bytes(jpeg(0))
    (tmp_path / "s" / "t.csv").write_text("path,label\na.jpg,3\n")
    packed(tmp_path / "s" / "t.csv", tmp_path / "p")
    assert read_pack(tmp_path / "p") == {"a": {"image": jpeg(0), "label": 3}}


def test_what_is_not_understood_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_bytes(b"something else")
    with pytest.raises(
        SourceError, match=r"cannot tell what .*x\.dat is: it begins with b'something else'"
    ) as caught:
        pack(tmp_path / "x.dat", tmp_path / "p")
    assert "a source is a folder of images" in (caught.value.hint or "")
    with pytest.raises(NotFound, match=r"no dataset at"):
        pack(tmp_path / "no.zip", tmp_path / "p")
    source = write_tfrecord(tmp_path / "d.tfrecord", examples())
    with pytest.raises(UsageError, match=r"--labels and --field go with a folder or an archive"):
        pack(source, tmp_path / "p", PackOptions(labels=tmp_path / "x.csv"))
    assert not (tmp_path / "p").exists()


def test_the_same_source_packed_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "d.tar.gz", SHARDS[0], "w:gz")
    packed(source, tmp_path / "p")
    packed(source, tmp_path / "q")
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "q")


def test_a_full_disk_while_a_source_is_kept_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("feedrate.source.record.Spool._open", lambda _: Full())
    source = write_tar(tmp_path / "d.tar.gz", CLASSES, "w:gz")
    with pytest.raises(
        StorageError, match=r"cannot write packing\.spool in .*: No space left on device"
    ) as caught:
        pack(source, tmp_path / "p", PackOptions(workers=1))
    assert "room for them twice" in (caught.value.hint or "")
    assert not (tmp_path / "p").exists()


def test_a_refused_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "d.tar.gz", {**CLASSES, "../x.jpg": b""}, "w:gz")
    with pytest.raises(SourceError, match=r"'\.\./x\.jpg' leads out of the folder"):
        pack(source, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_texts_that_nobody_could_load_are_rejected(tmp_path: Path) -> None:
    files = {}
    for n, (text, document) in enumerate([(b"fine", b"[1]"), (b"\xff", b"1"), (b"", b"{"), (b"x", b"null")]):
        files |= {f"{n}.jpg": jpeg(n), f"{n}.txt": text, f"{n}.json": document}
    result = packed(write_tar(tmp_path / "d.tar", files), tmp_path / "p")
    reasons = {r.path: (r.field, r.reason) for r in result.rejected}
    assert reasons["1.txt"] == ("text", "is not UTF-8, from byte 0 on")
    assert reasons["2.json"][1].startswith("is not JSON: ")
    assert sorted(read_pack(tmp_path / "p")) == ["0", "3"]


def test_what_is_in_the_pack_is_what_the_loader_gives(tmp_path: Path) -> None:
    from feedrate import Loader

    packed(write_tar(tmp_path / "d.tar", SHARDS[0]), tmp_path / "p")
    fields = ("label", "json", "caption", "key")
    for labels, documents, captions, keys in Loader(
        tmp_path / "p", batch_size=3, fields=fields, shuffle=False
    ):
        numbers = [int(key) for key in keys]
        assert [int(label) for label in labels] == [n % 2 for n in numbers]
        assert (list(documents), list(captions)) == ([{"n": n} for n in numbers], ["c"] * 3)


@pytest.mark.parametrize(("name", "mode"), [("d.zip", ""), ("d.tar", "w"), ("d.tar.gz", "w:gz")])
def test_a_table_labels_the_members_of_an_archive(tmp_path: Path, name: str, mode: str) -> None:
    files = {f"images/{n}.jpg": jpeg(n) for n in range(4)} | {"images/0.png": png_mask(0), "images/note": b""}
    files["images/1.png"] = png_mask(1)
    source = write_tar(tmp_path / name, files, mode) if mode else write_zip(tmp_path / name, files)
    table = tmp_path / "labels.csv"
    table.write_text("file,label,mask\n0.jpg,cat,0.png\nimages/1.jpg,dog,1.png\n9.jpg,dog,0.png\n")
    options = {"labels": table, "fields": (FieldSpec.parse("mask:mask"),)}
    result = packed(source, tmp_path / "p", **options)
    assert [(r.path, r.reason) for r in result.rejected] == [("9.jpg", "no such file in the archive")]
    assert (result.unlisted, dict(result.ignored)) == (2, {"": 1})
    assert read_pack(tmp_path / "p") == {
        "0": {"image": jpeg(0), "label": "cat", "mask": png_mask(0)},
        "images/1": {"image": jpeg(1), "label": "dog", "mask": png_mask(1)},
    }


def test_a_table_that_names_nothing_in_the_archive_is_refused(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "d.zip", CLASSES)
    (tmp_path / "t.csv").write_text("file,label\nx.jpg,1\n")
    with pytest.raises(SourceError, match=r"the table says 'x\.jpg', .*d\.zip holds 'ant/0\.jpg'"):
        pack(source, tmp_path / "p", PackOptions(labels=tmp_path / "t.csv"))
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("shape", [(5, 20, 30), (5, 20, 30, 1), (5, 3, 20, 30), (5, 20, 30, 4)])
@pytest.mark.parametrize("is_dear", [False, True])
def test_pixels_of_every_layout_in_hdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], is_dear: bool
) -> None:
    import h5py
    from PIL import Image

    monkeypatch.setattr("feedrate.source.hdf5._CACHE_BYTES", 10 if is_dear else 2**26)
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", data=pixels, chunks=(2, *shape[1:]), compression="gzip")
    packed(tmp_path / "d.h5", tmp_path / "p")
    wanted = pixels.transpose(0, 2, 3, 1) if shape[1] == 3 else pixels.reshape(5, 20, 30, -1).squeeze()
    for n, sample in enumerate(read_pack(tmp_path / "p").values()):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["image"]))), wanted[n])
    unpack(tmp_path / "p", tmp_path / "out", workers=1)
    suffix = {3: ".pgm", 4: ".ppm"}[len(shape)] if shape[-1] != 1 and shape[-1] != 4 else ".pgm"
    assert {path.suffix for path in (tmp_path / "out" / "d").iterdir()} == {
        ".png" if shape[-1] == 4 else suffix
    }
