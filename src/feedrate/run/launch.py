# SPDX-License-Identifier: Apache-2.0
"""Runs the user's command with the hook inside, passes signals and its exit code on, and says what it did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import feedrate
from feedrate.errors import StorageError
from feedrate.hooking.group import GroupWitness
from feedrate.hooking.launch import (
    Child,
    Hook,
    Signals,
    make_environment,
    make_run_folder,
    needs_shared_folder,
)
from feedrate.kernel.binding import native
from feedrate.machine.command import check_command
from feedrate.machine.cpu import measure_usable_cores
from feedrate.run import hook
from feedrate.run.hook.feedrate_run import OFF, SETTINGS, VARIABLE
from feedrate.run.merging import find_folder, merge
from feedrate.run.results import RunReport
from feedrate.run.saved import Fact, estimate_bare, read_facts, report_loaders

HOOK = Hook("run", VARIABLE, Path(hook.__file__).resolve().parent)
_MERGE_S, _MERGE_PART, _MERGE_SELDOM_S = 1.0, 20, 60.0  # short epochs have their entry points soon
_SWITCHED_OFF = f"{VARIABLE}={OFF} is set"
_NOT_REACHED = (
    "none of its processes was a Python that can be reached: python -I and -E shut others' code out, and a "
    "PYTHONPATH that is set anew does"
)
_NO_LOADER = "no torch DataLoader was asked for a batch"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What may be asked for.

    Attributes:
        prove: samples of each loader to make both ways; None: 64, or as many as 2 seconds have room for.
        cache: the folder of entry points; None: in the user's cache folder.
        is_strict: a loader that would run bare ends the run.
    """

    prove: int | None = None
    cache: Path | None = None
    is_strict: bool = False


def run_command(command: Sequence[str], options: RunOptions) -> RunReport:
    """Run a command to its end.

    Raises:
        UsageError, NotFound: it cannot be run, see `check_command`.
        StorageError: there is no place for the run folder.
    """
    check_command(command, "feedrate run")
    if os.environ.get(VARIABLE) == OFF:
        began = time.perf_counter()
        child = _wait(command, os.environ, None, [])
        seconds = time.perf_counter() - began
        return RunReport(tuple(command), child.exit_code, seconds, None, 0, 0, (), (_SWITCHED_OFF,), ())
    is_shared = needs_shared_folder(command)
    folder = make_run_folder(HOOK, is_shared)
    try:
        problems: list[str] = []
        cache = find_folder(options.cache, say=problems.append)
        try:
            _write_settings(folder / SETTINGS, options, cache)
            environment = make_environment(HOOK, folder, is_shared)
        except OSError as error:
            raise StorageError(
                f"cannot write to {folder}: {error.strerror}", hint="set TMPDIR to a folder with room"
            ) from error
        began = time.perf_counter()
        child = _wait(command, environment, cache, problems)
        seconds = time.perf_counter() - began
        if cache is not None:
            problems += filter(None, [merge(cache).problem])
        return _make_report(tuple(command), child, seconds, folder, problems)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(path: Path, options: RunOptions, cache: Path | None) -> None:
    settings = {
        "package": str(Path(feedrate.__file__).resolve().parent),
        "native": native.__file__,
        "python": list(sys.version_info[:2]),
        "prove": options.prove,
        "cache": "" if cache is None else str(cache),
        "strict": options.is_strict,
    }
    path.write_text(json.dumps(settings), encoding="utf-8")


def _wait(
    command: Sequence[str], environment: Mapping[str, str], cache: Path | None, problems: list[str]
) -> Child:
    """Start the command, pass on what only we got, and wait for its end."""

    def merge_some(folder: Path) -> None:
        problems.extend(filter(None, [merge(folder, is_last=False).problem]))

    witness = GroupWitness()
    try:
        with Signals() as signals:
            child = Child(command, environment)
            merging, began, due = threading.Thread(), time.monotonic(), 0.0
            try:
                while not child.has_ended():
                    for number in signals.wait():
                        if not witness.saw(number):
                            child.send(number)
                    running = time.monotonic() - began
                    if cache is not None and running > due and not merging.is_alive():
                        # Beside: it may take seconds, and signals do not wait for it.
                        merging = threading.Thread(target=merge_some, args=[cache])
                        merging.start()
                        due = running + min(max(running / _MERGE_PART, _MERGE_S), _MERGE_SELDOM_S)
            except BaseException:
                child.send(signal.SIGTERM)
                raise
            if merging.is_alive():
                merging.join()
        return child
    finally:
        witness.close()


def _make_report(
    command: tuple[str, ...], child: Child, seconds: float, folder: Path, problems: list[str]
) -> RunReport:
    facts = read_facts(folder)
    loaders = report_loaders(folder, facts)
    processes = {(fact["node"], fact["pid"]) for fact in facts}
    ranks = {(fact["node"], fact["pid"]) for fact in facts if fact.get("kind") == "loader"}
    patched = dict.fromkeys(name for fact in _of_kind(facts, "patched") for name in fact["names"])
    bare = [fact["why"] for fact in _of_kind(facts, "bare")]
    notes = [*problems, *(fact["why"] for fact in _of_kind(facts, "cache"))]
    if not facts:
        bare.append(_NOT_REACHED)
    elif not loaders and not bare:
        bare.append(_NO_LOADER)
    return RunReport(
        command,
        child.exit_code,
        seconds,
        estimate_bare(folder, facts, seconds, measure_usable_cores()),
        len(processes),
        len(ranks),
        loaders,
        tuple(dict.fromkeys(bare)),
        tuple(notes[:1]),
        tuple(patched),
        bool(_of_kind(facts, "strict")),
    )


def _of_kind(facts: list[Fact], kind: str) -> list[Fact]:
    return [fact for fact in facts if fact.get("kind") == kind]
