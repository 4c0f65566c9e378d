# SPDX-License-Identifier: Apache-2.0
"""Keys and paths of the index: what comes is what was packed, or an error in words; never another text."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from feedrate import (
    Dataset,
    Loader,
    PackOptions,
    Resize,
    SplitOptions,
    index,
    kernel,
    pack,
    split,
    verify,
)
from feedrate.cli import main
from feedrate.errors import BadSample, FeedrateError, PackError
from feedrate.format.manifest import Manifest, read_manifest
from feedrate.format.pack import Pack
from support.damage import edit_manifest, flip_byte
from support.packs import write_images
from support.paths import DATA

FROZEN = DATA / "pack-v1"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pack", count=10, shards=2)


def read_keys(folder: Path) -> list[str]:
    return list(Dataset(folder, fields=("key",)))


def list_paths(folder: Path) -> list[bytes]:
    with contextlib.closing(Pack(folder)) as opened:
        return opened.texts("image.path", np.arange(len(opened)))


def list_keys_at_once(folder: Path) -> list[bytes]:
    with contextlib.closing(Pack(folder)) as opened:
        return list(opened.all_texts("key"))


def bytes_of(folder: Path, column: str) -> Iterator[int]:
    """Yield the places of the first index part at which a text column has something."""
    manifest: Manifest = read_manifest(folder)
    shard = manifest.shards[0]
    offsets, data = shard.index.columns[column]
    whole = (folder / shard.index.name).read_bytes()
    size_bytes = int(np.frombuffer(whole, "<i8", shard.samples + 1, offsets)[-1])
    yield from range(offsets, offsets + 8 * (shard.samples + 1))
    yield from range(data, data + size_bytes)


@pytest.mark.parametrize(
    ("column", "read"),
    [("key", read_keys), ("key", list_keys_at_once), ("image.path", list_paths)],
)
def test_a_changed_byte_of_a_text_column_never_gives_another_text(
    images: Path, column: str, read: Callable[[Path], object]
) -> None:
    right, seen = read(images), 0
    for at in bytes_of(images, column):
        flip_byte(images / "shard-00000.arrow", at)
        try:
            assert read(images) == right, at
        except FeedrateError:
            seen += 1
        flip_byte(images / "shard-00000.arrow", at)
    assert seen > 100


def flip_in_text(folder: Path, row: int, column: str = "key") -> None:
    shard = read_manifest(folder).shards[0]
    offsets, data = shard.index.columns[column]
    whole = (folder / shard.index.name).read_bytes()
    flip_byte(folder / shard.index.name, data + int(np.frombuffer(whole, "<i8", 1, offsets + 8 * row)[0]) + 3)


def test_a_sample_whose_key_is_damaged_is_a_bad_sample_where_keys_are_asked_for(images: Path) -> None:
    flip_in_text(images, 2)
    options = {"shuffle": False, "output": "numpy"}
    with Loader(images, 4, fields=("label", "key"), on_bad_sample="skip", **options) as loader:
        keys = [key for _, batch in loader for key in batch]
    assert keys == [f"sample-{i:05d}" for i in range(10) if i != 2]
    with (
        Loader(images, 4, fields=("key",), **options) as loader,
        pytest.raises(BadSample, match=r"field 'key' .*: the index is damaged there"),
    ):
        list(loader)
    with Loader(images, 4, fields=("label",), **options) as loader:
        assert sum(len(labels) for (labels,) in loader) == 10


def test_a_damaged_path_of_a_folder_index_is_a_bad_sample_and_not_lost_storage(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    index(jpeg_folder, tmp_path / "indexed", workers=1)
    flip_in_text(tmp_path / "indexed", 2, "image.path")
    options = {"fields": ("image", "number"), "image": Resize(8), "shuffle": False, "output": "numpy"}
    with Loader(tmp_path / "indexed", 4, on_bad_sample="skip", **options) as loader:
        numbers = [int(number) for _, batch in loader for number in batch]
    assert numbers == [number for number in range(len(Dataset(tmp_path / "indexed"))) if number != 2]
    with (
        Loader(tmp_path / "indexed", 4, **options) as loader,
        pytest.raises(BadSample, match="its path in the index is damaged"),
    ):
        list(loader)


def test_a_damaged_key_is_an_error_in_words_for_commands(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_in_text(images, 2)
    assert main(["ls", str(images), "--samples", "5"]) == 1
    assert capsys.readouterr().err == (
        f"error: {images}: the index is damaged in column 'key'\n\nhint: feedrate verify {images}\n"
    )
    with pytest.raises(PackError, match="the index is damaged in column 'key'"):
        split(images, {"train": 0.5, "rest": 0.5})


def test_verify_names_a_text_that_does_not_fit_its_checksum(images: Path) -> None:
    """Also where the checksum of the file is right, as only a liar would make it."""
    flip_in_text(images, 1)
    data = (images / "shard-00000.arrow").read_bytes()
    edit_manifest(images, lambda m: m["shards"][0]["index"].update(crc32c=f"{kernel.crc32c(data):08x}"))
    texts = [p.text for p in verify(images, workers=1).problems if p.file == "shard-00000.arrow"]
    assert "row 1 fails the checksum of its 'key'" in texts


def test_verify_tells_in_words_of_a_column_whose_name_is_no_text(images: Path) -> None:
    path = images / "shard-00000.arrow"
    data = path.read_bytes().replace(b"image.path.crc32c", b"image.path.crc32\xff")
    path.write_bytes(data)
    edit_manifest(images, lambda m: m["shards"][0]["index"].update(crc32c=f"{kernel.crc32c(data):08x}"))
    (problem, *_) = verify(images, workers=1).problems
    assert problem.text.startswith("is not an index part of this pack: 'utf-8'")


CHECKS = ("key.crc32c", "image.path.crc32c")


def test_an_index_without_these_checksums_is_read_beside_one_that_has_them(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=20_000, workers=1))
    right = read_keys(tmp_path / "p")

    def forget(document: dict) -> None:
        for name in CHECKS:
            del document["shards"][0]["index"]["columns"][name]

    edit_manifest(tmp_path / "p", forget)
    assert read_keys(tmp_path / "p") == right
    assert [k.decode() for k in list_keys_at_once(tmp_path / "p")] == right


def test_a_key_of_an_old_pack_that_is_no_text_any_more_is_an_error_in_words(tmp_path: Path) -> None:
    shutil.copytree(FROZEN, tmp_path / "p")
    path = tmp_path / "p" / "shard-00000.arrow"
    at = read_manifest(FROZEN).shards[0].index.columns["key"][1]
    data = bytearray(path.read_bytes())
    data[at] |= 0x80
    path.write_bytes(data)
    with pytest.raises(BadSample, match="the index is damaged there"):
        Dataset(tmp_path / "p", fields=("key",))[0]


def test_a_damaged_label_is_written_to_no_other_pack_and_given_to_no_sampler(
    images: Path,
) -> None:
    flip_byte(images / "shard-00000.arrow", read_manifest(images).shards[0].index.columns["label"][0])
    for read in (
        lambda: split(images, {"train": 0.5, "rest": 0.5}, SplitOptions(stratify="label")),
        lambda: Dataset(images).targets,
    ):
        with pytest.raises(PackError, match=r"shard-00000\.arrow is damaged: row 0 fails its checksum"):
            read()
