# SPDX-License-Identifier: Apache-2.0
"""Files that are damaged, cut short or hostile: a status or a sentence, never a crash, never other pixels."""

from __future__ import annotations

import platform
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import (
    SAMPLINGS,
    Store,
    by_pillow,
    decode_with_entries,
    encode,
    find_frame,
    make_jpeg,
)

from feedrate import kernel
from feedrate.kernel import Status
from support.examples import examples


def try_decode(data: bytes) -> np.ndarray | None:
    try:
        return kernel.decode_one(data)
    except ValueError:
        return None


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("restart", [0, 4])
def test_a_file_cut_anywhere_gives_the_whole_image_or_an_error(sampling: str, restart: int) -> None:
    data = make_jpeg(60, 44, sampling, restart_marker_blocks=restart)
    whole = kernel.decode_one(data)
    begin = find_frame(data, 0xDA)
    for end in [
        *range(0, begin + 20, 7),
        *range(begin + 20, len(data) - 8, 31),
        *range(len(data) - 8, len(data)),
    ]:
        scan, pixels = kernel.scan(data[:end]), try_decode(data[:end])
        assert scan.damaged == (scan.reason is not None)
        if pixels is not None:
            assert end >= len(data) - 3
            np.testing.assert_array_equal(pixels, whole)


