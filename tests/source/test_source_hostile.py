# SPDX-License-Identifier: Apache-2.0
"""Archives and record files that lie, lead astray or are broken: refused in a sentence that names what."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from feedrate.errors import SourceError
from feedrate.source.bytes import Bytes
from feedrate.source.opening import open_reader
from feedrate.source.record import ContainerValue, FileRange, Record, UnusableValue
from support.sources import (
    dump_example,
    jpeg,
    write_tar,
    write_tfrecord,
    write_zip,
)


def read_all(source: Path) -> list[bytes]:
    """Return the images of a source, read as packing does."""
    reader = open_reader(str(source), scratch=str(source.parent))
    records = [record for record in reader if isinstance(record, Record)]
    reader.fields()
    bytes_of = Bytes(reader.root, str(source.parent))
    values = [record.values["image"] for record in records]
    try:
        return [bytes_of.read(value) for value in values if isinstance(value, (FileRange, ContainerValue))]
    finally:
        bytes_of.close()


def refused(source: Path) -> str:
    with pytest.raises(SourceError) as caught:
        read_all(source)
    return str(caught.value)


NAMES = {
    "/etc/cron.d/x.jpg": "'/etc/cron.d/x.jpg' is an absolute path",
    "C:/x.jpg": "'C:/x.jpg' is an absolute path",
    "../../x.jpg": "'../../x.jpg' leads out of the folder",
    "a/../../x.jpg": "'a/../../x.jpg' leads out of the folder",
    "a\\..\\x.jpg": "has a backslash in it",
    "a\nb.jpg": "'a\\nb.jpg' holds control characters",
    "x" * 5000 + ".jpg": "is 5,004 bytes long; paths end at 4,096",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_astray_are_refused_in_a_tar(tmp_path: Path, name: str) -> None:
    for suffix, mode in ((".tar", "w"), (".tar.gz", "w:gz")):
        source = write_tar(tmp_path / f"d{suffix}", {"a.jpg": jpeg(0), name: jpeg(1)}, mode)
        assert NAMES[name] in refused(source)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_astray_are_refused_in_a_zip(tmp_path: Path, name: str) -> None:
    assert NAMES[name] in refused(write_zip(tmp_path / "d.zip", {"a.jpg": jpeg(0), name: jpeg(1)}))


def test_names_in_odd_encodings_are_refused(tmp_path: Path) -> None:
    text = "'caf\\xe9.jpg' is not UTF-8"
    source = write_zip(tmp_path / "d.zip", {"caf_.jpg": jpeg(0)})
    source.write_bytes(source.read_bytes().replace(b"caf_.jpg", b"caf\xe9.jpg"))
    assert text in refused(source)
    with tarfile.open(tmp_path / "d.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        info = tarfile.TarInfo("café.jpg")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    assert text in refused(tmp_path / "d.tar")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "is a symbolic link"), (tarfile.LNKTYPE, "is a hard link"),
        (tarfile.CHRTYPE, "is a device"), (tarfile.BLKTYPE, "is a device"), (tarfile.FIFOTYPE, "is a pipe"),
        (b"Z", "is a member of the unknown type 'Z'"),
    ],
)  # fmt: skip
def test_members_of_a_tar_that_are_no_plain_files_are_refused(
    tmp_path: Path, kind: bytes, words: str
) -> None:
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        info = tarfile.TarInfo("evil.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert f"'evil.jpg' {words}: refused" in refused(tmp_path / "d.tar")


def test_a_file_with_holes_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "d.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x.jpg")
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.realsize": "99999999999",
        }
        archive.addfile(info)
    assert "'x.jpg' is a file with holes" in refused(tmp_path / "d.tar")


def test_a_symbolic_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        info = zipfile.ZipInfo("x.jpg")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "'x.jpg' is a symbolic link: refused" in refused(tmp_path / "d.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for n in range(3):
            archive.writestr(f"{n // 2}.jpg", jpeg(n))
    assert "two members are called '0.jpg': refused" in refused(tmp_path / "d.zip")
    with tarfile.open(tmp_path / "d.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg", "./a.jpg"):
            tar.addfile(tarfile.TarInfo(name))
    assert "two members are called 'a.jpg': refused" in refused(tmp_path / "d.tar")


def test_samples_of_a_shard_that_come_apart_are_refused(tmp_path: Path) -> None:
    names = ["1.jpg", "1.cls", "2.jpg", "2.cls", "1.json"]
    source = write_tar(tmp_path / "d.tar", dict.fromkeys(names, b"1"))
    assert "members of '1' do not stand together: refused" in refused(source)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_that_lies_about_a_size_is_refused(tmp_path: Path, form: int) -> None:
    with tarfile.open(tmp_path / "d.tar", "w", format=form) as archive:
        info = tarfile.TarInfo("x.jpg")
        info.size = 2**40
        archive.fileobj.write(info.tobuf(form))  # type: ignore[union-attr]
    assert "'x.jpg' should have 1,099,511,627,776 bytes, and the tar ends after" in refused(
        tmp_path / "d.tar"
    )


def cut(path: Path, size_bytes: int) -> Path:
    path.write_bytes(path.read_bytes()[:size_bytes])
    return path


def test_a_tar_that_is_cut_short_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "w.tar", {f"{n}.jpg": jpeg(n) for n in range(3)}).read_bytes()
    last = whole.rstrip(b"\0")
    for size_bytes in [0, 1, 511, 512, 600, len(last) // 2, len(last) - 5, -(-len(last) // 512) * 512]:
        source = tmp_path / "d.tar"
        source.write_bytes(whole[:size_bytes])
        assert any(words in refused(source) for words in ("cut short", "is empty", "not a tar"))


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "d.tar", {f"{n}.jpg": jpeg(n) for n in range(3)})
    data = bytearray(source.read_bytes())
    at = data.find(b"2.jpg")
    data[at] ^= 1
    source.write_bytes(data)
    assert f"at byte {at:,} stands no tar header: it is damaged" in refused(source)


def test_tars_that_were_joined_are_refused(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "d.tar", {"a.jpg": jpeg(0)})
    source.write_bytes(source.read_bytes() * 2)
    assert "goes on behind its end" in refused(source)


def test_a_damaged_compressed_tar_is_refused(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "d.tar.gz", {f"{n}.jpg": jpeg(n) for n in range(5)}, "w:gz")
    cut(source, source.stat().st_size // 2)
    assert "cannot be decompressed" in refused(source)


@pytest.mark.parametrize("kind", ["w:gz", "w:bz2", "w:xz"])
def test_a_bomb_of_a_compressed_tar_is_refused_as_that_of_a_zip_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("feedrate.source.zip.BOMB_MEMBER_BYTES", 1_000_000)
    source = write_tar(tmp_path / f"d.tar.{kind[2:]}", {"x.jpg": bytes(10_000_000)}, kind)
    assert "'x.jpg' would unpack to 10.0 MB, " in refused(source)
    assert "times its size: refused as a zip bomb" in refused(source)


def test_a_bomb_in_the_middle_of_a_compressed_tar_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive as a whole shrinks no more than others do: one member does."""
    monkeypatch.setattr("feedrate.source.zip.BOMB_MEMBER_BYTES", 1_000_000)
    noise = {f"{n}.jpg": os.urandom(500_000) for n in range(2)}
    files = {"0.jpg": noise["0.jpg"], "x.jpg": bytes(60_000_000), "1.jpg": noise["1.jpg"]}
    source = write_tar(tmp_path / "d.tar.gz", files, "w:gz")
    assert "'x.jpg' would unpack to 60.0 MB, over 100 times its size: refused as a zip bomb" in refused(
        source
    )


