# SPDX-License-Identifier: Apache-2.0
"""Run a training command and say why it is slow, and what each remedy would give.

Watches the command for about 110 steps, then makes experiments inside it for some 25 s: the loader
without training, training on batches that are already there. From then on the run's weights are
spoilt: nothing more of it is written, and it is ended. With --passive it only watches, to the end.

The command's output, exit code and signals pass through; the verdict follows its output. When it was
ended for the experiments, the exit code is 3; with --check or --verify, 0 or 1.

  feedrate doctor -- python train.py --epochs 1
  feedrate doctor --html report.html -- torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from feedrate.cli.arguments import number, positive, read_command, share
from feedrate.cli.output import (
    add_json_arguments,
    check_target,
    clean_values,
    emit,
    ended_like_an_interrupt,
    say,
    show,
    write_text,
)
from feedrate.errors import NotFound, UsageError

if TYPE_CHECKING:
    from feedrate.doctor.options import DoctorOptions
    from feedrate.doctor.results import Diagnosis, Verification

DEFAULT_MAX_EXPOSED_WAIT = 0.05
_NARROWEST, _WIDEST = 60, 120  # columns: longer lines are hard to read
ENDED_EARLY = 3  # the exit code of a run that the doctor ended


def talk(text: str) -> None:
    say(f"feedrate doctor: {text}")


def write_report(arguments: argparse.Namespace, diagnosis: Diagnosis, before: Diagnosis | None) -> int:
    """Write what was asked for; return the exit code.

    The command's own, or 1 where a check says no. Where the doctor ended the command and no check was asked
    for, ENDED_EARLY: what comes after a training in a script must not go on with half of one.
    """

    def draw_page() -> str:
        from feedrate.report.doctor_page import draw_doctor_page

        return draw_doctor_page(diagnosis)

    said = clean_values(diagnosis)
    if arguments.full:
        from feedrate.report.doctor import draw_full

        columns = shutil.get_terminal_size().columns
        text = draw_full(said, min(max(columns, _NARROWEST), _WIDEST))
        show(text, sys.stderr if arguments.json == "-" else sys.stdout)
    elif arguments.json != "-":
        from feedrate.report.doctor import draw_diagnosis

        show(draw_diagnosis(said))
    passed = check_wait(arguments, said)
    if before is not None:
        passed = compare(arguments, diagnosis, before) and passed
    sys.stdout.flush()
    emit(arguments, "doctor", diagnosis, page=draw_page, speak=talk)
    if arguments.trace is not None:
        from feedrate.report.doctor_trace import draw_trace

        write_text(arguments.trace, draw_trace(said))
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
    from feedrate.report.doctor_verify import draw_check

    limit = DEFAULT_MAX_EXPOSED_WAIT if limit is None else limit
    talk(f"check {draw_check(diagnosis, limit).rstrip()}")
    return diagnosis.keeps_wait_below(limit)


def compare(arguments: argparse.Namespace, diagnosis: Diagnosis, before: Diagnosis) -> bool:
    """Draw what an earlier run predicted and what came.

    Returns:
        Whether there was something to compare, and --max-slowdown is kept to.
    """
    from feedrate.doctor.compare import compare_runs
    from feedrate.report.doctor_verify import draw_gate, draw_verification

    verification: Verification = clean_values(compare_runs(before, diagnosis, arguments.applied))
    stream = sys.stderr if arguments.json == "-" else sys.stdout
    show("\n" + draw_verification(verification), stream)
    if arguments.max_slowdown is None:
        return not verification.differs
    talk(f"check {draw_gate(verification, arguments.max_slowdown).rstrip()}")
    return verification.keeps_speed(float(arguments.max_slowdown))


def read_before(path: Path, applied: str | None) -> Diagnosis:
    """Return the diagnosis of an earlier document, which has predicted what was `applied`.

    Raises:
        NotFound, UsageError: there is none, or nothing can be compared with it.
    """
    from feedrate.doctor.compare import check_speed, find_remedy
    from feedrate.doctor.results import load_diagnosis
    from feedrate.errors import suggest_path

    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"no file at {path} (--verify)", hint=suggest_path(path)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} (--verify): {error}") from error
    try:
        before = load_diagnosis(document)
        check_speed(before)  # now, and not when the run is over
        if applied is not None:
            find_remedy(before, applied)
    except UsageError as error:
        raise UsageError(f"cannot compare with {path} (--verify): {error}", hint=error.hint) from error
    return before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from feedrate.doctor.options import DEFAULT_STEPS, DoctorOptions

    seconds = DoctorOptions().seconds
    parser.usage = "feedrate doctor [options] -- COMMAND ..."  # argparse shows the command as "..."
    parser.add_argument(
        "--steps", type=positive, metavar="N", default=DEFAULT_STEPS,
        help=f"steps to see before the experiments (default: {DEFAULT_STEPS}, 10 of them to warm up)",
    )  # fmt: skip
    parser.add_argument(
        "--passive", action="store_true", help="watch the whole run, change nothing, make no experiments"
    )
    parser.add_argument(
        "--seconds", type=number, metavar="S",
        help=f"see the steps for at most so long, once there are 20 (default: {seconds:g}); when given, a "
        "command that does nothing for so long is ended",
    )  # fmt: skip
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="a local folder: predict what staging the data there gives",
    )
    parser.add_argument("--full", action="store_true", help="print the whole report, not one screen of it")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the report as a page too")
    parser.add_argument("--trace", type=Path, metavar="PATH", help="write a trace for ui.perfetto.dev too")
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 when training waits for data longer than allowed"
    )
    parser.add_argument(
        "--max-exposed-wait", type=share, metavar="SHARE",
        help=f"of the time, what --check allows: 5%% or 0.05 (default: {DEFAULT_MAX_EXPOSED_WAIT:.0%}%)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", type=Path, metavar="BEFORE.json",
        help="compare with an earlier --json: what differs, and how much faster this run is",
    )  # fmt: skip
    parser.add_argument(
        "--applied", metavar="NAME",
        help="with --verify: the remedy of the earlier run that you applied; was its gain predicted well?",
    )  # fmt: skip
    parser.add_argument(
        "--max-slowdown", type=share, metavar="SHARE",
        help="with --verify: exit code 1 when this run is slower than the earlier one by more than this",
    )  # fmt: skip
    add_json_arguments(parser, overwritten="the files named above")
    parser.add_argument(
        "command", metavar="COMMAND ...", nargs=argparse.REMAINDER, help="what to run, as you would without"
    )


def run(arguments: argparse.Namespace) -> int:
    from feedrate.doctor.options import DoctorOptions
    from feedrate.machine.command import check_command

    command = read_command(arguments.command, "feedrate doctor")
    seconds = DoctorOptions().seconds if arguments.seconds is None else arguments.seconds
    options = DoctorOptions(
        arguments.steps,
        arguments.passive,
        seconds,
        arguments.scratch,
        ends_standstill=arguments.seconds is not None,
    )
    check_command(command, "feedrate doctor")
    if arguments.trace is not None:
        check_target(arguments.trace, force=arguments.force)
    for option, value in (("--max-slowdown", arguments.max_slowdown), ("--applied", arguments.applied)):
        if value is not None and arguments.verify is None:
            raise UsageError(
                f"{option} compares with an earlier run, and --verify names none",
                hint="add --verify BEFORE.json, a file that 'feedrate doctor --json' wrote",
            )
    before = None if arguments.verify is None else read_before(arguments.verify, arguments.applied)
    from feedrate.doctor.examine import examine

    talk(announce(options))
    with ended_like_an_interrupt():
        diagnosis = examine(command, options, watch=talk)
    return write_report(arguments, diagnosis, before)


def announce(options: DoctorOptions) -> str:
    if options.passive:
        return "watching the whole run, changing nothing"
    return (
        f"watching about {options.steps} steps, then experiments of about 25 s; "
        "the run's weights are then spoilt and nothing more of it is written"
    )
