# SPDX-License-Identifier: Apache-2.0
"""`feedrate index`: files that were there before are read at random, resumed and decoded as packs are."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedrate import Dataset, Loader, PackOptions, Resize, index, pack, unpack, verify
from feedrate.errors import (
    AlreadyExists,
    BadSample,
    NotFound,
    PackError,
    SourceError,
    StorageError,
    UsageError,
)
from feedrate.files import atomic
from feedrate.format.manifest import read_manifest
from feedrate.packing.check.describe import describe
from feedrate.packing.indexing import local
from feedrate.progress import Tick
from support.contracts import plain
from support.examples import examples
from support.images import read_tree, save_image

IMAGES = 24


def encoded(n: int) -> bytes:
    with io.BytesIO() as file:
        coarse = np.random.default_rng(n).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((64, 48)).save(file, "JPEG")
        return file.getvalue()


def decoded(n: int) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded(n))).convert("RGB")).astype(int)


def write_webdataset(folder: Path, shards: int = 3) -> Path:
    """Shards as the webdataset package writes them."""
    import webdataset

    folder.mkdir(parents=True)
    for shard in range(shards):
        with webdataset.TarWriter(str(folder / f"train-{shard:04d}.tar")) as sink:
            for n in range(shard * IMAGES // shards, (shard + 1) * IMAGES // shards):
                sample = {"__key__": f"sample{n:04d}", "jpg": encoded(n), "cls": n % 3, "json": {"n": n}}
                sink.write(sample)
    return folder


def test_a_name_that_is_not_there_is_not_found_in_what_indexing_makes(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no dataset at") as raised:
        index(tmp_path / "typo-folder")
    assert raised.value.hint is None
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no images in") as raised:
        index(tmp_path)
    assert raised.value.hint == "it holds no files at all"


def write_tfrecord(folder: Path) -> Path:
    source = write_folder(folder.parent / "for-tfrecord")
    pack(source, folder.parent / "tfrecord-pack", PackOptions(container="tfrecord", shard_bytes=12_000))
    folder.mkdir()
    for path in (folder.parent / "tfrecord-pack").glob("*.tfrecord"):
        path.rename(folder / path.name)
    return folder


def write_folder(folder: Path) -> Path:
    for n in range(IMAGES):
        path = folder / ("cat", "dög x", "emu")[n % 3] / f"sample{n:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(n))
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "webdataset": write_webdataset, "tfrecord": write_tfrecord, "folder": write_folder,
}  # fmt: skip


@pytest.fixture(params=WRITERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return WRITERS[request.param](tmp_path / "source")


def load(pack: Path, **options: Any) -> list[tuple[np.ndarray, list[int], list[str]]]:
    with Loader(pack, batch_size=5, image=Resize(16), fields=("image", "label", "key"), **options) as loader:
        return [(plain(images), labels.tolist(), keys) for images, labels, keys in loader]


def test_every_sample_is_loaded_with_its_pixels_and_label(source: Path, tmp_path: Path) -> None:
    result = index(source, tmp_path / "index")
    assert (result.samples, result.rejected) == (IMAGES, ())
    found = Dataset(tmp_path / "index", fields=["image"], output="numpy")
    expected = np.stack([decoded(n) for n in range(IMAGES)])
    nearest = [np.abs(expected - found[i].astype(int)).mean((1, 2, 3)).argmin() for i in range(IMAGES)]
    assert sorted(nearest) == list(range(IMAGES))
    assert sorted(label for _, labels, _ in load(tmp_path / "index") for label in labels) == sorted(
        n % 3 for n in range(IMAGES)
    )


def test_no_byte_of_the_source_is_written(source: Path) -> None:
    before = {name: (data, os.stat(source / name).st_mtime_ns) for name, data in read_tree(source).items()}
    target = Path(index(source).target)
    after = read_tree(source)
    assert {n: (after[n], os.stat(source / n).st_mtime_ns) for n in before} == before
    new = {name for name in read_tree(target) if target != source or name not in before}
    assert new == {"pack.json"} | {f"index-{i:05d}.arrow" for i in range(len(new) - 1)}
    assert len(load(target)) == 5


def test_index_is_good_and_described(source: Path, tmp_path: Path) -> None:
    index(source, tmp_path / "index")
    checked = verify(tmp_path / "index")
    assert (checked.problems, checked.samples) == ((), IMAGES)
    described = describe(tmp_path / "index", samples=2)
    image = next(field for field in described.fields if field.name == "image")
    assert image.kernel_share == 1.0
    assert len(described.first_samples) == 2


def test_number_of_workers_changes_no_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MOST_SAMPLES", 5)
    index(source, tmp_path / "one", workers=1)
    index(source, tmp_path / "two", workers=2)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
    assert len(read_manifest(tmp_path / "one").shards) > 4


def test_interrupted_index_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MOST_SAMPLES", 4)
    index(source, tmp_path / "undisturbed", workers=1)

    class Stop(Exception):
        pass

    def stop(tick: Tick) -> None:
        if tick.stage == "indexing" and tick.done >= 10:
            raise Stop

    with pytest.raises(Stop):
        index(source, tmp_path / "index", workers=1, watch=stop)
    with pytest.raises(Exception, match="is an unfinished pack: run the same 'feedrate index' command again"):
        Loader(tmp_path / "index")
    result = index(source, tmp_path / "index", workers=1)
    assert result.resumed_parts >= 2
    assert read_tree(tmp_path / "index") == read_tree(tmp_path / "undisturbed")


def test_full_disk_is_a_sentence_and_the_index_goes_on_later(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MOST_SAMPLES", 4)
    real, calls = os.fsync, iter(range(100))

    def fail_once(fd: int) -> None:
        if next(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", fail_once)
        with pytest.raises(StorageError, match="the disk is full at"):
            index(source, tmp_path / "index", workers=1)
    assert not list((tmp_path / "index").glob(".*"))
    assert not (tmp_path / "index" / "pack.json").exists()
    index(source, tmp_path / "index", workers=1)
    index(source, tmp_path / "undisturbed", workers=1)
    assert read_tree(tmp_path / "index") == read_tree(tmp_path / "undisturbed")


def test_what_was_indexed_can_still_be_packed(source: Path, tmp_path: Path) -> None:
    index(source)
    assert pack(source, tmp_path / "p", PackOptions(workers=1)).samples == IMAGES


def test_second_index_is_refused(source: Path) -> None:
    index(source)
    with pytest.raises(AlreadyExists, match="is a pack or an index already"):
        index(source)


class TestWebDatasetShards:
    def test_shuffle_is_global_where_the_shards_are(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        keys = [key for _, _, keys in load(tmp_path / "s") for key in keys]
        assert sorted(keys) != keys
        shards = [key.split("/")[0] for key in keys[:8]]
        assert len(set(shards)) == 3

    def test_stopped_epoch_is_resumed_exactly(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        options: dict[str, Any] = {"batch_size": 5, "image": Resize(16), "fields": ("key",), "seed": 3}
        with Loader(tmp_path / "s", **options) as loader:
            whole = [keys for (keys,) in loader]
        with Loader(tmp_path / "s", **options) as loader:
            batches = iter(loader)
            first = [next(batches)[0] for _ in range(2)]
            state = json.loads(json.dumps(loader.state_dict()))
        with Loader(tmp_path / "s", **options) as loader:
            loader.load_state_dict(state)
            rest = [keys for (keys,) in loader]
        assert first + rest == whole

    def test_json_members_and_labels_belong_together(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        with Loader(tmp_path / "s", batch_size=7, fields=("label", "json", "key")) as loader:
            for labels, documents, keys in loader:
                assert labels.tolist() == [document["n"] % 3 for document in documents]
                assert [int(key[-4:]) for key in keys] == [document["n"] for document in documents]

    @pytest.mark.filterwarnings("ignore")
    def test_plain_webdataset_still_reads_them(self, tmp_path: Path) -> None:
        import webdataset

        index(write_webdataset(tmp_path / "s"))
        shards = sorted(str(path) for path in (tmp_path / "s").glob("*.tar"))
        samples = list(webdataset.WebDataset(shards, shardshuffle=False))
        assert [sample["jpg"] for sample in samples] == [encoded(n) for n in range(IMAGES)]

    def test_unpack_gives_the_members_back(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"), tmp_path / "index")
        unpack(tmp_path / "index", tmp_path / "back")
        assert (tmp_path / "back/train-0001/sample0010.jpg").read_bytes() == encoded(10)


class TestHdf5:
    def write(self, path: Path, **options: Any) -> dict[str, np.ndarray]:
        h5py = pytest.importorskip("h5py")
        rng = np.random.default_rng(0)
        data = {
            "image": rng.integers(0, 256, (20, 32, 24, 3), dtype=np.uint8),
            "label": np.arange(20) % 3,
            "features": rng.random((20, 5)).astype(">f4"),
        }
        with h5py.File(path, "w") as file:
            for name, values in data.items():
                file.create_dataset(name, data=values, **options)
            file["caption"] = [f"caption {n}" for n in range(20)]
        return data

    def test_rows_of_contiguous_datasets_are_loaded(self, tmp_path: Path) -> None:
        data = self.write(tmp_path / "d.h5")
        result = index(tmp_path / "d.h5")
        assert result.target == str(tmp_path / "d.h5.index")
        assert result.left_out == {"caption": "not stored as a file"}
        assert verify(result.target).problems == ()
        options: dict[str, Any] = {"fields": ("image", "label", "features", "number"), "output": "numpy"}
        with Loader(result.target, batch_size=6, **options) as loader:
            for images, labels, features, numbers in loader:
                assert (images == data["image"][numbers]).all()
                assert (labels == data["label"][numbers]).all()
                assert (features == data["features"][numbers]).all()

    def test_chunked_datasets_are_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path / "d.h5", chunks=True)
        with pytest.raises(SourceError, match=r"field 'image' of .* does not lie there as it is") as caught:
            index(tmp_path / "d.h5")
        assert caught.value.hint == "it can be packed: feedrate pack SOURCE PACK"
        assert sorted(os.listdir(tmp_path)) == ["d.h5"]


class TestChanges:
    def test_shard_of_another_size_is_noticed_when_it_is_opened(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        with open(tmp_path / "s" / "train-0001.tar", "ab") as file:
            file.write(b"more")
        with pytest.raises(
            PackError, match=r"train-0001.tar has changed since it was indexed: .* bytes then"
        ):
            Loader(tmp_path / "s")
        (problem,) = {p.text.split(":")[0] for p in verify(tmp_path / "s").problems}
        assert problem == "has changed since it was indexed"

    def test_shard_with_other_bytes_is_noticed_when_they_are_read(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        path = tmp_path / "s" / "train-0001.tar"
        data = bytearray(path.read_bytes())
        at = data.index(encoded(10)) + 200
        data[at] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(BadSample, match=r"has changed since it was indexed: index it again with"):
            load(tmp_path / "s")
        assert not verify(tmp_path / "s").is_good

    def test_shard_that_is_gone_is_named(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"), tmp_path / "index")
        (tmp_path / "s" / "train-0001.tar").unlink()
        with pytest.raises(PackError, match=r"is an index of .*train-0001.tar, which cannot be read"):
            Loader(tmp_path / "index")

    def test_file_that_changed_is_named_by_the_sample(self, tmp_path: Path) -> None:
        index(write_folder(tmp_path / "s"), tmp_path / "index")
        path = tmp_path / "s" / "cat" / "sample0003.jpg"
        path.write_bytes(path.read_bytes() + b"x" * 10)
        path.write_bytes(encoded(100)[:700])
        with pytest.raises(BadSample, match=r"sample0003.*has changed since it was indexed"):
            load(tmp_path / "index")
        assert [p.key for p in verify(tmp_path / "index").problems] == ["cat/sample0003"]

    def test_file_that_is_gone_or_short_is_skipped_as_one_sample(self, tmp_path: Path) -> None:
        index(write_folder(tmp_path / "s"), tmp_path / "index")
        (tmp_path / "s" / "cat" / "sample0003.jpg").unlink()
        os.truncate(tmp_path / "s" / "emu" / "sample0005.jpg", 100)
        with pytest.raises(BadSample, match=r"sample000[35]"):
            load(tmp_path / "index")
        keys = {key for _, _, keys in load(tmp_path / "index", on_bad_sample="skip") for key in keys}
        assert len(keys) == IMAGES - 2
        assert not {"cat/sample0003", "emu/sample0005"} & keys

    @pytest.mark.parametrize("gone", ["s", "s/cat"])
    def test_folder_that_is_gone_is_not_skipped(self, tmp_path: Path, gone: str) -> None:
        index(write_folder(tmp_path / "s"), tmp_path / "index")
        with Loader(tmp_path / "index", 4, image=Resize(16), on_bad_sample="skip") as loader:
            shutil.rmtree(tmp_path / gone)
            with pytest.raises(StorageError, match=f"the folder .*/{gone} is gone"):
                list(loader)

    def test_folder_that_is_empty_as_without_its_mount_is_not_skipped(self, tmp_path: Path) -> None:
        for n in range(8):
            save_image(tmp_path / "s" / f"{n}.jpg", n)
        index(tmp_path / "s", tmp_path / "index")
        with Loader(tmp_path / "index", 4, image=Resize(16), on_bad_sample="skip") as loader:
            for path in (tmp_path / "s").iterdir():
                path.unlink()
            with pytest.raises(StorageError, match=r"the folder .*/s is empty: is something mounted there\?"):
                list(loader)

    def test_folder_of_one_class_that_is_empty_is_not_skipped(self, tmp_path: Path) -> None:
        for n in range(60):
            save_image(tmp_path / "s" / ("cat" if n < 3 else "dog") / f"{n}.jpg", n)
        index(tmp_path / "s", tmp_path / "index")
        with Loader(tmp_path / "index", 4, image=Resize(16), on_bad_sample="skip") as loader:
            for path in (tmp_path / "s" / "cat").iterdir():
                path.unlink()
            with pytest.raises(StorageError, match=r"the folder .*/s/cat is empty: is something mounted"):
                list(loader)

    def test_folder_whose_only_file_is_gone_is_one_sample(self, tmp_path: Path) -> None:
        for n in range(20):
            save_image(tmp_path / "s" / f"patient{n}" / "scan.jpg", n)
        index(tmp_path / "s", tmp_path / "index")
        (tmp_path / "s" / "patient7" / "scan.jpg").unlink()
        keys = {key for _, _, keys in load(tmp_path / "index", on_bad_sample="skip") for key in keys}
        assert len(keys) == 19

    def test_touched_shard_is_loaded_since_its_bytes_are_the_same(self, tmp_path: Path) -> None:
        index(write_webdataset(tmp_path / "s"))
        os.utime(tmp_path / "s" / "train-0001.tar", (1, 1))
        assert len(load(tmp_path / "s")) == 5


def test_folder_index_opens_no_more_files_than_it_reads(tmp_path: Path) -> None:
    data = encoded(0)
    for n in range(700):
        path = tmp_path / "s" / f"{n % 7}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    index(tmp_path / "s", tmp_path / "index")
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    with Loader(tmp_path / "index", batch_size=350, image=Resize(8)) as loader:
        for _ in loader:
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert most - before < 400
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_unpacking_an_index_of_files_says_where_they_are(tmp_path: Path) -> None:
    index(write_folder(tmp_path / "s"), tmp_path / "index")
    with pytest.raises(UsageError, match=r"is an index of the files in .*s: they are not packed"):
        unpack(tmp_path / "index", tmp_path / "back")


def test_bad_image_is_left_out_by_name(tmp_path: Path) -> None:
    write_folder(tmp_path / "s")
    (tmp_path / "s" / "cat" / "bad.jpg").write_bytes(b"no image")
    result = index(tmp_path / "s", tmp_path / "index")
    assert [r.path for r in result.rejected] == ["cat/bad.jpg"]
    assert result.samples == IMAGES
    assert "cat/bad.jpg" in (tmp_path / "index" / "rejected.jsonl").read_text()


def test_compressed_tar_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for n in range(3):
        save_image(tmp_path / "in" / f"{n}.jpg", n)
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")
    with pytest.raises((SourceError, UsageError), match=r"does not lie there as it is|compressed"):
        index(tmp_path / "s.tar.gz")
    assert sorted(os.listdir(tmp_path)) == ["in", "s.tar.gz"]


def test_pattern_needs_a_place_for_the_index(tmp_path: Path) -> None:
    write_webdataset(tmp_path / "s")
    with pytest.raises(UsageError, match=r"where should the index of .* go"):
        index(str(tmp_path / "s" / "train-*.tar"))
    assert index(str(tmp_path / "s" / "train-000[01].tar"), tmp_path / "index").samples == 16


def test_table_gives_the_labels_of_a_folder(tmp_path: Path) -> None:
    from feedrate.source.options import SourceOptions

    write_folder(tmp_path / "s")
    (tmp_path / "labels.csv").write_text("path,label\ncat/sample0000.jpg,7\nemu/sample0002.jpg,9\n")
    result = index(tmp_path / "s", tmp_path / "index", options=SourceOptions(tmp_path / "labels.csv"))
    assert result.samples == 2
    assert sorted(Dataset(tmp_path / "index").targets) == [7, 9]


VALUES = st.tuples(st.binary(min_size=1, max_size=900), st.text(min_size=1, max_size=30))


@given(st.lists(VALUES, min_size=1, max_size=8))
@settings(max_examples=examples(25))
def test_any_values_in_a_tar_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[bytes, str]]
) -> None:
    folder = tmp_path_factory.mktemp("tar")
    with tarfile.open(folder / "s.tar", "w") as archive:
        for n, (blob, text) in enumerate(members):
            for suffix, data in (("bin", blob), ("txt", text.encode("utf-8", "replace")), ("cls", b"%d" % n)):
                info = tarfile.TarInfo(f"{n:03d}.{suffix}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    index(folder / "s.tar")
    with Loader(folder / "s.tar.index", batch_size=100, shuffle=False, fields=("bytes", "text")) as loader:
        ((blobs, texts),) = loader
    assert list(blobs) == [blob for blob, _ in members]
    assert list(texts) == [text.encode("utf-8", "replace").decode() for _, text in members]