def test_words_say_how_much_of_a_cut_file_is_there() -> None:
    data = make_jpeg(64, 64, "gray")
    begin = find_frame(data, 0xDA)
    scan = kernel.scan(data[: begin + (len(data) - begin) // 2])
    assert scan.damaged
    assert scan.reason is not None
    assert scan.reason.startswith("JPEG ends early: ")
    assert scan.reason.endswith("of 8 MCU rows are there")


@given(st.data())
@settings(max_examples=examples(300))
def test_changed_bytes_never_crash(data: st.DataObject) -> None:
    sampling = data.draw(st.sampled_from(SAMPLINGS))
    restart = data.draw(st.sampled_from([0, 3]))
    bytes_ = bytearray(make_jpeg(40, 36, sampling, restart_marker_blocks=restart))
    for _ in range(data.draw(st.integers(1, 8))):
        bytes_[data.draw(st.integers(2, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    scan = kernel.scan(bytes(bytes_))
    assert scan.damaged <= (scan.reason is not None)
    try_decode(bytes(bytes_))


def test_a_small_file_is_judged_alike_whether_its_tables_are_new_or_well_known() -> None:
    """The first time symbols are read one by one, and two at a time when the tables came often enough."""
    other = make_jpeg(60, 44, "4:2:0", seed=9, optimize=True)
    rng = np.random.default_rng(3)
    for sampling in SAMPLINGS:
        data = make_jpeg(60, 44, sampling, optimize=True)
        begin = find_frame(data, 0xDA)
        for number in range(60):
            spoilt = bytearray(data)
            if number:
                spoilt[int(rng.integers(begin + 14, len(data)))] = int(rng.integers(0, 256))
            assert kernel.scan(other).reason is None
            assert len({kernel.scan(bytes(spoilt)) for _ in range(12)}) == 1


@given(st.binary(max_size=400))
@settings(max_examples=examples(200))
def test_any_bytes_after_the_start_of_a_jpeg_end_in_words(tail: bytes) -> None:
    data = b"\xff\xd8\xff" + tail
    assert kernel.scan(data).reason
    assert try_decode(data) is None


@given(st.binary(max_size=300))
@settings(max_examples=examples(200))
def test_any_entropy_coded_bytes_are_survived(tail: bytes) -> None:
    data = make_jpeg(40, 36, "4:2:0")
    begin = find_frame(data, 0xDA)
    try_decode(data[: begin + 14] + tail)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"hello, this is text\n", bytes(100)])
def test_what_is_no_image_is_said_to_be_damaged(data: bytes) -> None:
    scan = kernel.scan(data)
    assert scan.damaged
    assert scan.reason
    with pytest.raises(ValueError, match=r"\w"):
        kernel.decode_one(data)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(("width", "height"), [(0, 8), (8, 0), (60_000, 60_000), (65_535, 65_535)])
def test_a_claimed_size_that_cannot_be_true_ends_in_words(width: int, height: int) -> None:
    data = make_jpeg(16, 16)
    data = patched(data, find_frame(data) + 5, struct.pack(">HH", height, width))
    assert kernel.scan(data).reason
    with pytest.raises(ValueError, match=r"\w"):
        kernel.decode_one(data, size=(8, 8))


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_missing_table_ends_in_words(marker: int) -> None:
    data = make_jpeg(16, 16, "gray")
    at = find_frame(data, marker)
    data = data[:at] + data[at + 2 + struct.unpack_from(">H", data, at + 2)[0] :]
    scan = kernel.scan(data)
    assert scan.damaged
    assert "missing" in (scan.reason or "")


def ones_in_the_middle(data: bytes) -> bytes:
    """Return the file with 64 one bits in it: no Huffman code is made of ones."""
    begin = find_frame(data, 0xDA)
    return patched(data, (begin + len(data)) // 2, b"\xff\x00" * 8)


def test_damage_that_pillow_decodes_is_counted_as_such(tmp_path) -> None:
    data = ones_in_the_middle(make_jpeg(120, 90, "4:4:4"))
    assert kernel.scan(data).damaged
    out, report = Store(tmp_path, [data]).decode([(0, 0, 120, 90)], size=(90, 120))
    assert report.statuses.tolist() == [Status.OK]
    assert report.pillow_reasons == {"damaged, decoded by Pillow": 1}
    np.testing.assert_array_equal(out[0], by_pillow(data))


def test_a_restart_marker_out_of_order_is_damage() -> None:
    data = make_jpeg(64, 64, "gray", restart_marker_blocks=8)
    at = data.index(b"\xff\xd2")
    scan = kernel.scan(patched(data, at, b"\xff\xd5"))
    assert scan.damaged
    assert "restart markers out of order" in (scan.reason or "")


# Reserved, JPG, DHP, EXP, JPG0 and JPG13 with a length; TEM, which has none, and which Pillow does not know.
@pytest.mark.parametrize("marker", [0x02, 0xBF, 0xC8, 0xDE, 0xDF, 0xF0, 0xFD, 0x01])
def test_a_marker_that_libjpeg_or_pillow_refuses_is_not_passed_over(marker: int) -> None:
    data = make_jpeg(40, 30)
    data = data[:2] + bytes([0xFF, marker]) + (b"" if marker == 0x01 else b"\0\4ab") + data[2:]
    with pytest.raises(OSError, match=r"\w"):
        by_pillow(data)
    assert kernel.scan(data).reason == "no JPEG marker where one must be, at byte 3"
    with pytest.raises(ValueError, match="no JPEG marker where one must be"):
        kernel.decode_one(data)


def test_conditions_of_arithmetic_coding_are_left_to_pillow() -> None:
    data = make_jpeg(40, 30)
    good, bad = (data[:2] + b"\xff\xcc\0\4" + table + data[2:] for table in (b"\x10\5", b"\x7f\5"))
    assert kernel.scan(good).reason == "arithmetic coding"
    np.testing.assert_array_equal(kernel.decode_one(good), by_pillow(data))
    assert kernel.scan(bad).damaged


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="libjpeg-turbo's code for other machines does not overflow alike"
)
@pytest.mark.parametrize("factor", [10, 50])
def test_a_coefficient_that_no_encoder_writes_is_decoded_as_pillow_does(factor: int) -> None:
    data = encode(np.full((8, 8), 255, np.uint8), quality=85)
    at = find_frame(data, 0xDB) + 5
    data = patched(data, at, bytes([data[at] * factor]))
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


def reseal(entries: bytes) -> bytes:
    """Return changed entries with the checksum that they need to pass as whole."""
    crc = kernel.crc32c(entries[12:], kernel.crc32c(entries[:8]))
    return entries[:8] + struct.pack("<I", crc) + entries[12:]


def bit_of(entries: bytes, number: int, field: int) -> int:
    """Return where a field of an entry begins, in bits; field 0 is the distance, then come the predictors."""
    widths = list(entries[12:16])
    return 8 * 22 + number * sum(widths) + sum(widths[:field])


def with_changed_bits(entries: bytes, at: int, bits: int) -> bytes:
    """Return the entries with `bits` bits from bit `at` on turned over."""
    changed = int.from_bytes(entries, "little") ^ (((1 << bits) - 1) << at)
    return reseal(changed.to_bytes(len(entries), "little"))


@pytest.fixture(scope="module")
def photo() -> tuple[bytes, bytes]:
    data = make_jpeg(200, 160, "4:4:4", quality=95)
    return data, kernel.scan(data).entries


def decode_whole(folder, data: bytes, entries: bytes) -> tuple[Status, str]:
    _, report = decode_with_entries(folder, data, entries, (0, 0, 200, 160))
    return Status(int(report.statuses[0])), report.reasons.get(0, "")


def test_entries_of_another_file_are_refused(tmp_path, photo) -> None:
    other = kernel.scan(make_jpeg(200, 160, "4:4:4", quality=95, seed=1)).entries
    status, words = decode_whole(tmp_path, photo[0], other)
    assert (status, words) == (
        Status.BAD_ENTRIES,
        "entry points belong to another file (its checksum differs)",
    )


@pytest.mark.parametrize(
    "data",
    [
        make_jpeg(40, 30, progressive=True),
        make_jpeg(40, 30).replace(b"\xff\xc0", b"junk\xff\xc0"),
        patched(make_jpeg(40, 30), find_frame(make_jpeg(40, 30)) + 5, struct.pack(">H", 3000)),
    ],
    ids=["progressive", "damaged headers", "larger than its data"],
)
def test_entries_of_another_file_are_refused_even_where_pillow_decodes(tmp_path, photo, data: bytes) -> None:
    assert kernel.decode_one(data).any()
    out, report = decode_with_entries(tmp_path, data, photo[1], (0, 0, 40, 30))
    assert report.statuses.tolist() == [Status.BAD_ENTRIES]
    assert not out.any()
    with pytest.raises(ValueError, match="entry points belong to another file"):
        kernel.decode_one(data, entries=photo[1])


def test_a_changed_byte_anywhere_in_the_entries_is_noticed(tmp_path, photo) -> None:
    data, entries = photo
    changed = [patched(entries, i, bytes([entries[i] ^ 0x10])) for i in range(0, len(entries), 5)]
    out, report = Store(tmp_path, [data] * len(changed), entries=changed).decode(
        [(0, 0, 200, 160)] * len(changed)
    )
    assert set(report.statuses.tolist()) == {Status.BAD_ENTRIES}
    assert not out.any()


def test_entries_of_the_wrong_length_are_refused(tmp_path, photo) -> None:
    data, entries = photo
    changed = [entries[:10], reseal(entries[:-1]), reseal(entries + b"\0"), reseal(entries[:22])]
    _, report = Store(tmp_path, [data] * 4, entries=changed).decode([(0, 0, 200, 160)] * 4)
    assert set(report.statuses.tolist()) == {Status.BAD_ENTRIES}


@pytest.mark.parametrize("field", [0, 1, 2, 3])
def test_an_entry_that_decoding_does_not_arrive_at_is_refused(tmp_path, photo, field: int) -> None:
    data, entries = photo
    changed = with_changed_bits(entries, bit_of(entries, 5, field), 1)
    status, words = decode_whole(tmp_path, data, changed)
    assert status == Status.BAD_ENTRIES
    assert "entry point" in words


def test_entries_that_stand_still_are_refused(tmp_path, photo) -> None:
    data, entries = photo
    width, at = entries[12], bit_of(entries, 3, 0)
    value = int.from_bytes(entries, "little") & (((1 << width) - 1) << at)
    still = reseal((int.from_bytes(entries, "little") ^ value).to_bytes(len(entries), "little"))
    status, words = decode_whole(tmp_path, data, still)
    assert (status, words) == (
        Status.BAD_ENTRIES,
        "entry point 3 lies outside the image data or before its predecessor",
    )


@pytest.mark.parametrize("at", [1, 2, 12, 13, 15])
def test_entries_with_senseless_numbers_are_refused(tmp_path, photo, at: int) -> None:
    data, entries = photo
    status, _ = decode_whole(tmp_path, data, reseal(patched(entries, at, b"\xff")))
    assert status == Status.BAD_ENTRIES


def test_entries_of_an_unknown_version_are_refused(tmp_path, photo) -> None:
    status, words = decode_whole(tmp_path, photo[0], reseal(b"\x02" + photo[1][1:]))
    assert (status, words) == (Status.BAD_ENTRIES, "entry points of version 2, this kernel reads version 1")
