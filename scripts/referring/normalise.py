# SPDX-License-Identifier: Apache-2.0
"""Replaces what differs from run to run and from machine to machine: times, paths, processes, cores."""

from __future__ import annotations

import getpass
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PATTERNS = (
    (re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"), "<date>"),
    (re.compile(r"\b\d[\d,.]* ?[kKMGT]?i?B/s\b"), "<rate>"),
    (re.compile(r"\b\d[\d,.]* [a-z]+/s\b"), "<rate>"),
    (re.compile(r"\b\d[\d,.]* ?(µs|ms|s|min|h|d|seconds?|minutes?|hours?|days?)\b"), "<time>"),
    (re.compile(r"\b\d[\d,.]* ?[kKMGT]?B (free|left|available|here|of it)\b"), r"<size> \1"),
    (re.compile(r"\b(pid|process) \d+"), r"\1 <pid>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"-[0-9a-f]{12}\b"), "-<hash>"),  # of a copy's source, with its inode
    (re.compile(r"\bfeedrate-(bench|demo|doctor)-\w{8}"), r"feedrate-\1-<name>"),
    (re.compile(r"/feedrate-\d+/"), "/feedrate-<uid>/"),
    (re.compile(r"\b\d+ cores?\b"), "<cores>"),
)
# Names of what a machine or a moment decides, in JSON.
VOLATILE = re.compile(
    r"(_s|_ns|_at|per_s|seconds|time|created|used|since|pid|uid|date|node|host|user|owner|machine|inode"
    r"|mtime|now|cores|threads|memory|free_bytes|limit_bytes|version|speedup)$"
)


class Normaliser:
    """Knows the folder that a run works in."""

    def __init__(self, work: Path) -> None:
        self.names = [
            (str(work.resolve()), "<work>"),
            (str(work), "<work>"),
            (work.name, "<work-name>"),
            (tempfile.gettempdir() + "/", "<temporary>/"),
            (str(REPOSITORY), "<repository>"),
            (sys.prefix, "<venv>"),
            (sys.base_prefix, "<python>"),
        ]
        self.words = [(socket.gethostname(), "<host>"), (getpass.getuser(), "<user>")]

    def paths(self, text: str) -> str:
        for name, instead in self.names:
            text = text.replace(name, instead)
        for word, instead in self.words:
            text = re.sub(rf"\b{re.escape(word)}\b", instead, text)
        return text

    def text(self, text: str, *, loose: bool = False) -> list[str]:
        """Return the lines of a terminal's text; `loose`: without any number."""
        lines = []
        for line in self.paths(text).replace("\r", "\n").splitlines():
            changed = line
            for pattern, instead in PATTERNS:
                changed = pattern.sub(instead, changed)
            if loose:
                changed = re.sub(r"[+-]?\d[\d,.]*", "<n>", changed)
            if changed != line or loose:  # columns were as wide as the numbers
                changed = re.sub(r"[ \u2500-\u259f]{2,}", "  ", changed).rstrip()
            lines.append(changed)
        return lines

    def document(self, value: Any, name: str = "") -> Any:
        """Return a JSON document with the kinds of what a machine or a moment decides, not the values."""
        if isinstance(value, dict):
            if name == "machine":
                return sorted(value)
            return {key: self.document(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self.document(each, name) for each in value]
        if VOLATILE.search(name) and not isinstance(value, bool) and value is not None:
            return f"<{'number' if isinstance(value, int | float) else 'text'}>"
        if isinstance(value, str):
            return "\n".join(self.text(value))
        return value


def shape(value: Any) -> Any:
    """Return the names and kinds in a JSON document without its values: for what is measured anew."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        shapes = {repr(each): each for each in map(shape, value)}
        return [shapes[key] for key in sorted(shapes)]
    if isinstance(value, bool) or value is None:
        return "value"
    return "number" if isinstance(value, int | float) else "text"
