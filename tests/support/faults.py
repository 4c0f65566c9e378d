# SPDX-License-Identifier: Apache-2.0
"""Commands with one fault each: the n-th call that changes a file of theirs fails, and they are run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import TESTS

# A child per fault, since starting Python takes longer than all the rest. Each works on a copy of its own of
# what is in `start`, and another child runs the command there again, without a fault.
_RUN = """
import ctypes, json, os, shutil, sys, traceback
from pathlib import Path
from feedrate.cli import main
import feedrate.packing, feedrate.packing.build.engine, feedrate.packing.change.append
import feedrate.packing.change.columns, feedrate.packing.change.split
import feedrate.packing.check.unpack, feedrate.packing.indexing.local, feedrate.scratch.commands
import feedrate.report.pack, feedrate.report.check, feedrate.report.scratch
import feedrate.report.progress, h5py, pyarrow
faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
faults.faults_where.restype = ctypes.c_char_p
top, before, command, first, last = json.loads(sys.argv[1])

def run(words, here, number):
    told, telling = os.pipe()
    child = os.fork()
    if not child:
        os.chdir(here)
        log = open(f"{here}.log", "a", buffering=1)
        os.dup2(log.fileno(), 2)
        sys.stderr = log
        sys.stdout = open(os.devnull, "w")
        if number is not None:
            faults.faults_arm(os.fsencode(here), ctypes.c_long(number))
        try:
            code = main(words)
        except BaseException:
            traceback.print_exc()
            code = 70
        where = faults.faults_where().decode(errors="replace")
        os.write(telling, json.dumps([code, faults.faults_seen(), where]).encode())
        os._exit(0)
    os.close(telling)
    with open(told) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    said = Path(f"{here}.log").read_text(errors="replace")
    Path(f"{here}.log").unlink()
    return [*(json.loads(text) if text else [-1, 0, ""]), said]

number = first
while number <= last:
    here = f"{top}/at-{number}"
    shutil.copytree(f"{top}/start", here, symlinks=True)
    for words in before:
        code, _, _, said = run(words, here, None)
        assert code == 0, said
    broken = run(command, here, number)
    again = run(command, here, None) if number else broken
    print(json.dumps([number, *broken, again[0], again[3]]), flush=True)
    if number and broken[1] < number:
        break
    number += 1
"""


@dataclass(frozen=True)
class Trial:
    """A command with one fault.

    Attributes:
        call: that failed, and on which file; "": the command ended before.
        code, said: how it ended, and its messages. `code_again`, `said_again`: without the fault, after it.
        folder: where it worked.
    """

    number: int
    code: int
    calls: int
    call: str
    said: str
    code_again: int
    said_again: str
    folder: Path


@pytest.fixture(scope="session")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here, and faults are injected by a small library")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, TESTS / "support" / "faults.c", "-ldl"], check=True
    )
    return library


def run_with_faults(
    top: Path,
    injector: Path,
    command: list[str],
    before: list[list[str]],
    *,
    first: int = 1,
    last: int = 10_000,
) -> list[Trial]:
    """Run a command in copies of `top`/start, once per call that can fail; 0: no call does."""
    environ = {**os.environ, "LD_PRELOAD": str(injector), "XDG_STATE_HOME": str(top / "state")}
    given = json.dumps([str(top), before, command, first, last])
    done = subprocess.run(
        [sys.executable, "-c", _RUN, given], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    trials = []
    for line in done.stdout.splitlines():
        number, code, calls, call, said, code_again, said_again = json.loads(line)
        folder = top / f"at-{number}"
        trials.append(Trial(number, code, calls, call, said, code_again, said_again, folder))
    return trials
