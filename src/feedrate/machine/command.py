# SPDX-License-Identifier: Apache-2.0
"""Can this command be run at all? Mistakes are answered before anything starts."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

from feedrate.errors import NotFound, UsageError, suggest_path

_PYTHON = re.compile(r"(python|pypy)[0-9.]*[a-z]?")
_TAKE_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def check_command(command: Sequence[str], ours: str) -> None:
    """Refuse a command that cannot run, and guess the one that was meant; `ours`: "feedrate doctor".

    Raises:
        UsageError, NotFound: nothing to run, no such program, no such script; a job that only gets queued.
    """
    if not command or not command[0]:
        raise UsageError("nothing to run", hint=f"{ours} -- python train.py ...")
    program = command[0]
    if os.path.basename(program) == "sbatch":
        raise UsageError(
            "sbatch only queues a job, so there is nothing to watch",
            hint=f"inside the batch script, put '{ours} --' before the training command; or: "
            f"{ours} -- srun python train.py ...",
        )
    if shutil.which(program) is None:
        raise NotFound(f"no program '{program}'", hint=_suggest_program(program, command, ours))
    call = read_python_call(command)
    if call is not None and call.script is not None and not os.path.exists(call.script):
        raise NotFound(f"no script at {call.script}", hint=suggest_path(call.script))


def explain_failure(program: str, error: OSError) -> UsageError:
    """Return why a program that is there was not started."""
    is_script = error.errno in (errno.ENOEXEC, errno.ENOENT)
    hint = "a script must begin with its interpreter: #!/usr/bin/env bash" if is_script else None
    return UsageError(f"cannot run {program}: {error.strerror}", hint=hint)


def _suggest_program(program: str, command: Sequence[str], ours: str) -> str | None:
    is_script = program.endswith(".py")
    if os.path.isdir(program):
        return f"{program} is a folder; name a program: {ours} -- python train.py ..."
    if os.path.isfile(program):
        rest = " ".join([program, *command[1:]])
        if is_script:
            return f"{program} is a script: {ours} -- python {rest}"
        return f"{program} is a file, but not one that can be run: chmod +x {program}"
    if os.sep in program:
        return suggest_path(program)
    near = difflib.get_close_matches(program, sorted(_list_programs()), n=1, cutoff=0.7)
    return f"did you mean '{near[0]}'?" if near else None


def _list_programs() -> set[str]:
    names = {"python", "python3", "torchrun"}
    for folder in os.get_exec_path():
        try:
            names.update(os.listdir(folder))
        except OSError:
            continue
    return names


@dataclass(frozen=True, slots=True)
class PythonCall:
    """How a command line calls Python. `script`: None for -c, -m and standard input.

    `program`: the script, the module, or the code; empty: standard input.
    """

    flags: str  # the letters of all short options without a value: "IuB"
    script: str | None
    program: str = field(default="", compare=False)


def read_python_call(command: Sequence[str]) -> PythonCall | None:
    """Return how the command calls Python; None when its first word is not Python."""
    if not command or _PYTHON.fullmatch(os.path.basename(command[0])) is None:
        return None
    flags = ""
    words = iter(command[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            return PythonCall(flags, None) if word == "-" else PythonCall(flags, word, word)
        if word in _TAKE_A_VALUE:
            next(words, None)
        elif not word.startswith("--") and word[1] not in "WX":
            letters = word[1:]
            for position, letter in enumerate(letters):
                if letter in "cm":
                    return PythonCall(flags, None, letters[position + 1 :] or next(words, ""))
                if letter in "WX":
                    if position == len(letters) - 1:
                        next(words, None)
                    break
                flags += letter
    return PythonCall(flags, None)
