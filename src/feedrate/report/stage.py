# SPDX-License-Identifier: Apache-2.0
"""What `stage` did, in a line."""

from __future__ import annotations

from feedrate.report.lines import lay_out
from feedrate.scratch.results import NodesResult, StageResult
from feedrate.units import format_bytes, format_count, format_seconds


def draw_stage(result: StageResult, width: int | None = None) -> str:
    return lay_out([_describe_copy(result)], width)


def draw_nodes(result: NodesResult, width: int | None = None) -> str:
    lines = [f"{one.node}: {_describe_copy(one)}" for one in result.nodes]
    lines += [f"{one.node}: no copy: {one.message}" for one in result.failures]
    count = len(result.nodes) + len(result.failures)
    seconds = format_seconds(result.seconds)
    lines.append(f"{len(result.nodes)} of {format_count(count, 'node')} have a copy after {seconds}")
    return lay_out(lines, width)


def _describe_copy(result: StageResult) -> str:
    whole = f"{format_bytes(result.size_bytes)} in {format_count(result.files, 'file')}"
    if not result.copied_files:
        how = "another process copied it" if result.is_joined else "it was there already"
        return f"{whole}: {how} ({format_seconds(result.seconds)})"
    rate = f", {format_bytes(result.copied_bytes / result.seconds)}/s" if result.seconds else ""
    rest = ""
    if result.copied_files < result.files or result.resumed_bytes:
        rest = f"; {format_bytes(result.size_bytes - result.copied_bytes)} were there already"
    copied = f"copied {format_bytes(result.copied_bytes)} in {format_count(result.copied_files, 'file')}"
    return f"{copied} in {format_seconds(result.seconds)}{rate}{rest}"
