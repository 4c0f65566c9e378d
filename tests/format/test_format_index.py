# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import kernel
from feedrate.errors import PackError
from feedrate.format.fields import Field, Kind, row_dtype
from feedrate.format.index import Part, dump_part, fill_derived, locate_columns, parse_part
from support.examples import examples

FIELDS = (
    Field("image", Kind.IMAGE),
    Field("label", Kind.NUMBER, dtype="int64"),
    Field("weight", Kind.NUMBER, dtype="float64"),
    Field("mask", Kind.MASK),
    Field("caption", Kind.TEXT),
)
VARIABLE = [name for field in FIELDS for name in field.variable_columns()]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    count = draw(st.integers(0, 5))
    dtype = row_dtype(FIELDS)
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    rows = np.frombuffer(raw, dtype).copy()
    variable: dict[str, list[bytes]] = {"key": [b"key-%d" % i for i in range(count)]}
    for name in VARIABLE:
        variable[name] = [draw(st.binary(max_size=20)) for _ in range(count)]
    fill_derived(rows, variable)
    return Part(rows, variable, {"plan": draw(st.text(max_size=5))})


@given(parts())
@settings(max_examples=examples(50))
def test_part_comes_back_as_it_was_written(part: Part) -> None:
    again = parse_part(dump_part(FIELDS, part), FIELDS, name="part")
    # As bytes: NaN is not equal to itself.
    assert again.rows.tobytes() == part.rows.tobytes()
    assert again.variable == part.variable
    assert again.metadata == part.metadata


@given(parts())
@settings(max_examples=examples(30))
def test_columns_lie_where_the_manifest_will_say(part: Part) -> None:
    data = dump_part(FIELDS, part)
    positions = locate_columns(data)
    for name in ("number", "label", "image.offset", "check"):
        column = np.ascontiguousarray(part.rows[name]).tobytes()
        assert data[positions[name][0] :].startswith(column)
    joined = b"".join(part.variable["image.entries"])
    assert data[positions["image.entries"][1] :].startswith(joined)


@given(st.binary(max_size=300))
def test_any_bytes_as_part_end_in_a_pack_error(data: bytes) -> None:
    with pytest.raises(PackError, match="is not an index part"):
        parse_part(data, FIELDS, name="part")


@given(parts(), st.data())
@settings(max_examples=examples(100))
def test_part_with_a_changed_byte_is_read_or_refused_in_words(part: Part, data: Any) -> None:
    raw = bytearray(dump_part(FIELDS, part))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PackError):
        parse_part(bytes(raw), FIELDS, name="part")


@given(parts(), st.data())
@settings(max_examples=examples(50))
def test_part_that_is_cut_short_is_refused(part: Part, data: Any) -> None:
    raw = dump_part(FIELDS, part)
    with pytest.raises(PackError, match="is not an index part"):
        parse_part(raw[: data.draw(st.integers(0, len(raw) - 1))], FIELDS, name="part")


def test_part_of_other_fields_is_refused() -> None:
    rows = np.zeros(1, row_dtype(FIELDS[1:2]))
    data = dump_part(FIELDS[1:2], Part(rows, {"key": [b"k"]}, {}))
    with pytest.raises(PackError, match=r"image\.offset"):
        parse_part(data, FIELDS[:1], name="part")


def test_part_whose_column_has_another_type_is_refused() -> None:
    as_float = (Field("label", Kind.NUMBER, dtype="float64"),)
    data = dump_part(as_float, Part(np.zeros(1, row_dtype(as_float)), {"key": [b"k"]}, {}))
    with pytest.raises(PackError, match="column 'label' is double with 0 nulls, not int64"):
        parse_part(data, FIELDS[1:2], name="part")


def test_row_check_is_the_crc_of_the_row_without_its_last_four_bytes() -> None:
    rows = np.zeros(2, row_dtype(FIELDS))
    rows["number"] = [3, 4]
    raw = rows.tobytes()
    width = rows.dtype.itemsize
    expected = [kernel.crc32c(raw[: width - 4]), kernel.crc32c(raw[width : 2 * width - 4])]
    assert kernel.crc32c_rows(rows).tolist() == expected
