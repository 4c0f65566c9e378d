# SPDX-License-Identifier: Apache-2.0
"""How every command ends (`emit`), and the one door to the terminal (`show`)."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from feedrate.errors import AlreadyExists, NotFound, StorageError, clean, clean_lines
from feedrate.units import format_count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from feedrate.report.progress import ProgressBar

# Goes up when a field changes its meaning or goes away; new fields leave it as it is.
SCHEMA_VERSION = 1

# What stands for a character that an encoding lacks: one cell for one, so that tables stay aligned.
_PLAIN = str.maketrans("±°µ█▌░", "~^u##.")


def add_json_arguments(parser: argparse.ArgumentParser, *, overwritten: str = "the JSON file") -> None:
    parser.add_argument(
        "--json", metavar="PATH", help="write the result as JSON too; '-': to standard output instead"
    )
    parser.add_argument("--force", action="store_true", help=f"overwrite {overwritten}")


def add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a sample was left out")


def check_targets(arguments: argparse.Namespace) -> None:
    """Refuse a file that cannot be written, or is there already: before the work, not after it."""
    for option in ("json", "html"):
        if getattr(arguments, option, None) not in (None, "-"):
            check_target(Path(getattr(arguments, option)), force=arguments.force)


def check_target(target: Path, *, force: bool) -> None:
    try:
        is_there = target.exists()
    except OSError:  # a name that is too long, a folder that may not be searched: writing fails, too
        is_there = False
    if is_there and not force:
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


def emit(
    arguments: argparse.Namespace,
    command: str,
    result: Any,
    draw: Callable[..., str] | None = None,
    *,
    path: str = "",
    page: Callable[[], str] | None = None,
    code: int = 0,
    speak: Callable[[str], None] | None = None,
) -> int:
    """End a command: write its text, its JSON document and its page, and return its exit code.

    Args:
        command: its name in the document.
        draw: makes the text of the result; there is none where standard output is for JSON.
        path: written in place of a text, as it is: `DATA=$(feedrate stage SOURCE)`.
        page: makes the page, where one was asked for.
        speak: says what was written; None: `say`.
    """
    document = dump_document(command, result)
    if arguments.json == "-":
        sys.stdout.write(document)
    else:
        if draw is not None:
            show_result(draw, result)
        if path:
            sys.stdout.write(path + "\n")
        if arguments.json is not None:
            write_text(Path(arguments.json), document)
    if page is not None and arguments.html is not None:
        write_text(arguments.html, page())
        (speak or say)(f"wrote {arguments.html}")
    return code


def dump_document(command: str, result: DataclassInstance) -> str:
    """Return any result as one JSON object: its own fields, under the command's name and a schema version."""
    import json

    fields = _plain(dataclasses.asdict(result))
    if "command" in fields:
        # Of the doctor: what it ran. `command` says whose document this is, in all of them.
        fields = {"argv": fields.pop("command"), **fields}
    document = {"command": command, "schema_version": SCHEMA_VERSION, **fields}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    # JSON has no infinity and no NaN; strict readers stumble over Python's.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(target: Path, text: str) -> None:
    try:
        # A path on the command line need not be text.
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}") from error


def judge_rejected(arguments: argparse.Namespace, rejected: int, where: str) -> int:
    """Return the exit code of a command that may leave samples out."""
    if not rejected or not arguments.strict:
        return 0
    from feedrate.cli import EXIT_FAILED, say_error

    say_error(f"{format_count(rejected, 'sample')} left out, and --strict allows none", f"see {where}")
    return EXIT_FAILED


def show(text: str, stream: TextIO | None = None) -> None:
    """Write a report, to standard output: the terminal's door.

    What a terminal would obey is written as an escape, and what its encoding lacks as '?', or as what is
    nearest to it.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    text = clean_lines(text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, errors="replace").decode(encoding)
    stream.write(text)


def show_result(draw: Callable[..., str], result: Any, stream: TextIO | None = None) -> None:
    """Draw a result whose texts cannot break a line in two, and so say what feedrate does not."""
    from feedrate.report.lines import count_columns

    stream = stream or sys.stdout
    show(draw(clean_values(result), width=count_columns(stream)), stream)


def clean_values(value: Any) -> Any:
    """Return a result with every text in it as one line that a terminal does not obey.

    A field whose metadata say `has_lines` keeps its lines: code to paste.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean_values(name): clean_values(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        listed = map(clean_values, value)
        return type(value)(*listed) if hasattr(value, "_fields") else tuple(listed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
        cleaned = {
            one.name: clean_lines(given) if given and "has_lines" in one.metadata else clean_values(given)
            for one, given in fields.items()
        }
        return dataclasses.replace(value, **cleaned)
    return value


def open_bar() -> ProgressBar:
    from feedrate.report.progress import ProgressBar

    return ProgressBar()


def say(text: str) -> None:
    from feedrate.report.lines import count_columns, lay_out

    show(lay_out(text.split("\n"), count_columns(sys.stderr)), sys.stderr)
    sys.stderr.flush()


@contextmanager
def ended_like_an_interrupt(kind: type[BaseException] = SystemExit) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that temporary folders go away.

    These signals end Python on the spot: a scheduler and a closing terminal send them. One that is ignored,
    as nohup has it, stays so. The exception's argument is the exit code.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise kind(128 + number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
