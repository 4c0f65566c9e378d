# SPDX-License-Identifier: Apache-2.0
"""Results of `feedrate warm` as plain lines."""

from __future__ import annotations

from feedrate.packing.results import WarmResult
from feedrate.report.lines import lay_out
from feedrate.report.terminal import table_lines
from feedrate.units import format_bytes, format_count, format_percent, format_seconds


def draw_warm(result: WarmResult, width: int | None = None) -> str:
    files, size = format_count(result.files, "file"), format_bytes(result.size_bytes)
    rate = format_bytes(result.loaded_bytes / max(result.seconds, 1e-9))
    lines = [
        f"{result.pack}: {files}, {size}",
        *table_lines(
            [
                (
                    "memory",
                    f"{_say_share(result.resident_before)} before, {_say_share(result.resident_after)} now",
                ),
                (
                    "loaded",
                    f"{format_bytes(result.loaded_bytes)} in {format_seconds(result.seconds)}, {rate}/s",
                ),
                (
                    "room",
                    f"{format_bytes(result.limit_bytes)}: {result.limit_reason}" if result.left_out else "",
                ),
            ]
        ),
    ]
    if result.left_out:
        names = ", ".join(result.left_out[:3]) + (", ..." if len(result.left_out) > 3 else "")
        count = format_count(len(result.left_out), "file")
        what = f"{count} ({format_bytes(result.left_out_bytes)}) did not fit"
        if result.resident_after == 1:
            lines.append(f"{what} into that room, and lie in memory all the same: {names}")
        else:
            lines += [
                f"{what}, to be read from the disk: {names}",
                "",
                "next: ask for more memory, or put the pack on a local disk",
            ]
    return lay_out(lines, width)


def _say_share(share: float | None) -> str:
    return "unknown (this file system does not tell)" if share is None else format_percent(share)
