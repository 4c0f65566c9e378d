# SPDX-License-Identifier: Apache-2.0
"""What every container must do; pack, verify, unpack, ls and both ways of loading see no difference."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedrate import Dataset, FieldSpec, Loader, PackOptions, Recode, Resize, pack, unpack, verify
from feedrate.errors import BadSample, MissingExtra, StorageError, UsageError
from feedrate.format.containers import NAMES, Content, Output, TooLarge, find_container
from feedrate.format.fields import Field, Kind
from feedrate.format.manifest import read_manifest
from feedrate.packing.build import hdf5_join
from feedrate.packing.build import pack as making
from feedrate.packing.check.describe import describe
from support.contracts import plain, spoil
from support.examples import examples
from support.images import read_tree, save_image

IMAGE = Field("image", Kind.IMAGE)
LABEL = Field("label", Kind.NUMBER, dtype="int64")
WEIGHT = Field("weight", Kind.NUMBER, dtype="float64")
CAPTION = Field("caption", Kind.TEXT)


@pytest.fixture(params=NAMES)
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def everything(tmp_path: Path) -> tuple[Path, PackOptions]:
    """A folder with a table of all kinds of fields."""
    root = tmp_path / "source"
    rows = []
    for n in range(12):
        save_image(root / f"{n}.jpg", n, width=64, height=48)
        save_image(root / f"mask{n}.png", n, mode="L", width=64, height=48)
        np.save(root / f"points{n}.npy", np.full((2, 3), n, np.float32))
        np.save(root / f"ragged{n}.npy", np.arange(n % 3 + 1))
        (root / f"blob{n}.dat").write_bytes(bytes([n]) * n)
        rows.append({
            "path": f"{n}.jpg", "label": "cat" if n % 2 else "dog", "weight": n / 3, "count": n - 5,
            "mask": f"mask{n}.png", "points": f"points{n}.npy", "ragged": f"ragged{n}.npy",
            "blob": f"blob{n}.dat", "caption": f"číslo {n}", "meta": json.dumps({"n": n}),
            "boxes": json.dumps([[1, 2, 3 + n, 4 + n]]),
        })  # fmt: skip
    table = tmp_path / "labels.csv"
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    kinds = {
        "weight": "number", "count": "number", "mask": "mask", "points": "array", "ragged": "array",
        "blob": "bytes", "caption": "text", "meta": "json", "boxes": "boxes",
    }  # fmt: skip
    fields = tuple(FieldSpec.parse(f"{name}:{kind}") for name, kind in kinds.items())
    return root, PackOptions(labels=table, fields=fields, shard_bytes=30_000, workers=1)


def with_container(options: PackOptions, container: str) -> PackOptions:
    return PackOptions(
        labels=options.labels, fields=options.fields, shard_bytes=options.shard_bytes,
        workers=options.workers, recode=options.recode, container=container,
    )  # fmt: skip


def load_all(folder: Path, fields: list[str]) -> dict[str, list[object]]:
    loader = Loader(folder, batch_size=5, fields=["key", *fields], image=Resize(16), output="numpy")
    found: dict[str, list[object]] = {}
    with loader:
        for keys, *values in loader:
            for i, key in enumerate(keys):
                found[key] = [v[i].tolist() if isinstance(v[i], np.ndarray) else v[i] for v in values]
    return found


ALL = ["image", "label", "weight", "count", "mask", "points", "ragged", "blob", "caption", "meta", "boxes"]


class TestPacks:
    def test_samples_are_those_of_the_tar_pack(
        self, everything: tuple[Path, PackOptions], tmp_path: Path, container: str
    ) -> None:
        source, options = everything
        result = pack(source, tmp_path / "p", with_container(options, container))
        pack(source, tmp_path / "tar", options)
        assert result.samples == 12
        assert load_all(tmp_path / "p", ALL) == load_all(tmp_path / "tar", ALL)

    def test_dataset_gives_the_samples_of_the_tar_pack(
        self, everything: tuple[Path, PackOptions], tmp_path: Path, container: str
    ) -> None:
        source, options = everything
        pack(source, tmp_path / "p", with_container(options, container))
        pack(source, tmp_path / "tar", options)
        ours, theirs = (
            Dataset(tmp_path / name, fields=["key", "image", "points", "label"], output="numpy")
            for name in ("p", "tar")
        )
        for mine, other in zip(ours, theirs, strict=False):
            assert [np.asarray(v).tolist() for v in mine] == [np.asarray(v).tolist() for v in other]

    def test_pack_is_good(self, everything: tuple[Path, PackOptions], tmp_path: Path, container: str) -> None:
        source, options = everything
        pack(source, tmp_path / "p", with_container(options, container))
        checked = verify(tmp_path / "p")
        assert checked.problems == ()
        assert checked.extra_files == ()
        assert checked.shards > 1
        assert describe(tmp_path / "p", samples=3).samples == 12

    def test_unpack_gives_the_files_back(
        self, everything: tuple[Path, PackOptions], tmp_path: Path, container: str
    ) -> None:
        source, options = everything
        pack(source, tmp_path / "p", with_container(options, container))
        unpack(tmp_path / "p", tmp_path / "back")
        back = read_tree(tmp_path / "back")
        assert {name: data for name, data in back.items() if name != "labels.csv"} == read_tree(source)

    def test_number_of_workers_changes_no_byte(
        self, everything: tuple[Path, PackOptions], tmp_path: Path, container: str
    ) -> None:
        source, options = everything
        one = with_container(options, container)
        pack(source, tmp_path / "one", one)
        pack(source, tmp_path / "many", PackOptions(
            labels=one.labels, fields=one.fields, shard_bytes=one.shard_bytes, workers=2,
            container=container,
        ))  # fmt: skip
        assert read_tree(tmp_path / "one") == read_tree(tmp_path / "many")

    def test_raw_images_are_loaded_and_unpacked_alike(
        self, jpeg_folder: Path, tmp_path: Path, container: str
    ) -> None:
        options = PackOptions(shard_bytes=20_000, recode=Recode(raw=True), workers=1)
        pack(jpeg_folder, tmp_path / "p", with_container(options, container))
        pack(jpeg_folder, tmp_path / "tar", options)
        assert verify(tmp_path / "p").problems == ()
        assert load_all(tmp_path / "p", ["image", "label"]) == load_all(tmp_path / "tar", ["image", "label"])
        for name in ("p", "tar"):
            unpack(tmp_path / name, tmp_path / f"{name}-back")
        assert read_tree(tmp_path / "p-back") == read_tree(tmp_path / "tar-back")

    def test_damage_is_found_when_loading_and_when_verifying(
        self, jpeg_folder: Path, tmp_path: Path, container: str
    ) -> None:
        pack(jpeg_folder, tmp_path / "p", PackOptions(container=container))
        manifest = read_manifest(tmp_path / "p")
        opened = Dataset(tmp_path / "p", fields=["image"])._open().pack
        rows, _ = opened.rows(np.arange(3))
        spoil(tmp_path / "p", manifest.shards[0].name, int(rows["image.offset"][2]) + 100)
        with pytest.raises(BadSample, match="the index says"):
            Dataset(tmp_path / "p")[2]
        texts = [problem.text for problem in verify(tmp_path / "p").problems]
        assert any("field 'image' its bytes are not those" in t or "is damaged" in t for t in texts)

    def test_wrong_number_in_the_shard_is_found(
        self, jpeg_folder: Path, tmp_path: Path, container: str
    ) -> None:
        pack(jpeg_folder, tmp_path / "p", PackOptions(container=container))
        shard = read_manifest(tmp_path / "p").shards[0]
        fields = read_manifest(tmp_path / "p").fields
        found = find_container(container).read_members(
            tmp_path / "p" / shard.name, fields, range(shard.samples)
        )
        members = list(found)
        spoil(tmp_path / "p", shard.name, members[1].offset, value=0x05)
        assert not verify(tmp_path / "p").is_good

    def test_cut_file_is_a_problem_not_a_traceback(
        self, jpeg_folder: Path, tmp_path: Path, container: str
    ) -> None:
        pack(jpeg_folder, tmp_path / "p", PackOptions(container=container))
        path = tmp_path / "p" / read_manifest(tmp_path / "p").shards[0].name
        path.write_bytes(path.read_bytes()[:-700])
        assert not verify(tmp_path / "p").is_good

    def test_settings_name_the_format_unless_it_is_tar(
        self, jpeg_folder: Path, tmp_path: Path, container: str
    ) -> None:
        pack(jpeg_folder, tmp_path / "p", PackOptions(container=container))
        document = json.loads((tmp_path / "p" / "pack.json").read_text())
        expected = (1, None) if container == "tar" else (2, container)
        assert (document["version"], document["settings"].get("format")) == expected


def test_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="format must be one of tar, tfrecord, hdf5, got 'zip'"):
        PackOptions(container="zip")


def store(field: Field, value: Any) -> Content:
    if isinstance(value, bytes):
        return Content(field, value, b"x.jpg")
    return Content(field, json.dumps(value).encode(), b"", value)


def test_missing_h5py_is_said_before_anything_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match="HDF5 needs h5py") as caught:
        PackOptions(container="hdf5")
    assert caught.value.hint == "pip install 'feedrate[hdf5]'"


VALUES = st.fixed_dictionaries(
    {
        "image": st.binary(max_size=700),
        "label": st.integers(-(2**63), 2**63 - 1),
        "weight": st.floats(width=32, allow_nan=False),
        "caption": st.text(max_size=40).map(lambda t: t.encode("utf-8", "surrogatepass")),
    }
)


@pytest.mark.parametrize("name", ["tar", "tfrecord"])
@given(samples=st.lists(VALUES, max_size=6))
@settings(max_examples=examples(50))
def test_any_values_come_back_from_where_the_writer_says(
    tmp_path_factory: pytest.TempPathFactory, name: str, samples: list[dict[str, Any]]
) -> None:
    container, file = find_container(name), io.BytesIO()
    output = Output(file)
    writer = container.write(output)
    said, contents_of = [], []
    for i, sample in enumerate(samples):
        contents = [store(field, sample[field.name]) for field in (IMAGE, LABEL, WEIGHT, CAPTION)]
        said += writer.add(f"key-{i}", contents)
        contents_of += [(f"key-{i}", c) for c in contents]
    writer.end()
    data = file.getvalue()
    path = tmp_path_factory.mktemp("c") / "shard"
    path.write_bytes(data)
    assert (len(data), len(said)) == (output.size_bytes, 4 * len(samples))
    members = list(container.read_members(path, (IMAGE, LABEL, WEIGHT, CAPTION), range(len(samples))))
    assert [m.offset for m in members] == said
    for member, (key, content) in zip(members, contents_of, strict=True):
        stored = data[member.offset : member.offset + member.size_bytes]
        number = content.number
        assert stored == (content.data if number is None else container.dump_number(content.field, number))
        assert member.name == container.member_name(key, content)


def test_example_above_two_gigabytes_is_refused() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 2**31

    writer = find_container("tfrecord").write(Output(io.BytesIO()))
    with pytest.raises(TooLarge, match="a TFRecord's Example holds at most 2 GB"):
        writer.add("key", [Content(IMAGE, Long(b""))])


def test_disk_that_is_full_when_parts_are_joined_is_a_sentence(
    jpeg_folder: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(12):
        save_image(jpeg_folder / "cat" / f"more{n}.jpg", n)
    options = PackOptions(shard_bytes=10_000, workers=1, container="hdf5")
    # The parts fit beside what is there already, the file that is made of them does not.
    subprocess.run(["mount", "-o", "remount,size=150k", small_disk], check=True)
    monkeypatch.setattr(making, "free_bytes", lambda _: 10**9)
    with pytest.raises(StorageError, match="the disk is full at"):
        pack(jpeg_folder, small_disk / "p", options)
    assert not list((small_disk / "p").glob(".*"))
    assert not (small_disk / "p" / "pack.json").exists()
    assert list((small_disk / "p").glob("part-*.bin"))
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert pack(jpeg_folder, small_disk / "p", options).resumed_shards > 2
    pack(jpeg_folder, tmp_path / "undisturbed", options)
    assert read_tree(small_disk / "p") == read_tree(tmp_path / "undisturbed")


def test_pack_whose_parts_were_not_yet_removed_ends_well(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PackOptions(shard_bytes=10_000, workers=1, container="hdf5")
    pack(jpeg_folder, tmp_path / "undisturbed", options)

    def die(folder: Path, shards: int) -> None:
        del shards
        (folder / "part-00000.bin").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hdf5_join, "remove_parts", die)
        with pytest.raises(KeyboardInterrupt):
            pack(jpeg_folder, tmp_path / "p", options)
    result = pack(jpeg_folder, tmp_path / "p", options)
    assert result.resumed_shards == result.shards
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "undisturbed")


def test_a_file_that_several_shards_share_is_counted_once(jpeg_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    packed = pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1, container="hdf5", shard_bytes=1))
    assert packed.shards > 1
    data_bytes = (tmp_path / "p" / "data.h5").stat().st_size
    index_bytes = sum(path.stat().st_size for path in (tmp_path / "p").glob("*.arrow"))
    described = describe(tmp_path / "p")
    assert (described.shard_bytes, described.index_bytes) == (data_bytes, index_bytes)
    for result in (packed, verify(tmp_path / "p", workers=1)):
        assert result.size_bytes == data_bytes + index_bytes


def test_hdf5_pack_is_read_by_plain_h5py(everything: tuple[Path, PackOptions], tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source, options = everything
    pack(source, tmp_path / "p", with_container(options, "hdf5"))
    with h5py.File(tmp_path / "p" / "data.h5") as file:
        for i, key in enumerate(file["key"]):
            number = int(key)
            start, length = file["image/offset"][i], file["image/length"][i]
            data = file["image/data"][start : start + length].tobytes()
            assert data == (source / f"{number}.jpg").read_bytes()
            assert Image.open(io.BytesIO(data)).size == (64, 48)
            assert file["points"][i].tolist() == np.full((2, 3), number).tolist()
            assert file["weight"][i] == number / 3
            assert file["label"][i] == 1 - number % 2
        assert file["points"].shape == (12, 2, 3)
        assert file["points"].chunks is None


def test_raw_images_of_one_size_are_one_hdf5_dataset(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for n in range(9):
        save_image(tmp_path / "s" / f"{n}.png", n, width=20, height=10)
    pack(tmp_path / "s", tmp_path / "p", PackOptions(container="hdf5", recode=Recode(raw=True)))
    with h5py.File(tmp_path / "p" / "data.h5") as file:
        assert file["image"].shape == (9, 10, 20, 3)
        for i, key in enumerate(file["key"]):
            expected = np.asarray(Image.open(tmp_path / "s" / f"{key.decode()}.png").convert("RGB"))
            assert (file["image"][i] == expected).all()
    assert verify(tmp_path / "p").problems == ()
    with Loader(tmp_path / "p", batch_size=9, shuffle=False) as loader:
        ((images, *_),) = loader
        assert plain(images).shape == (9, 10, 20, 3)
