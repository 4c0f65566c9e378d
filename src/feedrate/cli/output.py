# SPDX-License-Identifier: Apache-2.0
"""Where a command's result goes besides the terminal: `--json`; and its talk, to standard error."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feedrate.errors import AlreadyExists, NotFound, StorageError


def add_json_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="PATH", help="write the result as JSON too; '-': to standard output instead"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the JSON file")


def check_json_target(arguments: argparse.Namespace) -> None:
    """Refuse before the work, not after it."""
    if arguments.json in (None, "-"):
        return
    target = Path(arguments.json)
    if target.exists() and not arguments.force:
        raise AlreadyExists(
            f"{target} is already there", hint="add --force to overwrite it, or name another file"
        )
    if not target.parent.is_dir():
        raise NotFound(f"cannot write {target}: there is no folder {target.parent}")


def write_json(arguments: argparse.Namespace, text: str) -> None:
    if arguments.json == "-":
        sys.stdout.write(text)
    elif arguments.json is not None:
        try:
            Path(arguments.json).write_text(text)
        except OSError as error:
            raise StorageError(f"cannot write {arguments.json}: {error.strerror}") from error


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
