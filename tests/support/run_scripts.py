# SPDX-License-Identifier: Apache-2.0
"""Runs small scripts with the hook of `feedrate run` in them, and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
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
from support.images import save_image

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
    return switch is not None and switch.here.is_on

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


@dataclass(frozen=True)
class Ended:
    """A command that ended, bare or under `feedrate run`; under it, `report` is its document."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    def loader(self, dataset: str) -> dict[str, Any]:
        (found,) = [one for one in self.report["loaders"] if one["dataset"] == dataset]
        return dict(found)


def start_command(
    tmp: Path,
    script: Path,
    *words: str,
    is_under: bool,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
    has_group: bool = False,
    packages: Path | None = None,
) -> subprocess.Popen[str]:
    """Start a Python script as users do: bare, or under `feedrate run` with these options.

    `launcher`: modules and words before the script; `has_group`: it heads a process group of its own;
    `packages`: a folder that comes before those of its Python.
    """
    command = [sys.executable, *launcher, str(script), *words]
    if is_under:
        ours = [sys.executable, "-m", "feedrate", "run", "--json", str(script.with_suffix(".json"))]
        command = [*ours, *options, "--", *command]
    return subprocess.Popen(
        command,
        env=environment(None, XDG_CACHE_HOME=str(tmp / "cache"), PYTHONPATH=str(packages or "")),
        cwd=tmp,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=has_group,
    )


def end_command(process: subprocess.Popen[str], script: Path) -> Ended:
    stdout, stderr = process.communicate(timeout=300)
    document = script.with_suffix(".json")
    report = json.loads(document.read_text()) if document.exists() else {}
    document.unlink(missing_ok=True)
    return Ended(process.returncode, stdout, stderr, report)


def run_both(
    tmp: Path,
    body: str,
    *words: str,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
    packages: Path | None = None,
) -> tuple[Ended, Ended]:
    """Run a script bare and under run, at once; see `start_command`."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent(body))
    bare, under = (
        start_command(
            tmp, script, *words, is_under=is_under, options=options, launcher=launcher, packages=packages
        )
        for is_under in (False, True)
    )
    return end_command(bare, tmp / "none"), end_command(under, script)


# Photographs of a folder through crops, resizes and flips, by hand and as public scripts do it.
PHOTOS = """
import hashlib, io, json, os, random, sys, tarfile, warnings
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has cores
FOLDER = "photos"

class Photos(Dataset):
    filter, mode, size = Image.Resampling.BILINEAR, "RGB", 64
    def __init__(self):
        names = sorted(os.listdir(FOLDER))
        self.samples = [(os.path.join(FOLDER, name), number % 2) for number, name in enumerate(names)]
    def __len__(self): return len(self.samples)
    def open(self, path): return Image.open(path)
    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(self.open(path).convert(self.mode)), label
    def transform(self, image):
        width, height = image.size
        left, top = random.randrange(width - 200), int(torch.randint(height - 180, ()))
        image = image.crop((left, top, left + 180 + int(np.random.randint(20)), top + 170))
        image = image.resize((self.size, self.size), self.filter)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image, copy=True))
        pixels = pixels.permute(2, 0, 1).contiguous().float().div(255)
        return pixels.sub_(torch.tensor([0.485, 0.456, 0.406])[:, None, None]).div_(0.225)

def seed(number):
    random.seed(number), np.random.seed(number), torch.manual_seed(number)

def epochs(loader, count=2):
    digest = hashlib.sha256()
    for _ in range(count):
        for batch in loader:
            for part in batch:
                digest.update(part.numpy().tobytes() + repr(part.stride()).encode())
    return digest.hexdigest()
"""
# What is trained, by one process or by ranks.
TRAINING = """
import torch.distributed as dist
from torch import nn
from torch.utils.data.distributed import DistributedSampler

if __name__ == "__main__":
    seed(2)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 2),
    )
    photos, sampler = Photos(), None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(photos)
        random.seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(photos, batch_size=4, shuffle=sampler is None, sampler=sampler)
    losses = []
    while len(losses) < int(sys.argv[1]):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    with open(f"losses-{os.environ.get('RANK', 0)}-{'feedrate_run' in sys.modules}", "w") as file:
        json.dump(losses, file)
    if sampler is not None:
        dist.destroy_process_group()
"""


def make_photos(folder: Path, count: int = 16) -> None:
    """Save photographs, each in its way: subsamplings, restart markers, a gray one."""
    for number in range(count):
        options: dict[str, Any] = {"subsampling": number % 3, "quality": 80 + number}
        if number % 5 == 1:
            options["restart_marker_blocks"] = 7
        mode = "L" if number == 9 else "RGB"
        save_image(folder / f"{number:03}.jpg", number, width=800, height=600, mode=mode, **options)


def read_losses(tmp: Path, rank: int, is_under: bool) -> list[str]:
    """Return the losses that a rank of TRAINING wrote down, bare or under run."""
    losses: list[str] = json.loads((tmp / f"losses-{rank}-{is_under}").read_text())
    return losses