def test_a_compressed_tar_that_is_a_bomb_as_a_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedrate.source.zip.BOMB_TOTAL_BYTES", 1_000_000)
    source = write_tar(tmp_path / "d.tar.gz", {f"{n}.jpg": bytes(500_000) for n in range(10)}, "w:gz")
    assert "times its size: refused as a zip bomb" in refused(source)
    assert "would unpack to more than" in refused(source)


def patch_zip(path: Path, offset: int, form: str, value: int, *, local: bool = False) -> Path:
    """Change a number in the last entry of a zip's directory, or in its own header."""
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\3\4" if local else b"PK\1\2")
    struct.pack_into(form, data, at + offset, value)
    path.write_bytes(data)
    return path


def test_a_zip_whose_member_contradicts_the_directory_is_refused(tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)}, compression)
        patch_zip(source, 22, "<I", 12345, local=True)
        assert "'x.jpg' has 12,345 bytes by its own header" in refused(source)
        source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)}, compression)
        source.write_bytes(source.read_bytes().replace(b"x.jpg", b"y.jpg", 1))
        assert "'x.jpg' is called 'y.jpg' in its own header" in refused(source)


def test_a_zip_that_lies_about_sizes_is_refused(tmp_path: Path) -> None:
    stored = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)}, zipfile.ZIP_STORED)
    assert "declares 9 bytes in" in refused(patch_zip(stored, 24, "<I", 9))
    deflated = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    assert "which cannot be: refused" in refused(patch_zip(deflated, 24, "<I", 2**31))
    beyond = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    assert "should lie where the zip's directory is" in refused(patch_zip(beyond, 20, "<I", 2**31))


