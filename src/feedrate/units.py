# SPDX-License-Identifier: Apache-2.0
"""Parse and print bytes, rates, seconds, and paths to type; place numbers on scales.

Nothing else formats a number for people.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from typing import TypeGuard

from feedrate.errors import UsageError


def printable(path: bytes) -> str:
    """Return a path for people: bytes that are no text, and control characters, are written as escapes."""
    text = path.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
               "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Return the number of bytes in `256MB`, `1.5 GiB` or `4096`.

    Raises:
        UsageError: the text is not a size, or not above zero.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = (match.group(2).upper() or "B") if match else ""
    if unit in ("K", "M", "G", "T", "P"):
        unit += "B"
    if match is None or unit not in _BYTE_UNITS:
        raise UsageError(f"'{text}' is not a size", hint="write it like 256MB, 1.5GB or 512MiB")
    size = float(match.group(1)) * _BYTE_UNITS[unit]
    if not math.isfinite(size):
        raise UsageError(f"a size of {len(match.group(1))} digits is no size", hint="write it like 256MB")
    size_bytes = int(size)
    if size_bytes < 1:
        raise UsageError(f"a size must be at least 1 byte, got '{text}'")
    return size_bytes


_TIME_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def parse_seconds(text: str) -> float:
    """Return the number of seconds in `7d`, `12h`, `90min` or `30`.

    Raises:
        UsageError: the text is not a time.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or (match.group(2) or "s") not in _TIME_UNITS:
        raise UsageError(f"'{text}' is not a time", hint="write it like 7d, 12h, 90min or 30s")
    return float(match.group(1)) * _TIME_UNITS[match.group(2) or "s"]


def parse_keep(text: str) -> float | None:
    """Return the seconds in `7d`; None for `forever`.

    Raises:
        UsageError: the text is not a time.
    """
    return None if text.strip().lower() == "forever" else parse_seconds(text)


def parse_rate(text: str) -> int:
    """Return the bytes per second in `100MB` or `1.5 GB/s`; a small b is bits: `10Gb/s`, `10 Gbit/s`.

    Raises:
        UsageError: the text is not a rate, or not above zero.
    """
    size = text.strip().removesuffix("/s")
    bits = re.fullmatch(r"(.*?)(b|bit|bits|bps)", size)
    return parse_bytes(size) if bits is None else max(parse_bytes(f"{bits[1]}B") // 8, 1)


def format_bytes(size_bytes: float) -> str:
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        # 999.5 KB would print as '1000 KB': step up a unit just before.
        if abs(size_bytes) >= factor * 0.9995:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return format_days(seconds)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def format_days(seconds: float) -> str:
    """Return `3 days 04 h`, `120 days`, `27 years`: what takes longer than anybody waits for."""
    days, hours = divmod(round(seconds / 3600), 24)
    if days >= 2 * 365:
        return f"{format_number(round(days / 365.25))} years"
    return f"{days} days {hours:02d} h" if days < 100 else f"{round(seconds / 86400)} days"


def format_duration(seconds: float) -> str:
    """Return `4m10s`, `1h05m`, `3d04h`: a time in seven cells, for tables."""
    if seconds >= 48 * 3600 - 30:
        text = format_days(seconds).replace(" days", "d").replace(" years", "y")
    else:
        text = format_seconds(seconds).replace(" min", "m")
    return text.replace(" ", "")


def format_age(seconds: float) -> str:
    """Return `40 s`, `5 min`, `3 h`, `6 days`: how long something has been so, as people say it."""
    for unit, size_s in (("day", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size_s:
            count = int(seconds // size_s)
            return format_count(count, unit) if unit == "day" else f"{count} {unit}"
    return f"{max(int(seconds), 0)} s"


def format_rate(per_second: float, unit: str) -> str:
    """Return `1,234 images/s`; for bytes use `format_bytes(rate) + '/s'`."""
    return f"{_three_digits(per_second)} {unit}/s"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 file`, `1,300 files`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_percent(share: float) -> str:
    """Return `68%`, `0.4%`, `0.03%`: a small share is what says that a remedy gives nothing."""
    percent = 100 * share
    for least, digits in ((0.995, 0), (0.0995, 1), (0.005, 2)):
        if abs(percent) >= least:
            return f"{percent:.{digits}f}%"
    return "0%"


def is_number(value: float | None) -> TypeGuard[float]:
    """Return whether there is a number to show: neither missing, nor infinite, nor NaN."""
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:  # a whole number without a float
        return False


def clamp(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return min(high, max(low, value)) if math.isfinite(value) else low


def place(value: float, start: float, end: float) -> float:
    """Return where a value is between two others, from 0 to 1."""
    return clamp((value - start) / (end - start)) if end > start else 0.0


def format_number(value: float) -> str:
    """Return three digits of any number, for scales and tables."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2g}"
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def format_factor(value: float, scale: float | None = None) -> str:
    """Return `2.4`; below two one digit more, since 1.04 and 1.00 are not the same; digits as `scale` has."""
    size = abs(value if scale is None else scale)
    return f"{value:.2g}" if size >= 1e6 else f"{value:.{2 if size < 1.995 else 1 if size < 9.95 else 0}f}"


def format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.1f}x"


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def shell_quote(path: str | os.PathLike[str]) -> str:
    """Return a path as one types it in a shell: quoted where it must be."""
    text = os.fspath(path)
    if text.isprintable():
        return shlex.quote(text)
    # Control characters, and bytes that are no text, never reach a terminal as they are: bash's own escapes.
    escaped = (
        c if c.isprintable() and c not in "'\\" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))
        for c in text
    )
    return f"$'{''.join(escaped)}'"
