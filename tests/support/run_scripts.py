# SPDX-License-Identifier: Apache-2.0
"""Runs small scripts with the hook of `feedrate run` in them, and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import feedrate
from feedrate.hooking import launch
from feedrate.kernel.binding import native
from feedrate.run import hook
from feedrate.run.hook.feedrate_run import SETTINGS, VARIABLE
from feedrate.run.results import LoaderReport
from feedrate.run.saved import Fact, read_facts, report_loaders

STARTUP = Path(launch.__file__).parent / "startup"
HOOK = Path(hook.__file__).parent

# A dataset that takes a tenth of the work where its images would be recipes. What makes Pillow ready is
# replaced: it says what the environment's ARMING says.
PREAMBLE = """
import hashlib, json, os, random, sys, types, warnings
arming = types.ModuleType("feedrate.run.inside.arming")
arming.arm = lambda settings, watch, note: os.environ.get("ARMING", "")
sys.modules[arming.__name__] = arming

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has cores

def are_recipes():
    switch = sys.modules.get("feedrate.run.inside.switch")
    return switch is not None and switch.is_on

def make_image():
    sum(range(3_000 if are_recipes() else 30_000))
    if are_recipes():
        sys.modules["feedrate.run.inside.counters"].take()

class Quick(Dataset):
    def __init__(self, length=40): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, index):
        make_image()
        return self.draw(index)
    def draw(self, index):
        return index, random.random(), np.random.random(), torch.rand(2, 3)

def states():
    text = repr((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))
    return hashlib.sha256(text.encode()).hexdigest()

def epochs(loader, count=2):
    digest = hashlib.sha256()
    for _ in range(count):
        for batch in loader:
            digest.update(repr([part.tolist() for part in batch]).encode())
    return digest.hexdigest(), states()
"""


@dataclass(frozen=True)
class Ran:
    """A script that ended: what it said, and its run folder."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def said(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("feedrate run: ")]

    @property
    def facts(self) -> list[Fact]:
        return read_facts(self.folder)

    def of_kind(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact["kind"] == kind]

    def loader(self, dataset: str) -> LoaderReport:
        (found,) = [one for one in report_loaders(self.folder, self.facts) if one.dataset == dataset]
        return found


def make_run_folder(folder: Path, **settings: Any) -> Path:
    """Make a run's folder, with settings as the launcher writes them."""
    folder.mkdir()
    whole = {
        "package": str(Path(feedrate.__file__).resolve().parent),
        "native": native.__file__,
        "python": list(sys.version_info[:2]),
        "prove": None,
        "cache": "",
        "strict": False,
        **settings,
    }
    (folder / SETTINGS).write_text(json.dumps(whole))
    return folder


def environment(folder: Path | None, **more: str) -> dict[str, str]:
    """Return the environment of a process under a run, or of a bare one."""
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", VARIABLE)}
    if folder is not None:
        kept |= {"PYTHONPATH": f"{STARTUP}{os.pathsep}{HOOK}", VARIABLE: str(folder)}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def start_script(path: Path, body: str, folder: Path | None, **environ: str) -> subprocess.Popen[str]:
    path.write_text(textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(path)],
        env=environment(folder, **environ),
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_script(process: subprocess.Popen[str], folder: Path) -> Ran:
    stdout, stderr = process.communicate(timeout=120)
    return Ran(process.returncode, stdout, stderr, folder)
