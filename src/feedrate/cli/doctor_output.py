# SPDX-License-Identifier: Apache-2.0
"""What `feedrate doctor` writes once the diagnosis is made, and the document that it may compare with."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedrate.cli.output import say, write_json, write_text
from feedrate.errors import NotFound, UsageError

if TYPE_CHECKING:
    from feedrate.results.doctor import Diagnosis

DEFAULT_MAX_EXPOSED_WAIT = 0.05


def talk(text: str) -> None:
    say(f"feedrate doctor: {text}")


def write_report(arguments: argparse.Namespace, diagnosis: Diagnosis, before: dict[str, Any] | None) -> int:
    """Write what was asked for; return the exit code: the command's own, or 1 where --check says no."""
    from feedrate.report.doctor import draw_diagnosis
    from feedrate.report.document import dump_document

    if arguments.json != "-":
        sys.stdout.write(draw_diagnosis(diagnosis))
    if before is not None:
        from feedrate.report.doctor_verify import compare_runs, draw_verification

        text = draw_verification(compare_runs(before, diagnosis))
        (sys.stderr if arguments.json == "-" else sys.stdout).write(text)
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
    passed = check_wait(arguments, diagnosis)
    return (diagnosis.run.exit_code or 0) or (0 if passed else 1)


def check_wait(arguments: argparse.Namespace, diagnosis: Diagnosis) -> bool:
    limit: float | None = arguments.max_exposed_wait
    if not arguments.check and limit is None:
        return True
    limit = DEFAULT_MAX_EXPOSED_WAIT if limit is None else limit
    share = diagnosis.run.exposed_wait_share
    passed = share <= limit
    word = "passed" if passed else "failed"
    talk(f"check {word}: training waited for data in {share:.1%} of its time, allowed are {limit:.1%}")
    return passed


def read_before(path: Path) -> dict[str, Any]:
    """Return an earlier document of ours.

    Raises:
        NotFound, UsageError: there is none, or it is something else.
    """
    from feedrate.probe.paths import suggest_path

    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"no file at {path} (--verify)", hint=suggest_path(path)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} (--verify): {error}") from error
    if not isinstance(document, dict) or document.get("command") != "doctor":
        raise UsageError(
            f"{path} is not a document of the doctor (--verify)",
            hint="make one first: feedrate doctor --json before.json -- python train.py ...",
        )
    return document
