# SPDX-License-Identifier: Apache-2.0
"""Where a command's result goes besides the terminal: `--json`; and its talk, to standard error.

Temporary folders go away, too, when a scheduler or a closing terminal ends a command.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from feedrate.errors import AlreadyExists, NotFound, StorageError, clean, clean_lines
from feedrate.units import format_count


def add_json_arguments(parser: argparse.ArgumentParser, *, overwritten: str = "the JSON file") -> None:
    parser.add_argument(
        "--json", metavar="PATH", help="write the result as JSON too; '-': to standard output instead"
    )
    parser.add_argument("--force", action="store_true", help=f"overwrite {overwritten}")


def check_json_target(arguments: argparse.Namespace) -> None:
    """Refuse before the work, not after it."""
    if arguments.json not in (None, "-"):
        check_target(Path(arguments.json), force=arguments.force)


def check_target(target: Path, *, force: bool) -> None:
    """Refuse to write over a file, or where nothing can be written: now, and not when the work is done."""
    if _is_there(target) and not force:
        raise AlreadyExists(
            f"{target} is already there", hint="add --force to overwrite it, or name another file"
        )
    if not os.path.isdir(target.parent):
        raise NotFound(f"cannot write {target}: there is no folder {target.parent}")
    try:
        _try_to_write(target)
    except OSError as error:
        raise StorageError(
            f"cannot write {target}: {error.strerror}", hint="name a file in a folder that you may write to"
        ) from error


def _is_there(target: Path) -> bool:
    try:
        return target.exists()
    except OSError:  # a name that is too long, a folder that may not be searched: writing fails, too
        return False


def _try_to_write(target: Path) -> None:
    """Raise the OSError that writing would, and leave nothing behind.

    A try, as permissions alone do not tell: file systems are read-only, servers refuse root.
    """
    try:
        kind = target.stat().st_mode
    except FileNotFoundError:
        import tempfile

        with tempfile.TemporaryFile(dir=target.parent):  # has no name, or loses it at once
            return
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # to open a pipe or a device may wait, or do something
        os.close(os.open(target, os.O_WRONLY))


def write_json(arguments: argparse.Namespace, text: str) -> None:
    if arguments.json == "-":
        sys.stdout.write(text)
    elif arguments.json is not None:
        write_text(Path(arguments.json), text)


def add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a sample was left out")


def exit_code(arguments: argparse.Namespace, rejected: int, where: str) -> int:
    """Return what the shell should see of a command that may leave samples out."""
    if not rejected or not arguments.strict:
        return 0
    from feedrate.cli import EXIT_FAILED, say_error

    say_error(f"{format_count(rejected, 'sample')} left out, and --strict allows none", f"see {where}")
    return EXIT_FAILED


def write_path(path: str) -> None:
    """Write the path that a command's output is, as it is: `DATA=$(feedrate stage SOURCE)`."""
    sys.stdout.write(path + "\n")


def write_text(target: Path, text: str) -> None:
    try:
        # A path on the command line need not be text.
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}") from error


def show(text: str, stream: TextIO | None = None) -> None:
    """Write a report, to standard output: the terminal's door.

    What a terminal would obey is written as an escape, and what its encoding lacks as '?'.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(clean_lines(text).encode(encoding, errors="replace").decode(encoding))


def show_result(draw: Callable[..., str], *results: Any, stream: TextIO | None = None) -> None:
    """Draw results whose texts cannot break a line in two, and so say what feedrate does not."""
    from feedrate.report.lines import count_columns

    stream = stream or sys.stdout
    show(draw(*map(clean_values, results), width=count_columns(stream)), stream)


def clean_values(value: Any) -> Any:
    """Return a result with every text in it as one line that a terminal does not obey."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean_values(name): clean_values(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        cleaned = map(clean_values, value)
        return type(value)(*cleaned) if hasattr(value, "_fields") else tuple(cleaned)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        return dataclasses.replace(value, **{name: clean_values(getattr(value, name)) for name in fields})
    return value


def say(text: str) -> None:
    from feedrate.report.lines import count_columns, lay_out

    show(lay_out(text.split("\n"), count_columns(sys.stderr)), sys.stderr)
    sys.stderr.flush()


@contextmanager
def ended_like_an_interrupt() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, which end Python on the spot, into an exception that runs every `finally`."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
