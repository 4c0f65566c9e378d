# SPDX-License-Identifier: Apache-2.0
"""Plain files go into shards many at a time, and the pack has the bytes that going one by one gives."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedrate import PackOptions, kernel, pack, verify
from feedrate.errors import AlreadyExists
from feedrate.format.containers.tar import member_header
from feedrate.format.fields import make_key
from feedrate.format.index import ByteStrings
from feedrate.format.pack import Pack
from feedrate.packing import workers
from feedrate.packing.build import engine, listing, plan, shard
from feedrate.packing.build.plan import ShardTask
from feedrate.packing.check import quality
from feedrate.packing.results import PackResult
from feedrate.packing.values import find_orientation, inspect_image
from support.examples import examples
from support.images import read_tree, save_image

SMALL = PackOptions(shard_bytes=100_000, workers=1)


def pack_both_ways(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> PackResult:
    """Pack as ever, then one by one; return the result when all bytes are the same."""
    result = pack(source, target / "many", SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(shard, "is_plain", lambda *_: False)
        slow = pack(source, target / "single", SMALL)
    assert read_tree(target / "many") == read_tree(target / "single")
    assert (result.samples, result.rejected, result.by_pillow) == (
        slow.samples,
        slow.rejected,
        slow.by_pillow,
    )
    return result


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the numbers of samples which went the short way are appended to."""
    counts: list[int] = []
    real = shard.Bulk._write

    def write(self: shard.Bulk, *arguments: object) -> shard.Written:
        written = real(self, *arguments)  # type: ignore[arg-type]
        counts.append(len(written.rows))
        return written

    monkeypatch.setattr(shard.Bulk, "_write", write)
    return counts


def test_images_of_all_kinds_make_the_same_pack_either_way(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: list[int]
) -> None:
    for n in range(70):
        save_image(jpeg_folder / "emu" / f"{n}.jpg", 100 + n, width=8 + n, height=40)
    for n, mode in enumerate(("L", "RGB", "RGBA", "LA", "P", "1", "I;16")):
        pixels = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
        pixels = pixels.convert("I").convert("I;16") if mode == "I;16" else pixels.convert(mode)
        pixels.save(jpeg_folder / "cat" / f"mode{n}.png")
    (jpeg_folder / "cat" / "bad.jpg").write_text("no image")
    (jpeg_folder / "cat" / "empty.png").write_bytes(b"")
    whole = (jpeg_folder / "cat" / "mode0.png").read_bytes()
    (jpeg_folder / "cat" / "half.png").write_bytes(whole[: len(whole) // 2])
    (jpeg_folder / "dog" / "named wrongly.png").write_bytes((jpeg_folder / "cat" / "0.jpg").read_bytes())
    (jpeg_folder / "dog" / "really-a-png.jpg").write_bytes(whole)
    (jpeg_folder / "dog" / "picture.jpg").write_bytes((jpeg_folder / "cat" / "1.jpg").read_bytes())
    result = pack_both_ways(jpeg_folder, tmp_path, monkeypatch)
    assert len(result.rejected) == 3
    assert sum(plain) > 80


def test_turned_and_gray_images_are_counted_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: list[int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "s").mkdir()
    for n in range(30):
        image = Image.fromarray(np.full((9, 9 + n), n, np.uint8))
        image.save(tmp_path / "s" / f"{n:02d}.jpg", **({"exif": exif.tobytes()} if n % 3 else {}))
    pack_both_ways(tmp_path / "s", tmp_path, monkeypatch)
    assert sum(plain) == 30


def test_names_that_need_escapes_make_the_same_pack_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: list[int]
) -> None:
    names = [b"with space.jpg", b"\xff.jpg", b"a.b.jpg", b"a_b.JPG", b"__x.jpg", b"x" * 200 + b".jpg",
             b"y" * 120 + b".jpg", b"plain.jpeg", b"(1)+2=3,@.jpg", b".jpg.jpg", b"dots..jpg"]  # fmt: skip
    root = os.fsencode(tmp_path / "s" / "class")
    os.makedirs(root)
    for n, name in enumerate(names):
        save_image(tmp_path / "made.jpg", n, width=8, height=8)
        os.rename(tmp_path / "made.jpg", os.path.join(root, name))
    pack_both_ways(tmp_path / "s", tmp_path, monkeypatch)
    assert 0 < sum(plain) < len(names)


@pytest.mark.parametrize(("progressive", "expected"), [(0, True), (1, True), (2, False)])
def test_shards_are_made_by_threads_when_next_to_all_samples_go_in_bulk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progressive: int, expected: bool
) -> None:
    for number in range(12):
        save_image(tmp_path / "source" / f"{number}.jpg", number, progressive=number < progressive)
    found: list[bool] = []

    def ask(task: ShardTask) -> bool:
        found.append(shard.goes_in_bulk(task))
        return True  # processes are not what this is about

    monkeypatch.setattr(engine, "goes_in_bulk", ask)
    monkeypatch.setattr(workers, "count_usable_cores", lambda: 2)
    monkeypatch.setattr(workers, "_WORTH_A_WORKER_BYTES", 1)
    monkeypatch.setattr(plan, "MOST_SAMPLES", 11)
    pack(tmp_path / "source", tmp_path / "target", PackOptions(seed=find_seed(progressive)))
    assert found == [expected]


