# SPDX-License-Identifier: Apache-2.0
"""The made photographs: equal by seed, and as heavy to decode as real ones."""

from __future__ import annotations

import hashlib
import io
from collections import Counter

import pytest
from PIL import Image

from feedrate.errors import UsageError
from feedrate.lab.photographs import CLASSES, make_photograph, make_photographs


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [photograph.jpeg for photograph in make_photographs(200, seed=3)]


def test_equal_seeds_give_equal_bytes() -> None:
    assert make_photograph(17, seed=5) == make_photograph(17, seed=5)


def test_a_photograph_depends_on_its_number_and_not_on_how_many_are_made() -> None:
    assert [p.jpeg for p in make_photographs(3, seed=1)][2] == make_photograph(2, seed=1).jpeg


def test_other_seeds_and_other_numbers_give_other_bytes() -> None:
    made = {hashlib.sha256(make_photograph(n, seed=s).jpeg).digest() for n in range(4) for s in range(3)}
    assert len(made) == 12


def test_classes_come_in_turn() -> None:
    assert [p.label for p in make_photographs(len(CLASSES) + 1)] == [*range(len(CLASSES)), 0]


def test_no_photographs_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        list(make_photographs(0))


def test_size_and_bits_per_pixel_are_those_of_photographs(files: list[bytes]) -> None:
    pixels = [w * h for w, h in (Image.open(io.BytesIO(file)).size for file in files)]
    mean_bytes = sum(map(len, files)) / len(files)
    bits_per_pixel = 8 * sum(map(len, files)) / sum(pixels)
    assert 0.17e6 < sum(pixels) / len(pixels) < 0.21e6
    assert 95_000 < mean_bytes < 118_000
    assert 4.0 < bits_per_pixel < 4.8


def test_chroma_sampling_is_that_of_photographs(files: list[bytes]) -> None:
    kinds = Counter(read_sampling(file) for file in files)
    assert 0.65 < kinds["4:4:4"] / len(files) < 0.85
    assert 0.12 < kinds["4:2:0"] / len(files) < 0.28
    assert kinds["gray"] > 0


def test_every_file_is_baseline_with_the_standard_huffman_tables(files: list[bytes]) -> None:
    for file in files[:40]:
        with Image.open(io.BytesIO(file)) as image:
            image.load()
            assert "progressive" not in image.info
        # The first bytes of the standard luma AC table (ITU T.81, table K.5).
        assert bytes([0, 1, 2, 3, 0, 4, 17, 5, 18, 33, 49, 65, 6, 19, 81, 97][1:]) in file


def read_sampling(file: bytes) -> str:
    with Image.open(io.BytesIO(file)) as image:
        if image.mode == "L":
            return "gray"
        return {(1, 1): "4:4:4", (2, 2): "4:2:0", (2, 1): "4:2:2"}[image.layer[0][1:3]]
