# SPDX-License-Identifier: Apache-2.0
"""Runs training scripts of a few lines with the doctor's hook and its experiments."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.doctor.analyse.records import Recording, read_run
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.machine.process import list_processes, read_command_line, read_environ, read_stat
from support.torch_forks import PYTHONPATH, Ended, run_in_fork

LIBRARIES = ("torchinductor", "torchelastic")  # their folders stay without us, too
STEPS = 20  # real steps before the experiments
BATCH = 4

# What every script begins with. When the guard goes up, all that the script wrote is on the disk, and is
# copied, to be compared with what is there at the end.
PRELUDE = f"""
import os, shutil, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has cores

STEPS, BATCH = {STEPS}, {BATCH}
os.makedirs("out", exist_ok=True)

def copy_first(put_up):
    def copy_and_put_up(self):
        self.flush()
        shutil.copytree("out", "before", dirs_exist_ok=True)
        put_up(self)
    return copy_and_put_up

if __name__ == "__main__" and os.environ.get("FEEDRATE_DOCTOR"):
    from feedrate_hook.guard.guard import Guard
    Guard.put_up = copy_first(Guard.put_up)

class Numbers(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 2

def make(**options):
    return DataLoader(Numbers(), batch_size=BATCH, shuffle=True, **options)

torch.set_num_threads(1)
if __name__ == "__main__":  # workers that are spawned need neither
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

def train(x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


# Writes in every way that Python code has, at every step.
SAVERS = """
import csv, glob, io, json, logging, pathlib, pickle, tempfile, threading, zipfile
import numpy
from PIL import Image
from torch import save

out = pathlib.Path("out")
logging.basicConfig(filename="out/log.txt", level=logging.INFO)
lines = open("out/lines.txt", "w")  # never flushed: what it holds at the first experiment must reach the disk
table = csv.writer(open("out/table.csv", "w", newline=""))
raw = os.open("out/raw.bin", os.O_WRONLY | os.O_CREAT)
(out / "kept").mkdir()

for step, (x, y) in enumerate(make()):
    loss = train(x, y)
    text = f"{step} {loss}"
    logging.info(text)
    lines.write(text + chr(10))
    table.writerow([step, loss])
    os.write(raw, text.encode())
    torch.save(model.state_dict(), f"out/step{step}.pt")
    if os.path.exists(f"out/step{step - 2}.pt"):
        os.remove(f"out/step{step - 2}.pt")
    save(model.state_dict(), "out/by_name.pt")
    with open("out/new.pt", "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("out/new.pt", "out/replaced.pt")
    numpy.save("out/array.npy", x.numpy())
    numpy.savez("out/arrays.npz", x=x.numpy())
    numpy.savetxt("out/array.txt", x.numpy())
    x.numpy().tofile("out/array.bin")
    Image.new("RGB", (4, 4), (step % 255, 0, 0)).save("out/image.png")
    (out / "text.txt").write_text(text)
    (out / f"step{step}").mkdir(exist_ok=True)
    if step:
        shutil.rmtree(out / f"step{step - 1}")
    shutil.copy("out/text.txt", f"out/kept/{step}.txt")
    for old in sorted(glob.glob("out/kept/*"), key=os.path.getmtime)[:-3]:
        pathlib.Path(old).unlink()
    pickle.dump(text, open("out/object.pkl", "wb"))
    json.dump(text, open("out/object.json", "w"))
    with zipfile.ZipFile("out/archive.zip", "a") as archive:
        archive.writestr(f"{step}.txt", text)
    with tempfile.NamedTemporaryFile(dir="out", suffix=".tmp", delete=False) as file:
        file.write(text.encode())
    os.rename(file.name, "out/renamed.tmp")
    thread = threading.Thread(target=lambda: pathlib.Path("out/thread.txt").write_text(text))
    thread.start()
    thread.join()
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)  # in memory it is no harm
    assert torch.load(io.BytesIO(memory.getvalue()))
    os.symlink("text.txt", f"out/link{step}")
    os.truncate("out/renamed.tmp", 1)
"""


@dataclass(frozen=True)
class Run:
    """A script that has ended."""

    folder: Path
    code: int
    output: str
    errors: str
    facts: tuple[dict[str, Any], ...]
    leftovers: tuple[str, ...]
    recording: Recording

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["kind"] == kind]

    def phases(self) -> list[int]:
        return [fact["phase"] for fact in self.of("phase")]

    def detail(self, phase: int) -> dict[str, Any]:
        found: dict[str, Any] = next(f["detail"] for f in self.of("phase") if f["phase"] == phase)
        return found

    def waits(self, phase: int) -> int:
        """How many batches were waited for in a phase, by the records."""
        waits = [process.of(layout.WAIT, phase=phase) for process in self.recording.processes]
        return sum(int((one["a"] >= 0).sum()) for one in waits)

    def blocked(self) -> str:
        return "\n".join(fact["what"] for fact in self.of("blocked"))

    def tree(self, name: str) -> dict[str, bytes | None]:
        """Every file under a folder of the script with its bytes; folders with None."""
        root = self.folder / name
        return {
            str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
            for path in sorted(root.rglob("*"))
        }


def run_script(
    folder: Path,
    body: str,
    *,
    launcher: Sequence[str] = (),
    prelude: str = PRELUDE,
    settings: dict[str, Any] | None = None,
    timeout_s: float = 400.0,
    python: str = sys.executable,
    is_forked: bool = True,
) -> Run:
    """Run prelude and body in `folder`. Every experiment takes a twentieth of a second.

    The script is a fork of a process that has torch, unless it has a launcher, another Python, or `is_forked`
    is False.
    """
    script = folder / "train.py"
    script.write_text(prelude + textwrap.dedent(body))
    began_s = script.stat().st_mtime
    # Short: sockets of workers lie in both, and the path of a socket ends at 107 characters. Longer ones lose
    # their batches, and the loop waits for them for ever.
    with tempfile.TemporaryDirectory(prefix="fr-") as run, tempfile.TemporaryDirectory() as temporary:
        values = {
            "version": 1, "passive": False, "steps": STEPS, "warmup": 2, "seconds": 45.0, "stack_hz": 50,
            "run": run, "usable_cores": 2, "try_workers": [], "experiment_seconds": 0.05,
        }  # fmt: skip
        Path(run, "settings.json").write_text(json.dumps({**values, **(settings or {})}))
        environment = {
            **os.environ,
            layout.ENVIRONMENT: run,
            "PYTHONPATH": PYTHONPATH,
            "TMPDIR": temporary,
            "OMP_NUM_THREADS": "1",
        }
        if is_forked and python == sys.executable and not launcher:
            done = run_in_fork(folder, [str(script)], environment, timeout_s=timeout_s)
        else:
            done = run_alone(folder, [python, *launcher, str(script)], environment, timeout_s=timeout_s)
        facts = [
            json.loads(line)
            for path in sorted(Path(run).glob("*.facts"))
            for line in path.read_text().splitlines()
        ]
        facts.sort(key=lambda fact: int(fact["t_ns"]))
        recording = read_run(Path(run))
        leftovers = find_leftovers(Path(temporary), done.pid, run, facts, began_s)
    return Run(folder, done.code, done.output, done.errors, tuple(facts), tuple(leftovers), recording)


def run_alone(folder: Path, command: Sequence[str], environ: dict[str, str], *, timeout_s: float) -> Ended:
    """Run a command in a process of its own, with all that it imports."""
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.pid, process.returncode, output, errors)