def test_a_member_gives_what_it_declared_or_nothing(tmp_path: Path) -> None:
    for size_bytes, words in (
        (999_999, "999,999 bytes and gives more"),
        (1_000_001, "1,000,001 bytes and gives 1,0"),
    ):
        source = write_zip(tmp_path / "d.zip", {"x.jpg": bytes(1_000_000)})
        patch_zip(source, 24, "<I", size_bytes)
        patch_zip(source, 22, "<I", size_bytes, local=True)
        with pytest.raises(UnusableValue, match=words):
            read_all(source)


def test_a_wrong_checksum_in_a_zip_is_found(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    data = bytearray(source.read_bytes())
    for at in (data.find(b"PK\3\4") + 14, data.find(b"PK\1\2") + 16):
        data[at] ^= 1
    source.write_bytes(data)
    with pytest.raises(UnusableValue, match="wrong checksum"):
        read_all(source)


def test_zip_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedrate.source.zip.BOMB_MEMBER_BYTES", 1_000_000)
    source = write_zip(tmp_path / "d.zip", {"x.jpg": bytes(10_000_000)})
    assert "'x.jpg' would unpack to 10" in refused(source)
    assert "times its size: refused as a zip bomb" in refused(source)
    # Many entries that share one member's bytes.
    data = write_zip(tmp_path / "o.zip", {"x.jpg": jpeg(0)}, zipfile.ZIP_STORED).read_bytes()
    start = data.find(b"PK\1\2")
    entry, end = data[start : data.find(b"PK\5\6")], bytearray(data[data.find(b"PK\5\6") :])
    struct.pack_into("<HHI", end, 8, 50, 50, 50 * len(entry))
    source.write_bytes(data[:start] + entry * 50 + end)
    assert "its members overlap, as in a zip bomb: refused" in refused(source)


def test_zips_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    assert "'x.jpg' is encrypted" in refused(patch_zip(source, 8, "<H", 1))
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)}, zipfile.ZIP_LZMA)
    assert "'x.jpg' is compressed by LZMA; stored and deflated members can be read" in refused(source)
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    data = bytearray(source.read_bytes())
    struct.pack_into("<H", data, data.rfind(b"PK\5\6") + 4, 3)
    source.write_bytes(data)
    assert "is one part of a zip in several parts" in refused(source)
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    assert "has no directory at its end: it is cut short" in refused(cut(source, source.stat().st_size - 30))


def test_zip64_is_read(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "d.zip", "w") as archive,
        archive.open("x.jpg", "w", force_zip64=True) as member,
    ):
        member.write(jpeg(0))
    assert read_all(tmp_path / "d.zip") == [jpeg(0)]


def test_a_zip_behind_other_bytes_is_read(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "d.zip", {"x.jpg": jpeg(0)})
    source.write_bytes(b"#!/bin/sh\n" * 7 + source.read_bytes())
    assert read_all(source) == [jpeg(0)]


def tfrecord(tmp_path: Path) -> Path:
    records = [dump_example({"image": [jpeg(n)], "label": [n]}) for n in range(3)]
    return write_tfrecord(tmp_path / "d.tfrecord", records)


def test_record_files_that_are_cut_short_are_refused(tmp_path: Path) -> None:
    size_bytes = tfrecord(tmp_path).stat().st_size
    for left in (size_bytes - 5, size_bytes // 2, size_bytes // 3 + 3, 20):
        assert "cut short" in refused(cut(tfrecord(tmp_path), left))


def test_a_flipped_bit_in_a_tfrecord_is_found(tmp_path: Path) -> None:
    source = tfrecord(tmp_path)
    data = bytearray(source.read_bytes())
    data[100] ^= 1
    source.write_bytes(data)
    assert "at byte 0 a record with a wrong checksum: it is damaged" in refused(source)


def test_a_tfrecord_with_other_messages_is_refused(tmp_path: Path) -> None:
    sequence = dump_example({"a": [1]}) + b"\x12\x00"
    for record in (b"no protobuf at all", b"", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 100, sequence):
        source = write_tfrecord(tmp_path / "d.tfrecord", [record])
        assert "record 0 at byte 12 is not a tf.train.Example" in refused(source)


def test_huge_counts_in_an_example_are_refused(tmp_path: Path) -> None:
    for features in ({"x": [b""] * 100_001}, {f"{n}": [1] for n in range(10_001)}):
        source = write_tfrecord(tmp_path / "d.tfrecord", [dump_example(features)])
        assert "more than 10" in refused(source)


def test_a_gzip_bomb_of_a_tfrecord_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "d.tfrecord.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    assert "is not a TFRecord file" in refused(tmp_path / "d.tfrecord.gz")
