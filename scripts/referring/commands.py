# SPDX-License-Identifier: Apache-2.0
"""Runs every command: its help, its result as text and JSON, the files it writes, the answers to mistakes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from referring.data import damage, freeze_times
from referring.normalise import Normaliser, shape

TIMEOUT_S = 150


@dataclass(frozen=True)
class Step:
    """One command of the story that `STEPS` tell.

    Attributes:
        command: the words behind `feedrate`.
        pack: the folder whose files are then hashed; empty: none.
        is_measured: figures in text and JSON are those of this moment: only names are kept.
        has_json: the command takes --json.
    """

    command: str
    pack: str = ""
    is_measured: bool = False
    has_json: bool = True


FIELDS = (
    "--labels table/labels.csv --field mask:mask --field features:array --field caption:text "
    "--field age:number --field boxes:boxes"
)
STEPS = (
    Step("pack photos photos.pack --workers 1", "photos.pack"),
    Step("pack photos two.pack --workers 2 --shard-size 100KB --seed 3", "two.pack"),
    Step("pack photos strict.pack --workers 1 --strict", "strict.pack"),
    Step("pack photos tfrecord.pack --workers 1 --format tfrecord --shard-size 200KB", "tfrecord.pack"),
    Step("pack photos hdf5.pack --workers 1 --format hdf5", "hdf5.pack"),
    Step("pack photos raw.pack --workers 1 --raw --resize 64", "raw.pack"),
    Step("pack equals equals-raw.pack --workers 1 --raw", "equals-raw.pack"),
    Step("pack photos resized.pack --workers 1 --resize 100 --quality 80", "resized.pack"),
    Step("pack photos max-side.pack --workers 1 --max-side 120", "max-side.pack"),
    Step("pack photos quality.pack --workers 1 --quality 70", "quality.pack"),
    Step("pack photos normal.pack --workers 1 --normalise", "normal.pack"),
    Step("pack photos kept.pack --workers 1 --keep-truncated", "kept.pack"),
    Step("pack photos no-scan.pack --workers 1 --no-scan", "no-scan.pack"),
    Step("pack photos entries.pack --workers 1 --entries gpu", "entries.pack"),
    Step("pack photos entries-400.pack --workers 1 --entries 400", "entries-400.pack"),
    Step("pack equals equals.pack --workers 1 --shard-size 40KB", "equals.pack"),
    Step("pack equals mapped.pack --workers 1 --map maps:darker", "mapped.pack"),
    Step("pack equals.zip zip.pack --workers 1", "zip.pack"),
    Step("pack list.txt list.pack --workers 1", "list.pack"),
    Step(f"pack table table.pack --workers 1 {FIELDS}", "table.pack"),
    Step(f"pack table table-hdf5.pack --workers 1 --format hdf5 {FIELDS}", "table-hdf5.pack"),
    Step(f"pack table table-tfrecord.pack --workers 1 --format tfrecord {FIELDS}", "table-tfrecord.pack"),
    Step(
        "pack table tags.pack --workers 1 --labels table/labels.csv --label-column tags "
        "--label-separator '|'",
        "tags.pack",
    ),
    Step("pack webdataset webdataset.pack --workers 1", "webdataset.pack"),
    Step("pack arrays.h5 arrays.pack --workers 1", "arrays.pack"),
    Step("pack images.parquet parquet.pack --workers 1", "parquet.pack"),
    Step("index webdataset webdataset.index --workers 1", "webdataset.index"),
    Step("index webdataset/train-000.tar --workers 1", "webdataset/train-000.tar.index"),
    Step("index photos photos.index --workers 2", "photos.index"),
    Step("index table table.index --labels table/labels.csv --workers 1", "table.index"),
    Step("index arrays.h5 --workers 1", "arrays.h5.index"),
    Step("index tfrecord.pack --entries 300 --workers 1", "tfrecord.pack"),
    Step("index examples examples.index --workers 1", "examples.index"),
    Step("pack examples repacked.pack --workers 1", "repacked.pack"),
    Step("index no-scan.pack --entries gpu --remove-old --workers 1", "no-scan.pack"),
    Step("index equals.pack", ""),
    Step("verify photos.pack --workers 1"),
    Step("verify damaged.pack --workers 1"),
    Step("verify hdf5.pack --workers 1"),
    Step("verify tfrecord.pack --workers 1"),
    Step("verify webdataset.index --workers 1"),
    Step("verify photos.index --workers 2"),
    Step("ls photos.pack --samples 5"),
    Step("ls table.pack --samples 2"),
    Step("ls hdf5.pack"),
    Step("ls arrays.h5.index --samples 2"),
    Step("ls webdataset.index"),
    Step("ls photos.pack --quality --html page.html"),
    Step("ls normal.pack --quality"),
    Step("ls mapped.pack --quality"),
    Step("split equals.pack train=0.8 validation=0.2 --stratify", "equals.pack"),
    Step("split equals.pack --by-path '([0-9])[.]' 0=0.5 1=rest --name fold --seed 4", "equals.pack"),
    Step("split equals.pack --file validation=validation.txt train=rest --name listed", "equals.pack"),
    Step("add-column equals.pack ages.csv --column age", "equals.pack"),
    Step("add-column equals.pack captions.jsonl --kind text --default none", "equals.pack"),
    Step("append more equals.pack --workers 1 --default age=3 --default caption=new", "equals.pack"),
    Step("split equals.pack --extend", "equals.pack"),
    Step("append equals equals.pack --workers 1 --skip-existing --default age=3 --default caption=x"),
    Step("verify equals.pack --workers 1"),
    Step("ls equals.pack --samples 3"),
    Step("append more tfrecord.pack --workers 1", "tfrecord.pack"),
    Step("append more mapped.pack --workers 1 --map maps:darker", "mapped.pack"),
    Step("pack more more.pack --workers 1", "more.pack"),
    Step("append two.pack more.pack"),
    Step("pack photos joined.pack --workers 1", "joined.pack"),
    Step("append two.pack joined.pack"),
    Step("append two.pack joined.pack --prefix two", "joined.pack"),
    Step("verify joined.pack --workers 1"),
    Step("unpack photos.pack unpacked --workers 1", "unpacked"),
    Step("unpack hdf5.pack unpacked-hdf5 --workers 1", "unpacked-hdf5"),
    Step("unpack table.pack unpacked-table --workers 2", "unpacked-table"),
    Step("unpack photos.pack unpacked --workers 1"),
    Step("stage photos.pack --scratch scratch --keep 12h"),
    Step("stage photos.pack --scratch scratch --check"),
    Step("stage table --scratch scratch --keep forever"),
    Step("scratch ls --scratch scratch"),
    Step("scratch ls --everywhere"),
    Step("scratch gc --scratch scratch"),
    Step("scratch rm table --scratch scratch"),
    Step("scratch rm photos.pack --scratch scratch"),
    Step("scratch ls --scratch scratch"),
    Step("stage photos.pack --warm"),
    Step("stage photos.pack --warm --limit 10KB"),
    Step("verify photos.pack --pixels 20 --workers 1"),
    Step("verify hdf5.pack --pixels 20 --workers 1"),
    Step("verify resized.pack --pixels 10 --workers 1"),
    Step("bench loader equals --rounds 1 --epochs 1 --threads 1 --batch-size 8 --size 32", is_measured=True),
    Step("doctor --passive -- python train.py", is_measured=True),
)
# A loop that is long enough for a verdict.
TRAIN = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, number):
        return torch.full((8,), number / 320), number % 2


model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in DataLoader(Noise(), batch_size=8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""
MISTAKES = (
    "",
    "pakc photos x.pack",
    "pack",
    "pack photos",
    "pack photos x.pack --no-such-option",
    "pack photo x.pack",
    "pack no/such/folder x.pack",
    "pack photos photos.pack",
    "pack photos x.pack --shard-size 10XB",
    "pack photos x.pack --shard-size -1",
    "pack photos x.pack --workers 0",
    "pack photos x.pack --workers many",
    "pack photos x.pack --format zip",
    "pack photos x.pack --resize 10 --max-side 20",
    "pack photos x.pack --quality 101",
    "pack photos x.pack --quality 80 --raw",
    "pack photos x.pack --entries few",
    "pack photos x.pack --map maps",
    "pack photos x.pack --map maps:nothing",
    "pack photos x.pack --map nowhere:darker",
    "pack photos x.pack --executor spark",
    "pack photos x.pack --executor dask://nowhere",
    "pack photos x.pack --labels no.csv",
    "pack table x.pack --labels table/labels.csv --label-column nothing",
    "pack table x.pack --labels table/labels.csv --field mask:picture",
    "pack table x.pack --labels table/labels.csv --path-column nothing",
    "pack void x.pack",
    "pack photos x.pack --json q.json",
    "pack photos ages.csv",
    "index",
    "index nowhere",
    "index void",
    "index s3://bucket/train-{00..01}.tar",
    "index images.parquet",
    "verify nowhere",
    "verify photos",
    "verify cut.pack",
    "verify json.pack",
    "verify future.pack",
    "ls nowhere.pack",
    "ls photos",
    "ls json.pack",
    "ls photos.pack --samples none",
    "ls photos --quality",
    "unpack photos",
    "unpack nowhere out",
    "unpack quality.pack ages.csv",
    "unpack two.pack occupied",
    "stage nowhere --warm",
    "stage photos.pack --warm --limit much",
    "append more nowhere.pack",
    "append equals equals.pack",
    "append equals equals.pack --default age=3 --default caption=x",
    "append equals equals.pack --default age=old --default caption=x",
    "append more table.pack",
    "split equals.pack",
    "split equals.pack train=0.8",
    "split equals.pack train=0.8 validation=0.3 --name again",
    "split equals.pack train=0.8 validation=0.2",
    "split equals.pack train=lots validation=rest --name again",
    "split equals.pack --by nothing train=0.5 validation=0.5 --name again",
    "split equals.pack --by-path ( train=0.5 validation=0.5 --name again",
    "split equals.pack --file validation=nowhere.txt train=rest --name again",
    "add-column equals.pack nowhere.csv",
    "add-column equals.pack ages.csv --column nothing",
    "add-column equals.pack ages.csv --column age",
    "add-column zip.pack captions.jsonl --kind text",
    "append photos.pack photos.pack",
    "append nowhere photos.pack",
    "append mapped.pack photos.pack",
    "append two.pack photos.pack --skip-existing",
    "stage nowhere --scratch scratch",
    "pack tfrecord.pack x.pack",
    "stage photos.pack --scratch ages.csv",
    "stage photos.pack --scratch scratch --keep long",
    "stage photos.pack --scratch scratch --rate-limit quick",
    "stage gopher://host/x --scratch scratch",
    "scratch",
    "scratch clear",
    "scratch rm nothing --scratch scratch",
    "scratch ls --scratch nowhere",
    "verify nowhere --pixels 3",
    "verify photos.pack --pixels 0",
    "verify photos.pack --pixels many",
    "ls photos.index --quality",
    "bench",
    "bench nothing",
    "bench loader nowhere",
    "demo --images few",
    "doctor",
    "doctor python",
    "doctor -- nosuchprogram",
    "doctor -- python nowhere.py",
    "doctor -- train.py",
    "doctor --steps 3 -- python train.py",
    "doctor --seconds 0 -- python train.py",
    "doctor --max-slowdown 5% -- python train.py",
    "doctor --verify nowhere.json -- python train.py",
    "doctor --verify ages.csv -- python train.py",
    "doctor --scratch nowhere -- python train.py",
    "doctor -- sbatch job.sh",
    "doctor --passive -- python -c pass",
)


class Runner:
    """Runs feedrate in a folder, in an environment that is the same everywhere."""

    def __init__(self, feedrate: Path, work: Path) -> None:
        self.feedrate, self.work, self.normaliser = feedrate, work, Normaliser(work)
        kept = {name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        path = os.pathsep.join([str(feedrate.parent), "/usr/local/bin", "/usr/bin", "/bin"])
        home = {name: str(work / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        self.environ = {**kept, "PATH": path, "COLUMNS": "80", "TZ": "UTC", "LANG": "C.UTF-8", **home}
        self.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.feedrate), *words], cwd=self.work, env=self.environ, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def report(self, words: list[str], *, is_loose: bool = False) -> dict[str, Any]:
        done = self.run(words)
        return {
            "exit": done.returncode,
            "stdout": self.normaliser.text(done.stdout, loose=is_loose),
            "stderr": self.normaliser.text(done.stderr, loose=is_loose),
        }


def record_help(runner: Runner) -> dict[str, Any]:
    """Return the help of feedrate, of every command that it lists, and of every command below these."""
    found: dict[str, Any] = {}
    waiting: list[list[str]] = [[]]
    while waiting:
        words = waiting.pop(0)
        text = runner.run([*words, "--help"]).stdout
        found[" ".join(["feedrate", *words])] = text.splitlines()
        # The commands stand in groups, each with a heading; what lies below a command, behind the word WHAT.
        for listed in re.findall(r"^(?:[a-z ]+:|  WHAT)\n((?:    .*\n?)+)", text, re.MULTILINE):
            waiting += [[*words, name] for name in re.findall(r"^    ([a-z-]+)  ", listed, re.MULTILINE)]
    found["feedrate --version"] = runner.run(["--version"]).stdout.splitlines()
    return found


def record_steps(runner: Runner) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the commands say, and the hashes of the files that they write."""
    said: dict[str, Any] = {}
    packs: dict[str, Any] = {}
    (runner.work / "train.py").write_text(TRAIN)
    (runner.work / "scratch").mkdir()
    for number, step in enumerate(STEPS):
        prepare_step(runner.work, step.command)
        words = shlex.split(step.command)
        target = runner.work / f"{number}.json"
        if step.has_json:
            at = words.index("--") if "--" in words else len(words)
            words[at:at] = ["--json", target.name]
        name = f"{number:02} {step.command}"
        report = runner.report(words, is_loose=step.is_measured)
        if target.exists():
            document = json.loads(target.read_text())
            report["json"] = shape(document) if step.is_measured else runner.normaliser.document(document)
        if step.is_measured and step.command.startswith("doctor"):
            report = {"exit": report["exit"], "json": sorted(report["json"])}
        said[name] = report
        if step.pack:
            packs[name] = hash_files(runner.work / step.pack)
    return said, packs


