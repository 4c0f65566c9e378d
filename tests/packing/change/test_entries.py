# SPDX-License-Identifier: Apache-2.0
"""How far apart entry points stand is chosen when a pack is made, or later; samples and order stay."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import (
    AppendOptions,
    Dataset,
    Loader,
    PackOptions,
    RandomResizedCrop,
    Recode,
    add_column,
    append,
    index,
    kernel,
    pack,
    set_entries,
    split,
    unpack,
    verify,
)
from feedrate.errors import AlreadyExists, PackError, SourceError, StorageError, UsageError
from feedrate.format.fields import find_entries, parse_entries
from feedrate.format.index import parse_part
from feedrate.format.manifest import parse_manifest, read_manifest
from feedrate.format.pack import Pack
from feedrate.packing.change import entries
from feedrate.packing.check.describe import describe
from feedrate.progress import Tick
from feedrate.scratch.commands import stage
from support.damage import without_digest
from support.images import read_tree, save_image
from support.sources import jpeg, write_tar

pytestmark = pytest.mark.usefixtures("no_fsync")

SMALL = PackOptions(workers=1, shard_bytes=80_000)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images large enough for several entry points per row; one of them is a PNG, and has none."""
    folder = tmp_path / "photos"
    for number in range(8):
        name = f"{number}.{'png' if number == 3 else 'jpg'}"
        options: dict[str, Any] = {} if number == 3 else {"quality": 98, "subsampling": 0}
        path = folder / ("cat" if number % 2 else "dog") / name
        save_image(path, number, width=301, height=97 + number, **options)
    return folder


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    pack(photos, tmp_path / "p", SMALL)
    return tmp_path / "p"


def read_entries(packed: Path) -> dict[str, bytes]:
    """Return the entry points of each sample by its key."""
    found: dict[str, bytes] = {}
    manifest = read_manifest(packed)
    for shard in manifest.shards:
        data = (packed / shard.index.folder / shard.index.name).read_bytes()
        part = parse_part(data, manifest.fields, name=shard.index.name)
        keys = [key.decode() for key in part.variable["key"]]
        found |= dict(zip(keys, part.variable["image.entries"], strict=True))
    return found


def expected_entries(photos: Path, distance: int) -> dict[str, bytes]:
    files = [path for path in photos.rglob("*") if path.is_file() and path.suffix in (".jpg", ".png")]
    return {
        str(path.relative_to(photos).with_suffix("")): kernel.scan(path.read_bytes(), distance).entries
        for path in files
    }


def pixels_of(packed: Path) -> dict[str, np.ndarray]:
    with Loader(
        packed, 4, fields=("key", "image"), image=RandomResizedCrop(64), output="numpy", threads=1
    ) as loader:
        return {key: image.copy() for keys, images in loader for key, image in zip(keys, images, strict=True)}


def shards_of(packed: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_tree(packed).items() if name.endswith(".tar")}


def distances_of(packed: Path) -> set[int]:
    return {shard.index.entries for shard in read_manifest(packed).shards}