def find_seed(progressive: int) -> int:
    """Return a seed that puts the first samples of twelve into a first shard of eleven."""
    return next(
        seed for seed in range(100) if set(range(progressive)) <= set(listing.order_samples(0, 11, 12, seed))
    )


def test_it_does_not_matter_how_many_images_are_counted_together(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(jpeg_folder, tmp_path / "many", SMALL)
    monkeypatch.setattr(quality, "_TOGETHER", 3)
    pack(jpeg_folder, tmp_path / "few", SMALL)
    assert read_tree(tmp_path / "few") == read_tree(tmp_path / "many")


def test_number_of_threads_does_not_change_a_byte(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "one", PackOptions(workers=1))
    pack(jpeg_folder, tmp_path / "four", PackOptions(workers=4))
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "four")


def make(
    folder: Path, paths: list[bytes], sizes: list[int], labels: list[int] | None = None
) -> kernel.Members:
    return kernel.make_members(
        os.fsencode(folder), *ByteStrings.of(paths).pack(), np.array(sizes, np.int64),
        None if labels is None else np.array(labels, np.int64), header=member_header("", 0),
    )  # fmt: skip


@given(
    stem=st.text("abcXYZ019_.-~+=,@()", min_size=1, max_size=90),
    label=st.integers(-(2**63), 2**63 - 1),
    side=st.integers(1, 40),
)
@settings(max_examples=examples(60))
def test_members_are_those_that_tarfile_makes(
    stem: str, label: int, side: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("members")
    path = f"{stem}.jpg"
    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, "JPEG")
    data = buffer.getvalue()
    (folder / path).write_bytes(data)
    made = make(folder, [path.encode()], [len(data)], [label])
    if made.facts["left"][0]:
        assert stem.startswith("__") or len(stem) > 90 or make_key(path.encode()).startswith("%5F")
        return
    key, number = make_key(path.encode()), str(label).encode()
    expected = member_header(f"{key}.jpg", len(data)) + data + bytes(-len(data) % 512)
    expected += member_header(f"{key}.cls", len(number)) + number + bytes(-len(number) % 512)
    assert made.keys.decode() == key
    assert made.buffer.tobytes() == expected
    assert made.facts["crc32c"][0] == kernel.crc32c(data)
    assert made.entries == kernel.scan(data).entries


@pytest.mark.parametrize("size", [0, 1, -1])
def test_file_of_another_size_than_listed_is_left(tmp_path: Path, size: int) -> None:
    save_image(tmp_path / "a.jpg", 1)
    there = (tmp_path / "a.jpg").stat().st_size
    assert make(tmp_path, [b"a.jpg"], [there + size]).facts["left"].tolist() == [int(size != 0)]


@pytest.mark.parametrize("path", [b"gone.jpg", b"folder.jpg", b"pipe.jpg", b"", b"x/../a.jpg", b"a"])
def test_what_is_no_plain_file_is_left(tmp_path: Path, path: bytes) -> None:
    save_image(tmp_path / "a.jpg", 1)
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    assert make(tmp_path, [path], [(tmp_path / "a.jpg").stat().st_size]).facts["left"].all()


def png(mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG", **options)
    return buffer.getvalue()


def is_left(folder: Path, data: bytes) -> bool:
    (folder / "a.png").write_bytes(data)
    return bool(make(folder, [b"a.png"], [len(data)]).facts["left"][0])


def test_png_that_is_damaged_anywhere_is_left_for_a_second_look(tmp_path: Path) -> None:
    data = png()
    assert not is_left(tmp_path, data)
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(data), 200).tolist():
        assert is_left(tmp_path, data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :])
        assert is_left(tmp_path, data[:at])


def test_png_that_nobody_could_decode_although_its_chunks_are_good_is_left(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    begin, end = b"\x89PNG\r\n\x1a\n", chunk(b"IEND", b"")
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 3, 0, 0, 0))
    for data in (
        begin + end,
        begin + header + end,
        begin + header + chunk(b"IDAT", b"x") + end,
        begin + header,
    ):
        assert is_left(tmp_path, data)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1"])
