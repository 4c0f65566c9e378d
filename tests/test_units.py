# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedrate.errors import UsageError
from feedrate.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    parse_bytes,
    parse_keep,
    parse_rate,
    parse_seconds,
    shell_quote,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("256MB", 256_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("2k", 2000),
        ("1tb", 10**12),
        ("2PB", 2 * 10**15),
        ("1p", 10**15),
        ("7 B", 7),
        ("1.5P", 1_500_000_000_000_000),
    ],
)
def test_sizes_are_read_in_the_ways_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


def test_a_size_that_no_number_holds_is_refused() -> None:
    with pytest.raises(UsageError, match="400 digits"):
        parse_bytes("9" * 400)


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1XB", "1.2.3GB", "twelve"])
def test_what_is_not_a_size_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)


def test_a_size_below_one_byte_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 byte, got '0MB'"):
        parse_bytes("0MB")


@given(st.integers(1, 10**15))
def test_a_printed_size_reads_back_to_within_its_three_digits(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes).replace(",", "")) == pytest.approx(size_bytes, rel=0.006)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999_600, "1.00 MB"),
        (109_576, "110 KB"),
        (2.4e9, "2.40 GB"),
        (1e15, "1.00 PB"),
    ],
)
def test_sizes_print_with_three_digits(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000021, "2.10 µs"),
        (0.0123, "12.3 ms"),
        (3.0, "3.00 s"),
        (61.4, "61.4 s"),
        (125, "2 min 05 s"),
        (7260, "2 h 01 min"),
        (171_000, "47 h 30 min"),
        (360_000, "4 days 04 h"),
        (200 * 86400, "200 days"),
        (3.2e11, "10,140 years"),
    ],
)
def test_durations_print_in_the_unit_people_expect(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (42.06, "42.1s"), (250, "4m10s"), (3599.6, "1h00m"), (3900, "1h05m"),
     (172_799, "2d00h"), (360_000, "4d04h"), (1e7, "116d"), (3.2e11, "10,140y"), (1e30, "3.2e+22y")],
)  # fmt: skip
def test_durations_in_tables_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_rates_and_ratios_print_plainly() -> None:
    assert format_count(1, "file") == "1 file"
    assert format_count(1300, "class", "classes") == "1,300 classes"
    assert format_rate(1234.5, "images") == "1,234 images/s"
    assert (format_ratio(2.345), format_ratio(12.34)) == ("2.35x", "12.3x")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (0.00001, "0%"), (0.0003, "0.03%"), (0.004, "0.4%"), (0.0099, "1.0%"), (0.01, "1%"),
     (0.684, "68%"), (0.999, "100%"), (1.5, "150%"), (-0.02, "-2%")],
)  # fmt: skip
def test_small_shares_keep_a_digit(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_times_and_rates_are_read_as_people_write_them() -> None:
    assert [parse_seconds(text) for text in ("7d", "12h", "90 min", "5m", "30s", "30", "1w")] == [
        604800, 43200, 5400, 300, 30, 30, 604800
    ]  # fmt: skip
    assert (parse_keep("2d"), parse_keep("forever")) == (172800, None)
    assert (parse_rate("100MB"), parse_rate("1.5 GB/s")) == (100_000_000, 1_500_000_000)
    assert (parse_rate("10Gb/s"), parse_rate("100 Mbit/s"), parse_rate("8kbps")) == (
        1_250_000_000,
        12_500_000,
        1000,
    )
    for parse, text in ((parse_seconds, "soon"), (parse_keep, "7 moons"), (parse_rate, "fast/s")):
        with pytest.raises(UsageError, match="is not a"):
            parse(text)


@pytest.mark.parametrize(
    "name", [b"plain", b"it's here", b"a\nb", b"latin\xe9 'x' \\n", b"\x1b[31mred", "żółć".encode()]
)
def test_a_shell_reads_a_quoted_name_as_it_was(name: bytes) -> None:
    quoted = shell_quote(os.fsdecode(name))
    assert quoted.isprintable()
    assert subprocess.check_output(["bash", "-c", f"printf %s {quoted}"]) == name
