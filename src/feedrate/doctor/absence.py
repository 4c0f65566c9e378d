# SPDX-License-Identifier: Apache-2.0
"""A run in which there was nothing to examine: which of the reasons was it?"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence

from feedrate.doctor.command import read_python_call
from feedrate.doctor.facts import read_facts
from feedrate.doctor.launch import Observed
from feedrate.errors import DoctorError

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
    error: str | None = None
    for fact in read_facts(observed.run_folder):
        kinds.add(str(fact.get("kind")))
        if fact.get("kind") == "end" and fact.get("error"):
            error = str(fact["error"])
    if "batch" in kinds:
        return
    message, hint = _explain(observed, kinds, error)
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
            "the doctor examines programs that load data with a torch DataLoader",
        )
    if "loader" not in kinds:
        return (
            "the command never made a DataLoader, so there was no data loading to watch",
            "data that a script loads by other means is not seen",
        )
    return "the command made a DataLoader, but never took a batch from it", None


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
