# SPDX-License-Identifier: Apache-2.0
"""What `feedrate doctor` writes once the diagnosis is made, and the document it may compare with."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedrate.cli.output import say, show, write_json, write_text
from feedrate.errors import NotFound, UsageError

if TYPE_CHECKING:
    from feedrate.doctor.results import Diagnosis

DEFAULT_MAX_EXPOSED_WAIT = 0.05
_NARROWEST, _WIDEST = 60, 120  # columns: longer lines are hard to read
ENDED_EARLY = 3  # the exit code of a run that the doctor ended


def talk(text: str) -> None:
    say(f"feedrate doctor: {text}")


def write_report(arguments: argparse.Namespace, diagnosis: Diagnosis, before: dict[str, Any] | None) -> int:
    """Write what was asked for; return the exit code.

    The command's own, or 1 where a check says no. Where the doctor ended the command and no check was asked
    for, ENDED_EARLY: what comes after a training in a script must not go on with half of one.
    """
    from feedrate.report.document import dump_document

    if arguments.full:
        from feedrate.report.doctor_full import draw_full

        columns = shutil.get_terminal_size().columns
        text = draw_full(diagnosis, min(max(columns, _NARROWEST), _WIDEST))
        show(text, sys.stderr if arguments.json == "-" else sys.stdout)
    elif arguments.json != "-":
        from feedrate.report.doctor import draw_diagnosis

        show(draw_diagnosis(diagnosis))
    passed = check_wait(arguments, diagnosis)
    if before is not None:
        passed = compare(arguments, diagnosis, before) and passed
    sys.stdout.flush()
    write_json(arguments, dump_document("doctor", diagnosis))
    if arguments.html is not None:
        from feedrate.report.doctor_page import draw_doctor_page

        write_text(arguments.html, draw_doctor_page(diagnosis))
        talk(f"wrote {arguments.html}")
    if arguments.trace is not None:
        from feedrate.report.doctor_trace import draw_trace

        write_text(arguments.trace, draw_trace(diagnosis))
        talk(f"wrote {arguments.trace}")
    if diagnosis.run.exit_code is None and not is_check(arguments):
        talk(f"exit code {ENDED_EARLY}: the command was ended before its own end")
        return ENDED_EARLY
    return (diagnosis.run.exit_code or 0) or (0 if passed else 1)


def is_check(arguments: argparse.Namespace) -> bool:
    """Return whether the exit code is the answer to a question of the user's."""
    return bool(arguments.check or arguments.verify) or arguments.max_exposed_wait is not None


def check_wait(arguments: argparse.Namespace, diagnosis: Diagnosis) -> bool:
    limit: float | None = arguments.max_exposed_wait
    if not arguments.check and limit is None:
        return True
    from feedrate.report.doctor_verify import draw_check, passes_check

    limit = DEFAULT_MAX_EXPOSED_WAIT if limit is None else limit
    talk(f"check {draw_check(diagnosis, limit).rstrip()}")
    return passes_check(diagnosis, limit)


def compare(arguments: argparse.Namespace, diagnosis: Diagnosis, before: dict[str, Any]) -> bool:
    """Draw what an earlier run predicted and what came.

    Returns:
        Whether there was something to compare, and --max-slowdown is kept to.
    """
    from feedrate.report.doctor_verify import compare_runs, draw_gate, draw_verification, passes_gate

    verification = compare_runs(before, diagnosis)
    stream = sys.stderr if arguments.json == "-" else sys.stdout
    show("\n" + draw_verification(verification), stream)
    if arguments.max_slowdown is None:
        return not verification.differs
    talk(f"check {draw_gate(verification, arguments.max_slowdown).rstrip()}")
    return passes_gate(verification, arguments.max_slowdown)


def read_before(path: Path) -> dict[str, Any]:
    """Return an earlier document of ours.

    Raises:
        NotFound, UsageError: there is none, or nothing can be compared with it.
    """
    from feedrate.errors import suggest_path
    from feedrate.report.doctor_earlier import read_earlier

    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"no file at {path} (--verify)", hint=suggest_path(path)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} (--verify): {error}") from error
    try:
        read_earlier(document)  # now, and not when the run is over
    except UsageError as error:
        raise UsageError(f"cannot compare with {path} (--verify): {error}", hint=error.hint) from error
    found: dict[str, Any] = document
    return found