def assert_same_pixels(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


@pytest.mark.parametrize(("value", "distance"), [("auto", 1000), ("gpu", 150), ("60", 60), (16, 16)])
def test_a_distance_is_a_word_or_a_number(value: str | int, distance: int) -> None:
    assert parse_entries(value) == distance


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "entries=7 is below 16: next to every block would get an entry point"),
        ("0", "entries=0 is below 16"),
        (-150, "entries=-150 is below 16"),
        (2_000_000, "entries=2000000 is above 1,000,000: every row of blocks has an entry point anyway"),
        ("dense", "entries='dense' is neither a word that is known nor a whole number"),
        ("1.5", "entries='1.5' is neither"),
        (True, "entries=True is neither"),
    ],
)
def test_a_bad_distance_gets_a_sentence(value: str | int, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        PackOptions(entries=value)
    assert caught.value.hint == "say auto (1,000), gpu (150), or a number of bytes from 16 to 1,000,000"


@pytest.mark.parametrize("said", [7, "gpu", 1.5, True, None, 2**70, [150]])
def test_what_nobody_could_have_asked_for_counts_as_not_said(said: object) -> None:
    assert find_entries({"entries": said}) == 1000


@pytest.mark.parametrize(
    "container",
    ["tar", "tfrecord"],
)
def test_a_pack_has_the_entry_points_that_were_asked_for(
    photos: Path, tmp_path: Path, container: str
) -> None:
    """A plain tar is written many files at a time, other containers file by file."""
    pack(photos, tmp_path / "p", PackOptions(workers=1, entries="gpu", container=container))
    assert read_entries(tmp_path / "p") == expected_entries(photos, 150)
    manifest = read_manifest(tmp_path / "p")
    assert manifest.settings["entries"] == 150
    assert distances_of(tmp_path / "p") == {150}
    assert verify(tmp_path / "p", workers=1).problems == ()


def test_an_hdf5_pack_has_them_too(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed")
    pack(photos, tmp_path / "p", PackOptions(workers=1, entries=60, container="hdf5", shard_bytes=80_000))
    assert read_entries(tmp_path / "p") == expected_entries(photos, 60)
    assert distances_of(tmp_path / "p") == {60}


def test_a_pack_that_nobody_asked_more_of_says_nothing_of_it(packed: Path, photos: Path) -> None:
    assert b"entries" not in (packed / "pack.json").read_bytes().replace(b'"image.entries"', b"")
    assert read_entries(packed) == expected_entries(photos, 1000)


def test_the_shards_are_the_same_at_any_distance(packed: Path, photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "dense", PackOptions(workers=1, shard_bytes=80_000, entries=16))
    assert shards_of(packed) == shards_of(tmp_path / "dense")
    assert_same_pixels(pixels_of(packed), pixels_of(tmp_path / "dense"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recode": Recode(raw=True)}, "with --raw rows of pixels have none"),
        ({"scan": False}, "with --no-scan there are none"),
    ],
)
def test_a_distance_where_there_are_no_entry_points_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PackOptions(entries="gpu", **options)


def test_an_unfinished_pack_does_not_go_on_at_another_distance(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("feedrate.packing.build.engine.run_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(photos, tmp_path / "p", SMALL)
    with pytest.raises(AlreadyExists, match="distance of entry points is 150 bytes here, 1000 bytes there"):
        pack(photos, tmp_path / "p", PackOptions(workers=1, shard_bytes=80_000, entries="gpu"))


def test_a_finished_pack_of_another_distance_is_refused_with_the_command_that_changes_it(
    packed: Path, photos: Path
) -> None:
    with pytest.raises(AlreadyExists, match="distance of entry points is 150 bytes here") as caught:
        pack(photos, packed, PackOptions(workers=1, shard_bytes=80_000, entries="gpu"))
    assert caught.value.hint == f"give it such entry points: feedrate index {packed} --entries 150"


def test_a_pack_gets_other_entry_points_and_no_shard_is_touched(packed: Path, photos: Path) -> None:
    before, pixels = read_tree(packed), pixels_of(packed)
    result = set_entries(packed, "gpu", workers=1)
    after = read_tree(packed)
    assert {name: after[name] for name in before if name != "pack.json"} == {
        name: data for name, data in before.items() if name != "pack.json"
    }
    assert read_entries(packed) == expected_entries(photos, 150)
    assert (distances_of(packed), read_manifest(packed).settings["entries"]) == ({150}, 150)
    assert (result.entries_before, result.changed_parts) == ((1000,), result.parts)
    assert result.index_bytes > result.index_bytes_before
    assert verify(packed, workers=1).problems == ()
    assert_same_pixels(pixels_of(packed), pixels)


def test_all_but_the_entry_points_of_the_index_stays_as_it_was(packed: Path) -> None:
    with contextlib.closing(Pack(packed)) as before:
        positions = np.arange(len(before))
        rows, keys = before.rows(positions)[0], before.texts("key", positions)
        paths = before.texts("image.path", positions)
    set_entries(packed, 60, workers=1)
    with contextlib.closing(Pack(packed)) as after:
        now, statuses = after.rows(positions)
        assert not statuses.any()
        for name in set(rows.dtype.names) - {"image.entries", "check"}:
            np.testing.assert_array_equal(now[name], rows[name])
        assert (after.texts("key", positions), after.texts("image.path", positions)) == (keys, paths)


def test_a_distance_that_is_there_already_changes_nothing(packed: Path) -> None:
    set_entries(packed, 60, workers=1)
    before = read_tree(packed)
    assert set_entries(packed, 60, workers=1).changed_parts == 0
    assert read_tree(packed) == before


def test_there_and_back_gives_the_index_that_was(packed: Path) -> None:
    before = [shard.index.crc32c for shard in read_manifest(packed).shards]
    set_entries(packed, 60, workers=1)
    set_entries(packed, "auto", workers=1)
    assert [shard.index.crc32c for shard in read_manifest(packed).shards] == before
    assert "entries" not in read_manifest(packed).settings


def test_who_has_the_pack_open_reads_on(packed: Path) -> None:
    """Also in parts that it opens only now."""
    expected = pixels_of(packed)
    with contextlib.closing(Pack(packed)) as opened:
        set_entries(packed, "gpu", workers=1)
        rows, statuses = opened.rows(np.arange(len(opened)))
        assert not statuses.any()
        files, _, points = opened.find_values("image", rows, np.arange(len(opened)), with_entries=True)
        _, _, statuses = kernel.read_ranges(files, points)
        assert not statuses.any()
    assert_same_pixels(pixels_of(packed), expected)


def test_replaced_parts_stay_until_they_are_asked_to_go(packed: Path) -> None:
    old = sorted(shard.index.name for shard in read_manifest(packed).shards)
    result = set_entries(packed, "gpu", workers=1)
    assert list(result.old_parts) == old == list(verify(packed, workers=1).extra_files)
    result = set_entries(packed, "gpu", remove_old=True, workers=1)
    assert (sorted(result.removed_parts), result.old_parts) == (old, ())
    assert verify(packed, workers=1).extra_files == ()


def test_a_replaced_part_that_is_open_stays(packed: Path) -> None:
    old = sorted(shard.index.name for shard in read_manifest(packed).shards)
    with open(packed / old[0], "rb"):
        result = set_entries(packed, "gpu", remove_old=True, workers=1)
    assert result.old_parts == (old[0],)
    assert sorted(result.removed_parts) == old[1:]


def test_files_of_the_user_are_no_old_parts(photos: Path, tmp_path: Path) -> None:
    made = tmp_path / "i"
    index(photos, made, workers=1)
    (made / "index-00007.arrow").write_bytes(b"mine")
    (made / ".reindexing").mkdir()
    (made / ".reindexing" / "mine").write_bytes(b"mine, too")
    result = set_entries(made, "gpu", remove_old=True, workers=1)
    assert result.removed_parts == ("index-00000.arrow",)
    assert (made / "index-00007.arrow").read_bytes() == b"mine"
    assert (made / ".reindexing" / "mine").read_bytes() == b"mine, too"


@pytest.fixture(params=["pack", "files", "ranges"])
def made(request: pytest.FixtureRequest, photos: Path, tmp_path: Path) -> Path:
    """A pack; an index of a folder; an index of a tar."""
    if request.param == "pack":
        pack(photos, tmp_path / "made", SMALL)
    elif request.param == "files":
        index(photos, tmp_path / "made", workers=1)
    else:
        names = {f"{n}.jpg": jpeg(n, width=300, height=200) for n in range(6)}
        write_tar(tmp_path / "x.tar", names)
        index(tmp_path / "x.tar", tmp_path / "made", workers=1)
    return tmp_path / "made"


def test_a_saved_state_goes_on_after_the_entry_points_changed(made: Path) -> None:
    def keys_of(batches: Iterator[Any]) -> list[str]:
        return [key for (keys,) in batches for key in keys]

    with Loader(made, 2, fields=("key",), output="numpy", threads=1) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = keys_of(batches)
    for distance in ("gpu", 60, "auto"):
        set_entries(made, distance, workers=1)
        with Loader(made, 2, fields=("key",), output="numpy", threads=1) as loader:
            loader.load_state_dict(state)
            assert keys_of(iter(loader)) == expected


def test_the_pixels_of_any_kind_of_pack_are_the_same(made: Path) -> None:
    before = pixels_of(made)
    set_entries(made, 16, workers=1)
    assert_same_pixels(pixels_of(made), before)
    assert verify(made, workers=1).problems == ()


def test_a_new_index_has_the_entry_points_that_were_asked_for(photos: Path, tmp_path: Path) -> None:
    index(photos, tmp_path / "i", entries="gpu", workers=1)
    assert read_entries(tmp_path / "i") == expected_entries(photos, 150)
    assert (read_manifest(tmp_path / "i").settings["entries"], distances_of(tmp_path / "i")) == (150, {150})


def test_a_pack_without_a_scan_gets_entry_points(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "p", PackOptions(workers=1, scan=False))
    set_entries(tmp_path / "p", "auto", workers=1)
    assert read_entries(tmp_path / "p") == expected_entries(photos, 1000)
    assert "scan" not in read_manifest(tmp_path / "p").settings


def test_what_is_appended_has_the_entry_points_of_the_pack(packed: Path, tmp_path: Path) -> None:
    set_entries(packed, 60, workers=1)
    save_image(tmp_path / "new" / "cat" / "new.jpg", 50, width=301, height=97, quality=98)
    append(tmp_path / "new", packed, AppendOptions(workers=1))
    assert distances_of(packed) == {60}
    assert read_entries(packed)["cat/new"] == expected_entries(tmp_path / "new", 60)["cat/new"]


def append_another(tmp_path: Path) -> Path:
    for name, distance in (("a", "auto"), ("b", "gpu")):
        save_image(tmp_path / name / "cat" / f"{name}.jpg", 1, width=301, height=97, quality=98)
        pack(tmp_path / name, tmp_path / f"{name}.pack", PackOptions(workers=1, entries=distance))
    append(tmp_path / "b.pack", tmp_path / "a.pack")
    return tmp_path / "a.pack"


def test_a_pack_that_is_appended_keeps_its_own_entry_points(tmp_path: Path) -> None:
    joined = append_another(tmp_path)
    expected = expected_entries(tmp_path / "a", 1000) | expected_entries(tmp_path / "b", 150)
    assert read_entries(joined) == expected
    assert describe(joined).entries == (150, 1000)
    assert verify(joined, workers=1).problems == ()


def test_a_pack_with_another_behind_it_gets_one_distance_and_the_other_keeps_its_own(tmp_path: Path) -> None:
    joined = append_another(tmp_path)
    before = read_tree(tmp_path / "b.pack")
    assert set_entries(joined, 60, workers=1).changed_parts == 2
    assert describe(joined).entries == (60,)
    assert read_tree(tmp_path / "b.pack") == before
    assert verify(joined, workers=1).problems == ()


def test_a_pack_stays_good_when_the_one_behind_it_gets_other_entry_points(tmp_path: Path) -> None:
    joined = append_another(tmp_path)
    set_entries(tmp_path / "b.pack", 60, workers=1)
    assert len(pixels_of(joined)) == 2
    assert describe(joined).entries == (150, 1000)


def test_a_part_that_was_removed_from_the_pack_behind_is_missed(tmp_path: Path) -> None:
    joined = append_another(tmp_path)
    set_entries(tmp_path / "b.pack", 60, remove_old=True, workers=1)
    with pytest.raises(PackError, match=r"refers to .*b\.pack.*another pack now"):
        Pack(joined)


def test_columns_and_splits_stay(packed: Path, tmp_path: Path) -> None:
    split(packed, {"a": 0.5, "b": 0.5})
    keys = Dataset(packed, fields=("key",))
    lines = [f"{keys[i]},{i}" for i in range(len(keys))]
    (tmp_path / "t.csv").write_text("\n".join(["key,age", *lines]) + "\n")
    add_column(packed, tmp_path / "t.csv")
    before = [Dataset(packed, fields=("key", "age", "split"))[i] for i in range(8)]
    set_entries(packed, "gpu", workers=1)
    assert [Dataset(packed, fields=("key", "age", "split"))[i] for i in range(8)] == before
    assert read_manifest(packed).settings["entries"] == 150
    assert verify(packed, workers=1).problems == ()


def test_a_split_that_comes_later_keeps_the_entry_points(packed: Path) -> None:
    set_entries(packed, "gpu", workers=1)
    split(packed, {"a": 0.5, "b": 0.5})
    assert (read_manifest(packed).settings["entries"], distances_of(packed)) == (150, {150})


def test_unpacking_gives_the_files_back(packed: Path, photos: Path, tmp_path: Path) -> None:
    set_entries(packed, 16, workers=1)
    unpack(packed, tmp_path / "out", workers=1)
    assert read_tree(tmp_path / "out") == read_tree(photos)


def test_a_copy_on_scratch_that_was_made_before_is_not_taken_for_it(packed: Path, scratch: Path) -> None:
    before = stage(packed, scratch)
    set_entries(packed, "gpu", workers=1)
    after = stage(packed, scratch)
    assert before.path != after.path
    assert (distances_of(Path(before.path)), distances_of(Path(after.path))) == ({1000}, {150})
    assert_same_pixels(pixels_of(Path(after.path)), pixels_of(packed))


def test_raw_pixels_have_no_entry_points(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=True)))
    before = read_tree(tmp_path / "p")
    with pytest.raises(SourceError, match="no images that could have entry points: it stores rows of pixels"):
        set_entries(tmp_path / "p", "gpu", workers=1)
    assert read_tree(tmp_path / "p") == before


def test_a_pack_behind_an_address_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="s3://bucket/p is not on this machine") as caught:
        set_entries("s3://bucket/p", "gpu")
    assert caught.value.hint == "change a copy, then bring that back: feedrate stage s3://bucket/p"


def test_damage_gets_no_entry_points_and_the_pack_stays_as_it_was(packed: Path) -> None:
    shard = packed / read_manifest(packed).shards[0].name
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(data)
    before = read_tree(packed)
    with pytest.raises(PackError, match=r"is not what was packed \(crc mismatch\)"):
        set_entries(packed, "gpu", workers=1)
    now = read_tree(packed)
    assert {name: now[name] for name in before} == before


def test_a_damaged_index_part_is_not_made_good(packed: Path) -> None:
    part = packed / read_manifest(packed).shards[0].index.name
    data = bytearray(part.read_bytes())
    data[-1000] ^= 1
    part.write_bytes(data)
    with pytest.raises(PackError, match=r"its bytes are not those that were packed \(checksum of the file\)"):
        set_entries(packed, "gpu", workers=1)


def test_an_interrupted_change_goes_on_where_it_stopped(
    packed: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, real = len(read_manifest(packed).shards), entries.make_part
    written: list[int] = []

    def write(task: entries.PartTask, most: int = 1) -> None:
        if len(written) == most:
            raise KeyboardInterrupt
        written.append(task.place)
        real(task)

    with monkeypatch.context() as patch:
        patch.setattr(entries, "make_part", write)
        with pytest.raises(KeyboardInterrupt):
            set_entries(packed, "gpu", workers=1)
    assert distances_of(packed) == {1000}
    monkeypatch.setattr(entries, "make_part", lambda task: write(task, parts))
    set_entries(packed, "gpu", workers=1)
    assert sorted(written) == list(range(parts))
    assert read_entries(packed) == expected_entries(photos, 150)
    assert not (packed / ".reindexing").exists()


def test_what_was_begun_for_another_distance_is_not_used(
    packed: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(entries, "_place_part", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            set_entries(packed, "gpu", workers=1)
    assert len(os.listdir(packed / ".reindexing")) == len(read_manifest(packed).shards)
    set_entries(packed, 60, workers=1)
    assert read_entries(packed) == expected_entries(photos, 60)
    assert not (packed / ".reindexing").exists()


def test_too_little_room_is_said_before_the_work(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_tree(packed)
    monkeypatch.setattr(entries, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"the new index needs about [\d.]+ KB, .*/p has 1.00 KB free"):
        set_entries(packed, "gpu", workers=1)
    assert read_tree(packed) == before
    assert not (packed / ".reindexing").exists()


def test_progress_counts_every_sample_and_the_bytes_of_its_images(photos: Path, tmp_path: Path) -> None:
    """Also where one file holds several parts, or a folder has no size."""
    index(photos, tmp_path / "i", workers=1)
    ticks: list[Tick] = []
    set_entries(tmp_path / "i", "gpu", workers=1, watch=ticks.append)
    size_bytes = sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())
    assert (ticks[-1].done, ticks[-1].total) == (8, 8)
    assert (ticks[-1].done_bytes, ticks[-1].total_bytes) == (size_bytes, size_bytes)


def test_the_identity_of_a_file_that_was_indexed_must_be_a_checksum(photos: Path, tmp_path: Path) -> None:
    index(photos, tmp_path / "i", workers=1)
    set_entries(tmp_path / "i", "gpu", workers=1)
    document = json.loads(without_digest((tmp_path / "i" / "pack.json").read_bytes()))
    assert len(document["shards"][0]["identity"]) == 8
    document["shards"][0]["identity"] = "none"
    with pytest.raises(PackError, match="is damaged: ValueError 'none' is not a checksum"):
        parse_manifest(json.dumps(document).encode())
