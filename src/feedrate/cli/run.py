# SPDX-License-Identifier: Apache-2.0
"""Run a training command as it is, with images that decode only the pixels that it looks at.

Each DataLoader is first proved in processes of its own: samples made with and without feedrate must be equal
to the last bit, or that loader runs as it would have. The command's output, exit code and signals pass
through; what feedrate says goes to standard error. FEEDRATE_RUN=off switches it off.

  feedrate run -- python train.py --epochs 90
  feedrate run --prove 1000 -- torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feedrate.cli.arguments import positive, read_command
from feedrate.cli.output import add_json_arguments, clean_values, emit, say
from feedrate.errors import UsageError


def talk(text: str) -> None:
    say(f"feedrate run: {text}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "feedrate run [options] -- COMMAND ..."  # argparse shows the command as "..."
    parser.add_argument(
        "--prove", type=positive, metavar="N",
        help="samples of each loader to make both ways (default: 64, or what 2 seconds have room for)",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, metavar="DIR",
        help="where entry points of JPEGs are kept for later runs (default: in your cache folder)",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true", help="end the run with exit code 4 where a loader would run bare"
    )
    parser.add_argument(
        "--explain", action="store_true", help="name everything that was replaced in its processes"
    )
    add_json_arguments(parser)
    parser.add_argument(
        "command", metavar="COMMAND ...", nargs=argparse.REMAINDER, help="what to run, as you would without"
    )


def run(arguments: argparse.Namespace) -> int:
    command = read_command(arguments.command, "feedrate run")
    if arguments.cache is not None and arguments.cache.exists() and not arguments.cache.is_dir():
        raise UsageError(
            f"{arguments.cache} (--cache) is a file", hint="name a folder: it is made if missing"
        )
    from feedrate.report.run import draw_patched, draw_run
    from feedrate.run.launch import RunOptions, run_command

    report = run_command(command, RunOptions(arguments.prove, arguments.cache, arguments.strict))
    sys.stdout.flush()
    said = clean_values(report)
    for line in [*(draw_patched(said) if arguments.explain else ()), *draw_run(said)]:
        talk(line)
    emit(arguments, "run", report, speak=talk)
    return report.exit_code
