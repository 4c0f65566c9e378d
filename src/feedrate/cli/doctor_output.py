# SPDX-License-Identifier: Apache-2.0
"""What `feedrate doctor` writes once the diagnosis is made, and the document that it may compare with."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from feedrate.cli.output import say, write_json, write_text
from feedrate.errors import NotFound, UsageError

if TYPE_CHECKING:
    from feedrate.results.doctor import Diagnosis

DEFAULT_MAX_EXPOSED_WAIT = 0.05


def talk(text: str) -> None:
    say(f"feedrate doctor: {text}")


def write_report(arguments: argparse.Namespace, diagnosis: Diagnosis, before: dict[str, Any] | None) -> int:
    """Write what was asked for; return the exit code: the command's own, or 1 where a limit was broken."""
    from feedrate.report.doctor import draw_diagnosis
    from feedrate.report.document import dump_document

    # A JSON document stands alone on standard output; what people read then goes beside it.
    words = sys.stderr if arguments.json == "-" else sys.stdout
    if arguments.json != "-":
        words.write(draw_diagnosis(diagnosis))
    passed = write_comparison(words, arguments, diagnosis, before)
    words.flush()
    write_json(arguments, dump_document("doctor", diagnosis))
    if arguments.html is not None:
        from feedrate.report.doctor_page import draw_doctor_page

        write_text(arguments.html, draw_doctor_page(diagnosis))
        talk(f"wrote {arguments.html}")
    if arguments.trace is not None:
        from feedrate.report.doctor_trace import draw_trace

        write_text(arguments.trace, draw_trace(diagnosis))
        talk(f"wrote {arguments.trace}")
    return (diagnosis.run.exit_code or 0) or (0 if passed else 1)


def write_comparison(
    words: TextIO, arguments: argparse.Namespace, diagnosis: Diagnosis, before: dict[str, Any] | None
) -> bool:
    """Write what --verify and --check say; return whether every limit was kept."""
    from feedrate.report import doctor_verify as verify

    passed = True
    if before is not None:
        comparison = verify.compare_runs(before, diagnosis)
        words.write("\n" + verify.draw_verification(comparison))
        if arguments.max_slowdown is not None:
            words.write(verify.draw_gate(comparison, arguments.max_slowdown))
            passed = verify.passes_gate(comparison, arguments.max_slowdown)
    limit: float | None = arguments.max_exposed_wait
    if arguments.check or limit is not None:
        limit = DEFAULT_MAX_EXPOSED_WAIT if limit is None else limit
        words.write(verify.draw_check(diagnosis, limit))
        passed = verify.passes_check(diagnosis, limit) and passed
    return passed


def read_before(path: Path) -> dict[str, Any]:
    """Return an earlier document of ours.

    Raises:
        NotFound, UsageError: there is none, or it is something else, or nothing can be compared with it.
    """
    from feedrate.probe.paths import suggest_path
    from feedrate.report.doctor_earlier import read_earlier

    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"no file at {path} (--verify)", hint=suggest_path(path)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} (--verify): {error}") from error
    try:
        read_earlier(document)
    except UsageError as error:
        raise UsageError(f"cannot compare with {path} (--verify): {error}", hint=error.hint) from error
    found: dict[str, Any] = document
    return found
