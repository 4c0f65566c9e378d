# SPDX-License-Identifier: Apache-2.0
"""What packing finds out about a dataset: every oddity made by hand, and counted exactly."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feedrate import FieldSpec, PackOptions, Recode, index, pack, verify
from feedrate.errors import NotFound, PackError, StorageError
from feedrate.format.pack import Pack
from feedrate.packing.check import quality_report
from feedrate.packing.check.quality import QualityTally, merge
from feedrate.packing.check.quality_report import read_quality
from feedrate.packing.results import Duplicates, Quality
from feedrate.packing.values import ImageFacts, unusable
from support.images import read_tree, save_image

ONE = PackOptions(workers=1)


def rotated(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    """Twelve good images, and at least one of everything that can be odd."""
    root = tmp_path / "photos"
    for number in range(12):
        save_image(root / "cat" / f"{number:02}.jpg", number)
    good = (root / "cat" / "00.jpg").read_bytes()
    dog = root / "dog"
    dog.mkdir()
    (dog / "empty.jpg").write_bytes(b"")
    (dog / "cut.jpg").write_bytes(good[: len(good) // 2])
    (dog / "cut.png").write_bytes(save_image(tmp_path / "x.png", 1).read_bytes()[:300])
    (dog / "page.jpg").write_bytes(b"<html>not found</html>")
    (dog / "same.jpg").write_bytes(good)
    (root / "cat" / "twin.jpg").write_bytes((root / "cat" / "01.jpg").read_bytes())
    save_image(tmp_path / "y.png", 50).rename(dog / "really_png.jpg")
    save_image(dog / "rotated.jpg", 51, exif=rotated(6))
    save_image(dog / "mirrored.jpg", 52, exif=rotated(2))
    save_image(dog / "cmyk.jpg", 53, mode="CMYK")
    save_image(dog / "gray.jpg", 54, mode="L")
    save_image(dog / "progressive.jpg", 55, progressive=True)
    save_image(dog / "alpha.png", 56, mode="RGBA")
    save_image(dog / "huge.png", 57, width=900, height=700)
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20)).save(dog / "deep.png")
    frames = [Image.new("RGB", (30, 20), (n * 50, 0, 0)) for n in range(3)]
    frames[0].save(dog / "moving.gif", save_all=True, append_images=frames[1:])
    return root


def done(quality: Quality) -> dict[str, dict[str, int]]:
    return {oddity.code: dict(oddity.done) for oddity in quality.oddities}


def names(quality: Quality, code: str) -> set[str]:
    return {e.path for oddity in quality.oddities if oddity.code == code for e in oddity.examples}


def test_every_oddity_is_counted_and_named(odd_folder: Path, tmp_path: Path) -> None:
    quality = pack(odd_folder, tmp_path / "p", ONE).quality
    assert quality is not None
    assert done(quality) == {
        "empty": {"rejected": 1}, "truncated": {"rejected": 2}, "corrupt": {"rejected": 1},
        "duplicate": {"kept": 2}, "wrong-suffix": {"kept": 1}, "rotated": {"kept": 2}, "slow": {"kept": 1},
        "deep": {"kept": 1}, "animated": {"kept": 1}, "cmyk": {"kept": 1}, "alpha": {"kept": 1},
        "progressive": {"kept": 1}, "gray": {"kept": 1},
    }  # fmt: skip
    assert names(quality, "empty") == {"dog/empty.jpg"}
    assert names(quality, "truncated") == {"dog/cut.jpg", "dog/cut.png"}
    assert names(quality, "corrupt") == {"dog/page.jpg"}
    assert names(quality, "wrong-suffix") == {"dog/really_png.jpg"}
    assert names(quality, "rotated") == {"dog/rotated.jpg", "dog/mirrored.jpg"}
    assert names(quality, "slow") == {"dog/huge.png"}
    assert names(quality, "deep") == {"dog/deep.png"}
    assert names(quality, "animated") == {"dog/moving.gif"}
    assert (quality.samples, quality.rejected) == (24, 4)


def test_formats_sizes_and_classes_are_counted(odd_folder: Path, tmp_path: Path) -> None:
    quality = pack(odd_folder, tmp_path / "p", ONE).quality
    assert quality is not None
    assert {one.name: one.images for one in quality.formats} == {
        "JPEG": 17, "PNG": 4, "CMYK JPEG": 1, "progressive JPEG": 1, "GIF": 1
    }  # fmt: skip
    jpegs = sum(
        path.stat().st_size for path in odd_folder.rglob("*.jpg")
        if path.stem not in ("cmyk", "progressive", "really_png", "empty", "cut", "page")
    )  # fmt: skip
    assert quality.formats[0].size_bytes == jpegs
    assert quality.short_sides == {
        "below 32": 2, "32 to 63": 21, "64 to 127": 0, "128 to 223": 0, "224 to 255": 0, "256 to 383": 0,
        "384 to 511": 0, "512 to 767": 1,
    }  # fmt: skip
    assert sum(quality.long_sides.values()) == 24
    assert quality.smallest is not None
    assert quality.largest is not None
    assert (quality.smallest.path, quality.smallest.width) == ("dog/deep.png", 20)
    assert (quality.largest.path, quality.largest.width, quality.largest.height) == ("dog/huge.png", 900, 700)
    assert [(one.name, one.samples) for one in quality.classes] == [("cat", 13), ("dog", 11)]
    assert quality.imbalance == pytest.approx(13 / 11)


def test_duplicates_tell_copies_from_copies_with_another_label(odd_folder: Path, tmp_path: Path) -> None:
    quality = pack(odd_folder, tmp_path / "p", ONE).quality
    assert quality is not None
    sizes = [(odd_folder / "cat" / name).stat().st_size for name in ("00.jpg", "01.jpg")]
    assert quality.duplicates == Duplicates(groups=2, copies=2, size_bytes=sum(sizes), conflicting=1)
    details = {e.path: e.detail for o in quality.oddities if o.code == "duplicate" for e in o.examples}
    assert sorted(detail.endswith(", and another label") for detail in details.values()) == [False, True]
    assert {path.partition("/")[2] for path in details} <= {"same.jpg", "00.jpg", "twin.jpg", "01.jpg"}


def test_what_was_normalised_is_said_so(odd_folder: Path, tmp_path: Path) -> None:
    options = PackOptions(workers=1, recode=Recode(normalise=True))
    quality = pack(odd_folder, tmp_path / "p", options).quality
    assert quality is not None
    found = done(quality)
    for code, count in (("rotated", 2), ("cmyk", 1), ("alpha", 1), ("progressive", 1), ("animated", 1)):
        assert found[code] == {"normalised": count}
    assert found["deep"] == found["gray"] == {"kept": 1}
    assert found["empty"] == {"rejected": 1}


def test_the_report_lies_beside_the_pack_and_is_read_again(odd_folder: Path, tmp_path: Path) -> None:
    result = pack(odd_folder, tmp_path / "p", ONE)
    assert read_quality(tmp_path / "p") == result.quality
    assert (tmp_path / "p" / "quality.json").stat().st_size < 8000
    assert verify(tmp_path / "p").extra_files == ()


def test_the_report_does_not_depend_on_shards_and_workers(odd_folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        pack(odd_folder, tmp_path / f"p{workers}", PackOptions(workers=workers, shard_bytes=20_000))
    assert read_tree(tmp_path / "p1") == read_tree(tmp_path / "p2")
    pack(odd_folder, tmp_path / "whole", ONE)
    many, whole = read_quality(tmp_path / "p1"), read_quality(tmp_path / "whole")
    assert done(many) == done(whole)
    assert (many.formats, many.classes, many.short_sides) == (whole.formats, whole.classes, whole.short_sides)
    assert (many.smallest, many.largest, many.duplicates) == (whole.smallest, whole.largest, whole.duplicates)


def test_duplicates_are_found_with_any_number_of_buckets(
    odd_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(odd_folder, tmp_path / "p", PackOptions(workers=1, shard_bytes=20_000))
    opened = Pack(tmp_path / "p")
    whole = quality_report.find_duplicates(opened, "image", tmp_path)
    monkeypatch.setattr(quality_report, "_BUCKET_SAMPLES", 3)
    found, examples = quality_report.find_duplicates(opened, "image", tmp_path)
    assert found == whole[0]
    assert set(examples) == set(whole[1])
    opened.close()


def test_equal_checksums_of_other_bytes_are_no_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        path = tmp_path / "photos" / f"{number}.npy.png"
        save_image(path, number)
    pack(tmp_path / "photos", tmp_path / "p", PackOptions(workers=1, recode=Recode(raw=True)))
    opened = Pack(tmp_path / "p")
    columns = opened.columns
    monkeypatch.setattr(
        opened, "columns", lambda name: (c * 0 if name.endswith("crc32c") else c for c in columns(name))
    )
    assert quality_report.find_duplicates(opened, "image", tmp_path)[0] == Duplicates()
    opened.close()


def test_arrays_and_numeric_labels_are_examined_too(tmp_path: Path) -> None:
    root = tmp_path / "sounds"
    root.mkdir()
    save_image(root / "a.png", 1)
    shutil.copy(root / "a.png", root / "b.png")
    (root / "labels.csv").write_text("path,label,text\na.png,7,x\nb.png,9,\nnothere.png,9,x\nb.png,,x\n")
    options = PackOptions(labels=root / "labels.csv", workers=1, fields=(FieldSpec.parse("text:text"),))
    quality = pack(root, tmp_path / "p", options).quality
    assert quality is not None
    assert [(one.name, one.samples) for one in quality.classes] == [("7", 1), ("9", 1)]
    assert quality.duplicates.conflicting == 1
    assert done(quality)["missing"] == {"rejected": 1}
    assert done(quality)["incomplete"] == {"rejected": 1}


def test_a_pack_without_a_report_and_a_damaged_one_get_a_sentence(odd_folder: Path, tmp_path: Path) -> None:
    pack(odd_folder, tmp_path / "p", ONE)
    path = tmp_path / "p" / "quality.json"
    path.write_text(path.read_text().replace('"samples"', '"specimens"', 1))
    with pytest.raises(PackError, match=r"quality\.json is damaged: it is not what packing wrote"):
        read_quality(tmp_path / "p")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 9}))
    with pytest.raises(PackError, match="has version 9; this feedrate reads version 1"):
        read_quality(tmp_path / "p")
    path.unlink()
    with pytest.raises(NotFound, match=r"has no quality\.json: it was made without one"):
        read_quality(tmp_path / "p")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("JPEG ends early: 3 of 9 MCU rows are there", "truncated"),
        ("not a JPEG (PNG); image file is truncated", "truncated"),
        ("invalid Huffman code in MCU row 3 of 9", "corrupt"),
    ],
)
def test_what_decoders_say_of_damage_has_a_code(reason: str, code: str) -> None:
    assert unusable(reason).code == code


def test_each_rejection_carries_its_code(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for number, name in enumerate(("a.png", "c.png")):
        save_image(root / name, number)
    (root / "empty.png").touch()
    (root / "labels.csv").write_text(
        "path,label\na.png,1\na.png,1\nnothere.png,1\nempty.png,1\n../b.png,1\nc.png,\n"
    )
    result = pack(root, tmp_path / "p", PackOptions(labels=root / "labels.csv", workers=1))
    codes = {one.path: one.code for one in result.rejected}
    assert codes == {
        "a.png": "named-twice", "nothere.png": "missing", "empty.png": "empty", "../b.png": "outside",
        "c.png": "incomplete",
    }  # fmt: skip
    lines = (tmp_path / "p" / "rejected.jsonl").read_text().splitlines()
    assert {one["path"]: one["code"] for one in map(json.loads, lines)} == codes


def test_an_index_has_no_report_and_says_so(tmp_path: Path) -> None:
    save_image(tmp_path / "photos" / "a" / "0.jpg", 0)
    index(tmp_path / "photos", tmp_path / "index")
    with pytest.raises(NotFound, match="is an index, and only packing looks at the quality"):
        read_quality(tmp_path / "index")


FACTS = st.builds(
    ImageFacts, st.integers(1, 5000), st.integers(1, 5000), st.just(b""), st.just(None), st.just(None),
    st.booleans(), orientation=st.integers(1, 8),
)  # fmt: skip


@given(st.lists(st.tuples(FACTS, st.integers(1, 10**6), st.integers(0, 3)), max_size=30))
def test_tallies_of_parts_add_up_to_the_tally_of_the_whole(
    images: list[tuple[ImageFacts, int, int]],
) -> None:
    whole, parts = QualityTally(), [QualityTally() for _ in range(4)]
    for number, (facts, size_bytes, part) in enumerate(images):
        path = b"%03d.jpg" % number
        for tally in (whole, parts[part]):
            tally.add_image(path, size_bytes, facts, done="kept", turned=False)
            tally.add_cost(path, facts, size_bytes)
    merged = merge([json.loads(json.dumps(part.dump())) for part in parts])
    assert merged.formats == whole.formats
    assert (merged.short_sides, merged.long_sides) == (whole.short_sides, whole.long_sides)
    assert (merged.costs, merged.slowest) == (whole.costs, whole.slowest)
    assert {n: w * h for n, (_, w, h) in merged.extremes.items()} == {
        n: w * h for n, (_, w, h) in whole.extremes.items()
    }
    assert {c: f["done"] for c, f in merged.odd.items()} == {c: f["done"] for c, f in whole.odd.items()}


@pytest.mark.parametrize("container", ["tar", "tfrecord", "hdf5"])
def test_the_report_is_the_same_in_every_container(odd_folder: Path, tmp_path: Path, container: str) -> None:
    if container == "hdf5":
        pytest.importorskip("h5py")
    pack(odd_folder, tmp_path / "plain", PackOptions(workers=1, shard_bytes=20_000))
    options = PackOptions(workers=1, shard_bytes=20_000, container=container)
    pack(odd_folder, tmp_path / "p", options)
    assert done(read_quality(tmp_path / "p")) == done(read_quality(tmp_path / "plain"))
    assert read_quality(tmp_path / "p").duplicates == read_quality(tmp_path / "plain").duplicates


def test_memory_for_duplicates_does_not_grow_with_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_report, "_BUCKET_SAMPLES", 10_000)

    class Columns:
        """As much of a pack as is asked when no two samples are equal."""

        def __init__(self, shards: int) -> None:
            self.shards = shards
            self.manifest = self

        def __len__(self) -> int:
            return 1000 * self.shards

        def field(self, _: str) -> None:
            return None

        def columns(self, name: str) -> Iterator[np.ndarray]:
            for shard in range(self.shards):
                numbers = np.arange(1000, dtype=np.uint64) + 1000 * shard
                yield (numbers * 2654435761 % 2**32).astype(np.uint32) if "crc" in name else numbers + 1

    peaks = []
    for shards in (10, 400):
        tracemalloc.start()
        found, _ = quality_report.find_duplicates(Columns(shards), "image", tmp_path)  # type: ignore[arg-type]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found == Duplicates()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_pack_that_lacks_only_its_report_is_unfinished_and_goes_on(
    odd_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(odd_folder, tmp_path / "undisturbed", ONE)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(quality_report, "_BUCKET_SAMPLES", 3)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(StorageError, match="the disk is full"):
        pack(odd_folder, tmp_path / "p", ONE)
    assert (tmp_path / "p" / "packing.json").exists()
    monkeypatch.undo()
    assert pack(odd_folder, tmp_path / "p", ONE).resumed_shards == 1
    assert read_tree(tmp_path / "p") == read_tree(tmp_path / "undisturbed")
