# SPDX-License-Identifier: Apache-2.0
"""A run in which there was nothing to examine: which of the reasons was it?"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from feedrate.doctor.command import read_python_call
from feedrate.doctor.facts import read_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.launch import Observed
from feedrate.doctor.other_framework import explain_framework
from feedrate.doctor.records import read_run
from feedrate.doctor.standstill import LOADERS
from feedrate.doctor.timeline import PARTS
from feedrate.errors import DoctorError
from feedrate.units import format_seconds

_LEAST_BYTES = 100_000  # for the first records and facts of a process
_DROPS_THE_ENVIRONMENT = {
    "sudo": "sudo drops the environment: put 'feedrate doctor --' after it",
    "docker": "a container does not get our environment: run feedrate doctor inside of it",
    "podman": "a container does not get our environment: run feedrate doctor inside of it",
    "apptainer": "the container must get our environment: leave --cleanenv and --containall out",
    "singularity": "the container must get our environment: leave --cleanenv and --containall out",
    "ssh": "another machine does not get our environment: run feedrate doctor there",
    "srun": "srun must pass the environment on (--export=ALL), and the nodes must share the working folder",
}


def check_seen(observed: Observed) -> None:
    """Do nothing when the command took at least one batch from a loader.

    Raises:
        DoctorError: it did not, in a sentence; carries the exit code for the shell.
    """
    kinds: set[str] = set()
    alone: Mapping[str, Any] | None = None
    framework: Mapping[str, Any] | None = None
    error: str | None = None
    for fact in read_facts(observed.run_folder):
        kinds.add(str(fact.get("kind")))
        alone = fact if fact.get("kind") == "no-loader" else alone
        framework = fact if fact.get("kind") == "framework" else framework
        if fact.get("kind") == "end" and fact.get("error"):
            error = str(fact["error"])
    if "batch" in kinds:
        return
    message, hint = _explain(observed, kinds, error)
    if observed.interrupted or not (observed.exit_code or error):
        if alone is not None:
            message, hint = _explain_alone(observed, alone)
        elif framework is not None and "loader" not in kinds and observed.standstill is None:
            message, hint = explain_framework(observed, framework)
    raise DoctorError(message, hint=hint, exit_code=observed.exit_code or 1)


def _explain(observed: Observed, kinds: set[str], error: str | None) -> tuple[str, str | None]:
    if observed.standstill is not None:
        return f"{observed.standstill}; it was ended", "a longer --seconds waits longer"
    is_told = observed.interrupted or error is not None
    if not is_told and shutil.disk_usage(observed.run_folder).free < _LEAST_BYTES:
        folder = observed.run_folder.parent
        return f"{folder} is full, so nothing could be recorded", "make room, or set TMPDIR to another folder"
    if not kinds:
        return _explain_silence(observed)
    if observed.interrupted:
        return "interrupted before the first batch: there is nothing to say yet", None
    if observed.exit_code or error:
        because = f": {_first_line(error)}" if error else ""
        return f"the command {describe_end(observed)} before its first batch{because}", None
    if "torch" not in kinds:
        return (
            "the command never imported torch, so there was no data loading to watch",
            f"the doctor examines programs that load data with a {LOADERS}",
        )
    if "loader" not in kinds:
        return (
            f"the command never made a {LOADERS}, so there was no data loading to watch",
            "data that a script loads by other means is not seen",
        )
    return "the command made a loader, but never took a batch from it", None


def _explain_alone(observed: Observed, alone: Mapping[str, Any]) -> tuple[str, str]:
    """Say what a training took whose data came from nowhere that can be seen."""
    steps, step_s = int(alone["optimizer_steps"]), float(alone["step_s"])
    message = (
        f"the command made {steps:,} optimizer steps, {format_seconds(step_s)} each, and asked no {LOADERS} "
        f"for a batch{_split_alone(observed)}"
    )
    return message, "data that a script loads by other means is not seen: give it to one of these"


def _split_alone(observed: Observed) -> str:
    """Say where the time of the timed steps went, in words; empty: too few were timed."""
    main = next(iter(read_run(observed.run_folder).mains), None)
    if main is None or len(steps := main.of(layout.OPTIMIZER, phase=layout.REAL)) < 2:
        return ""
    first, last = (int(step["start"] + step["wall"]) for step in (steps[0], steps[-1]))
    shares = {}
    for kind in (layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER):
        records = main.of(kind, phase=layout.REAL)
        inside = records[(records["start"] >= first) & (records["start"] < last)]
        shares[PARTS[kind]] = float(inside["wall"].sum()) / max(last - first, 1)
    rest = max(1 - sum(shares.values()), 0.0)
    words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return f": {words}, all else {rest:.0%}, what it does for its data included"


def _explain_silence(observed: Observed) -> tuple[str, str | None]:
    message = "no Python process of this command loaded the hook, so nothing was seen"
    if observed.interrupted:
        message = "interrupted before a Python process of this command had loaded the hook: nothing was seen"
    elif observed.exit_code:
        message += f"; the command {describe_end(observed)}"
    return message, _suggest(observed.command)


def _suggest(command: Sequence[str]) -> str | None:
    call = read_python_call(command)
    blind = [letter for letter in "IES" if call is not None and letter in call.flags]
    if blind:
        return f"Python started with -{blind[0]} ignores it: leave that option out"
    if call is not None:
        return "is PYTHONPATH changed, or Python started again without it?"
    for word in command:
        if (name := os.path.basename(word)) in _DROPS_THE_ENVIRONMENT:
            return _DROPS_THE_ENVIRONMENT[name]
    return "give it the training command: feedrate doctor -- python train.py ..."


def describe_end(observed: Observed) -> str:
    """Return `ended with exit code 3`, `was ended by SIGKILL (out of memory?)`."""
    if observed.signal is None:
        return f"ended with exit code {observed.exit_code}"
    try:
        name = signal.Signals(observed.signal).name
    except ValueError:
        name = f"signal {observed.signal}"
    return f"was ended by {name}" + (" (out of memory?)" if observed.signal == signal.SIGKILL else "")


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= 300 else line[:300] + " ..."