def prepare_step(work: Path, command: str) -> None:
    """Make what a step needs of the packs that others have made."""
    if command.startswith("verify damaged"):
        damage(work / "photos.pack", work / "damaged.pack")
    elif command.startswith("index examples"):
        (work / "examples").mkdir()
        for shard in sorted((work / "table-tfrecord.pack").glob("*.tfrecord")):
            shutil.copy(shard, work / "examples")
        freeze_times(work / "examples")


def record_mistakes(runner: Runner) -> dict[str, Any]:
    """Return what feedrate says of commands that are wrong."""
    work = runner.work
    (work / "void").mkdir()
    (work / "q.json").write_text("{}")
    for name, content in (
        ("json.pack", b"{"),
        ("future.pack", b'{"format": "feedrate-pack", "version": 99}'),
    ):
        shutil.copytree(work / "quality.pack", work / name)
        (work / name / "pack.json").write_bytes(content)
    shutil.copytree(work / "quality.pack", work / "cut.pack")
    shard = min((work / "cut.pack").glob("*.tar"))
    os.truncate(shard, shard.stat().st_size // 2)
    (work / "occupied" / "cat").mkdir(parents=True)
    (work / "occupied" / "cat" / "baseline.jpg").write_bytes(b"something else")
    return {mistake or "(nothing)": runner.report(mistake.split()) for mistake in MISTAKES}


def record_interrupted(runner: Runner) -> dict[str, Any]:
    """Return the files of packs that were killed and resumed, and of one that Dask made."""
    packs: dict[str, Any] = {}
    for name, options in (("tar", ""), ("tfrecord", "--format tfrecord"), ("hdf5", "--format hdf5")):
        command = f"pack equals killed-{name}.pack --workers 1 --shard-size 30KB --map maps:slowly {options}"
        kill_after_first_shard(runner, command.split(), runner.work / f"killed-{name}.pack")
        done = runner.run(command.split())
        packs[f"killed: {command}"] = {
            "exit": done.returncode,
            **hash_files(runner.work / f"killed-{name}.pack"),
        }
    with dask_cluster(runner) as address:
        if address:
            command = f"pack equals dask.pack --workers 1 --shard-size 40KB --executor {address}"
            done = runner.run(command.split())
            packs["dask: pack equals"] = {"exit": done.returncode, **hash_files(runner.work / "dask.pack")}
    return packs


def kill_after_first_shard(runner: Runner, words: list[str], folder: Path) -> None:
    """Start a pack and kill all its processes as soon as a shard is there.

    Raises:
        RuntimeError: it ended before.
    """
    process = subprocess.Popen(
        [str(runner.feedrate), *words], cwd=runner.work, env=runner.environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if any(folder.glob("shard-*")) or any(folder.glob("part-*")):  # HDF5 has parts until it is joined
            break
        time.sleep(0.02)
    is_early = process.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if not is_early or (folder / "pack.json").exists():
        raise RuntimeError(f"'feedrate {' '.join(words)}' ended before it could be killed")


@contextmanager
def dask_cluster(runner: Runner) -> Iterator[str]:
    """Start a scheduler and a worker of Dask's; give its address, or nothing where Dask is not installed."""
    dask, at = Path(sys.executable).parent / "dask", runner.work / "scheduler.json"
    if not dask.exists():
        yield ""
        return
    options = {"cwd": runner.work, "env": runner.environ, "stdout": subprocess.DEVNULL}
    commands = (
        ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
        ["worker", "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"],
    )
    started = []
    try:
        for command in commands:
            words = [str(dask), *command, "--scheduler-file", str(at)]
            started.append(subprocess.Popen(words, stderr=subprocess.DEVNULL, **options))  # type: ignore[call-overload]
            while not at.exists() and started[0].poll() is None:
                time.sleep(0.05)
        yield json.loads(at.read_text())["address"].replace("tcp://", "dask://")
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a folder, by its path."""
    if not folder.is_dir():
        return {"(no folder)": ""}
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
