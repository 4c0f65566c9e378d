# SPDX-License-Identifier: Apache-2.0
"""Many byte strings in one stretch of memory are the same strings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate import kernel
from feedrate.format.index import ByteStrings, TextsBuilder

VALUES = st.lists(st.binary(max_size=12), max_size=30)


@given(values=VALUES, data=st.data())
def test_texts_come_back_whole_in_part_and_one_by_one(values: list[bytes], data: st.DataObject) -> None:
    texts = ByteStrings.of(values)
    assert list(texts) == values
    assert [texts[i] for i in range(len(values))] == values
    first = data.draw(st.integers(0, len(values)))
    last = data.draw(st.integers(0, len(values)))
    part = texts[first:last]
    assert list(part) == values[first:last]
    assert part.pack()[0] == b"".join(values[first:last])


@given(values=VALUES.filter(len), before=st.binary(max_size=5), data=st.data())
def test_texts_are_taken_in_any_order_with_something_in_front(
    values: list[bytes], before: bytes, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=40))
    part = ByteStrings.of([b"other", *values])[1:]
    taken = part.take(np.array(chosen, np.int64), before)
    assert list(taken) == [before + values[i] for i in chosen]


@given(values=VALUES.filter(len))
def test_the_first_by_alphabet_is_found(values: list[bytes]) -> None:
    assert ByteStrings.of(values).find_first() == values.index(min(values))


@given(pieces=st.lists(st.tuples(st.booleans(), VALUES), max_size=6))
def test_texts_that_come_one_by_one_and_many_at_a_time_keep_their_order(
    pieces: list[tuple[bool, list[bytes]]],
) -> None:
    builder = TextsBuilder()
    for is_together, values in pieces:
        if is_together:
            builder.extend(ByteStrings.of([b"other", *values])[1:])
        else:
            for value in values:
                builder.append(value)
    assert list(builder.finish()) == [value for _, values in pieces for value in values]


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (2, 2), (4, 0), (2**62, 2**62)])
def test_a_piece_that_is_not_there_is_refused(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="piece"):
        kernel.join_pieces(b"abc", np.array([start, 0]), np.array([length, 3 - length]))


@pytest.mark.parametrize("starts", [[], [0], [0, 4], [1, 3], [0, 2, 1, 3]])
def test_the_first_of_texts_that_are_not_there_is_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"text|starts"):
        kernel.find_first(b"abc", np.array(starts, np.int64))