def test_kind_of_a_png_is_what_pillow_says(tmp_path: Path, mode: str) -> None:
    from feedrate.packing.check.quality import _PLAIN

    data = png(mode)
    (tmp_path / "a.png").write_bytes(data)
    made = make(tmp_path, [b"a.png"], [len(data)])
    facts = inspect_image(data)
    assert _PLAIN[int(made.facts["kind"][0])] == (facts.format, facts.mode)
    assert (made.facts["width"][0], made.facts["height"][0]) == (facts.width, facts.height)


def test_words_for_a_png_are_the_kernels() -> None:
    assert kernel.scan(png()).reason == shard.NOT_JPEG


@given(st.lists(st.binary(min_size=1, max_size=30).filter(lambda b: b"\0" not in b), max_size=5))
def test_paths_of_the_same_stem_have_the_same_hash(paths: list[bytes]) -> None:
    from feedrate.format.fields import make_stem

    def hashes(names: list[bytes]) -> list[int]:
        starts = np.cumsum([0, *map(len, names)], dtype=np.int64)
        return kernel.hash_stems(b"".join(names), starts).tolist()

    assert hashes(paths) == hashes([make_stem(path) for path in paths])


def test_without_a_scan_there_are_no_entry_points_and_the_same_pixels(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    import feedrate

    pack(jpeg_folder, tmp_path / "scanned", SMALL)
    result = pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=100_000, workers=1, scan=False))
    assert (result.samples, result.by_kernel) == (16, 14)
    assert Pack(tmp_path / "p").column("image.entries").max() == 0
    assert verify(tmp_path / "p", workers=1).problems == ()
    batches = [
        next(
            iter(
                feedrate.Loader(tmp_path / name, batch_size=16, image=feedrate.CenterCrop(24), shuffle=False)
            )
        )
        for name in ("scanned", "p")
    ]
    assert np.array_equal(np.asarray(batches[0][0]), np.asarray(batches[1][0]))


def test_without_a_scan_damage_is_not_looked_for(jpeg_folder: Path, tmp_path: Path) -> None:
    whole = (jpeg_folder / "cat" / "0.jpg").read_bytes()
    (jpeg_folder / "cat" / "odd name.jpg").write_bytes(whole[:-200] + bytes(100) + whole[-100:])
    (jpeg_folder / "cat" / "text.jpg").write_text("no image")
    result = pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1, scan=False))
    assert [r.path for r in result.rejected] == ["cat/text.jpg"]
    assert result.samples == 17


def test_unfinished_pack_with_a_scan_is_not_gone_on_with_without_one(
    jpeg_folder: Path, tmp_path: Path
) -> None:
    pack(jpeg_folder, tmp_path / "p", SMALL)
    with pytest.raises(AlreadyExists, match="scan is False here, not set there"):
        pack(jpeg_folder, tmp_path / "p", PackOptions(shard_bytes=100_000, scan=False))


def add_segments(image: bytes, segments: list[bytes]) -> bytes:
    return image[:2] + b"".join(segments) + image[2:]


@given(data=st.data())
@settings(max_examples=examples(60))
def test_wherever_exif_is_found_the_headers_said_to_look(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Fill bytes between segments, EXIF in other segments, markers that stand alone: all of it can be."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    inside = st.sampled_from([exif, exif[4:], b"", b"x", b"\xff\xe1\0\x2a" + exif])
    markers = st.sampled_from([b"\xff\xe1", b"\xff\xe2", b"\xff\xfe", b"\xff\xff\xe1", b"\xff\xd0\xff\xe1"])
    made = st.builds(lambda marker, body: marker + (len(body) + 2).to_bytes(2, "big") + body, markers, inside)
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "JPEG")
    image = add_segments(out.getvalue(), data.draw(st.lists(made, max_size=4)))
    folder = tmp_path_factory.mktemp("exif")
    (folder / "a.jpg").write_bytes(image)
    members = make(folder, [b"a.jpg"], [len(image)])
    if find_orientation(image) != 1 and not members.facts["left"][0]:
        assert members.facts["has_exif"][0]


def test_a_large_folder_is_listed_in_order_with_every_size(tmp_path: Path) -> None:
    sizes = {f"{n:05d}.jpg".encode(): n % 7 for n in range(3000)}
    for name, size in sizes.items():
        (tmp_path / os.fsdecode(name)).write_bytes(bytes(size))
    found = kernel.list_folder(os.fsencode(tmp_path), [".jpg"])
    assert list(ByteStrings(found.names, found.starts)) == sorted(sizes)
    assert found.sizes.tolist() == [sizes[name] for name in sorted(sizes)]
    assert set(found.kinds.tolist()) == {kernel.Entry.WANTED}
