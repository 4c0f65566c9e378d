# SPDX-License-Identifier: Apache-2.0
"""Runs small scripts with the doctor's hook in them, and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.doctor.analyse.records import Process, Recording, read_run
from feedrate.doctor.hook.feedrate_hook import layout
from support.torch_forks import PYTHONPATH, run_in_fork

# What a training script needs; tests put their own dataset and loop below it.
PREAMBLE = """
import os, random, sys, warnings
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
torch.set_num_threads(1)
warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has cores

class Numbers(Dataset):
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, index): return torch.full((4,), float(index)), index % 2
"""


@dataclass(frozen=True)
class Run:
    """A script that ran: what it said, and what the hook wrote."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    recording: Recording

    @property
    def main(self) -> Process:
        (main,) = [p for p in self.recording.processes if p.is_main]
        return main

    @property
    def workers(self) -> list[Process]:
        return [p for p in self.recording.processes if p is not self.main and len(p.of(layout.FETCH))]

    def facts(self, kind: str) -> list[Any]:
        return list(self.recording.facts_of(kind))


def environment(folder: Path | None, **more: str) -> dict[str, str]:
    """Return the environment of a hooked process, or of a bare one."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", layout.ENVIRONMENT)}
    if folder is not None:
        kept.update({"PYTHONPATH": PYTHONPATH, layout.ENVIRONMENT: str(folder)})
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def make_run_folder(tmp_path: Path, **settings: Any) -> Path:
    folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
    folder.mkdir()
    text = json.dumps({"version": 1, "passive": True, "stack_hz": 50, "run": str(folder), **settings})
    (folder / "settings.json").write_text(text)
    return folder


def run_script(
    tmp_path: Path,
    body: str,
    *arguments: str,
    is_hooked: bool = True,
    is_forked: bool = True,
    python: str = sys.executable,
    **more: Any,
) -> Run:
    """Run a script to its end, hooked or bare. `settings` and `environ` add to those.

    A hooked one that needs torch is a fork of a process that has it, unless `is_forked` is False.
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    folder = make_run_folder(tmp_path, **more.get("settings", {}))
    environ = environment(folder if is_hooked else None, **more.get("environ", {}))
    if is_forked and is_hooked and "import torch" in body:
        ended = run_in_fork(tmp_path, [str(script), *arguments], environ)
        return Run(ended.code, ended.output, ended.errors, folder, read_run(folder))
    command = [python, str(script), *arguments]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    return Run(done.returncode, done.stdout, done.stderr, folder, read_run(folder))


def names_of(process: Process, kind: int) -> list[str]:
    return [process.name(record["name"]) for record in process.of(kind)]