def find_leftovers(
    temporary: Path,
    session: int,
    run: str,
    facts: Sequence[dict[str, Any]],
    began_s: float,
    *,
    within_s: float = 60.0,
) -> list[str]:
    """What a script left behind. Processes on their way out, and what they remove then, are waited for."""
    deadline = time.monotonic() + within_s
    while True:
        found = [name for name in os.listdir(temporary) if not name.startswith(LIBRARIES)]
        found += [*processes_of(session, run), *left_in_memory(facts, began_s)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def processes_of(session: int, run: str) -> list[str]:
    """Processes of the script's session, or with its run folder in their environment; no zombies."""
    found = []
    for pid in list_processes():
        stat = read_stat(pid)
        if stat is None or stat.state in ("Z", "X"):
            continue
        if stat.session == session or read_environ(pid, layout.ENVIRONMENT) == run:
            found.append(f"{stat.state} {' '.join(read_command_line(pid)) or stat.name}")
    return found


def left_in_memory(facts: Iterable[dict[str, Any]], began_s: float) -> list[str]:
    """What torch still shares between processes, torch_PID_..., of those that this run had.

    Older ones were made by others, who had the same numbers and were killed.
    """
    own = tuple(f"torch_{fact['pid']}_" for fact in facts if fact["kind"] == "process")
    found = []
    for name in os.listdir("/dev/shm"):
        with contextlib.suppress(FileNotFoundError):
            if name.startswith(own) and os.stat(f"/dev/shm/{name}").st_ctime >= began_s - 1:
                found.append(name)
    return found
