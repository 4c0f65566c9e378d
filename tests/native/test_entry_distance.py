# SPDX-License-Identifier: Apache-2.0
"""Entry points may stand as close together as somebody likes: the pixels are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import SAMPLINGS, make_jpeg

from feedrate import kernel
from feedrate.format.fields import AUTO, GPU, LEAST, MOST
from support.examples import examples

SIDES = st.integers(1, 140)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.sampled_from(SAMPLINGS), SIDES, SIDES, st.sampled_from((0, 1, 3, 7)),
    st.integers(LEAST, 400) | st.integers(1, MOST), st.integers(30, 98), st.data(),
)  # fmt: skip
def test_pixels_are_the_same_at_any_distance(
    sampling: str, width: int, height: int, restart: int, distance: int, quality: int, data: st.DataObject
) -> None:
    file = make_jpeg(width, height, sampling, restart_marker_blocks=restart, quality=quality)
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (left, top, data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height)))
    found = kernel.scan(file, distance)
    assert found.reason is None
    np.testing.assert_array_equal(
        kernel.decode_one(file, box=box, entries=found.entries), kernel.decode_one(file, box=box)
    )


def count_entries(entries: bytes, width: int, height: int) -> int:
    """Of a gray image, whose blocks are 8 x 8."""
    step = int.from_bytes(entries[2:4], "little")
    across, down = -(-width // 8), -(-height // 8)
    return -(-across // step) * down


@pytest.mark.parametrize("distance", [400, GPU, 60])
def test_entry_points_stand_about_as_far_apart_as_was_asked_for(distance: int) -> None:
    file = make_jpeg(800, 600, "gray", quality=95)
    number = count_entries(kernel.scan(file, distance).entries, 800, 600)
    assert 0.7 < len(file) / number / distance < 1.4


def test_nearly_every_block_has_one_at_the_least_distance_and_every_row_at_the_greatest() -> None:
    file = make_jpeg(160, 80, "gray", quality=98)
    assert count_entries(kernel.scan(file, LEAST).entries, 160, 80) == 20 * 10
    assert count_entries(kernel.scan(file, MOST).entries, 160, 80) == 10


def test_the_distance_of_old_packs_is_the_one_that_nobody_asks_for() -> None:
    file = make_jpeg(700, 500, quality=95)
    assert kernel.BYTES_PER_ENTRY == AUTO
    assert kernel.scan(file).entries == kernel.scan(file, AUTO).entries != kernel.scan(file, GPU).entries


@pytest.mark.parametrize("damaged_byte", [2, 13, 40, -1])
def test_damage_to_close_entry_points_is_no_pixel(damaged_byte: int) -> None:
    file = make_jpeg(200, 160, quality=95)
    entries = bytearray(kernel.scan(file, 60).entries)
    entries[damaged_byte] ^= 1
    with pytest.raises(ValueError, match="entry points are damaged"):
        kernel.decode_one(file, entries=bytes(entries))


def test_a_distance_below_one_byte_is_refused_before_the_file_is_looked_at() -> None:
    with pytest.raises(ValueError, match="bytes_per_entry must be at least 1"):
        kernel.scan(b"", 0)
