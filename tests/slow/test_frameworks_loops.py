# SPDX-License-Identifier: Apache-2.0
"""The training loops of frameworks on a pack: stopped anywhere and resumed, they see every sample once.

The examples run as they stand, on two ranks (gloo). What a training step was given is written down by a
program around them. The libraries live in an environment of their own, whose Python FEEDRATE_LOOPS_PYTHON
names; `.ci/run` makes one.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from support.frameworks import find_loops_python, make_environ
from support.packs import write_images, write_numbers
from support.paths import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SAMPLES, BATCH, EPOCHS = 83, 4, 2
STEPS = 11  # of an epoch on two ranks
SAVED, KILLED = 4, 7  # steps: the checkpoint is of the one, the processes end in the other

# Runs an example. Every batch that a step gets is written down, and the processes end in batch `stop`.
AROUND = """
import functools, importlib.util, json, os, signal, sys
import torch.distributed
import feedrate

path, log, stop, *arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location("example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
feedrate.Loader = functools.partial(feedrate.Loader, fields=("image", "label", "number"))
loss_of, steps = example.loss_of, 0

def write_down(network, batch):
    global steps, held
    held = network
    *rest, numbers = batch
    with open(f"{log}.{torch.distributed.get_rank()}", "a") as file:
        print(json.dumps(numbers.tolist()), file=file)
    steps += 1
    if steps == int(stop):
        os.kill(os.getpid(), signal.SIGKILL)
    return loss_of(network, rest)

example.loss_of = write_down
example.main(arguments)
sys.stdout.flush()
sys.stderr.flush()
# Without Python's own end, and with the network: a thread of Gloo may still free a Python object. It waits
# forever for a process group that is deleted meanwhile, or aborts an interpreter that ends (torch 2.13).
os._exit(0)
"""

# name: the module that must be there, the example, words before the program, words after the example's own
LOOPS = {
    "lightning": ("lightning", "lightning_train.py", (), ("--devices", "2")),
    "accelerate": ("accelerate", "accelerate_train.py", TORCHRUN, ()),
    "trainer": ("transformers", "trainer_train.py", TORCHRUN, ()),
    "ddp": ("torch", "stateful_train.py", TORCHRUN, ()),
    "fsdp": ("torch", "stateful_train.py", TORCHRUN, ("--fsdp",)),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("packs") / "images", count=SAMPLES, side=None)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("packs") / "numbers", SAMPLES)


@pytest.mark.parametrize("name", LOOPS)
def test_an_epoch_killed_in_the_middle_and_resumed_has_every_sample_once(
    name: str, pack: Path, tmp_path: Path
) -> None:
    module, example, before, after = LOOPS[name]
    (tmp_path / "around.py").write_text(AROUND)
    settings = [
        "--out",
        "out",
        "--epochs",
        str(EPOCHS),
        "--batch-size",
        str(BATCH),
        "--save-steps",
        str(SAVED),
    ]

    def run(log: str, stop: int, *more: str) -> list[list[list[int]]]:
        """Return what each rank's steps were given."""
        python = find_loops_python(module)
        command = [python, *before, "around.py", str(EXAMPLES / example), log, str(stop), str(pack)]
        done = subprocess.run(
            [*command, *settings, *after, *more],
            cwd=tmp_path,
            env={**make_environ(), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        # torchrun tells of its killed processes with a status of its own.
        assert done.returncode in ((-signal.SIGKILL, 1) if stop else (0,)), done.stderr[-4000:]
        files = [tmp_path / f"{log}.{rank}" for rank in range(2)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    killed, resumed = run("killed", KILLED), run("resumed", 0, "--resume")
    for before_kill, after_resume in zip(killed, resumed, strict=True):
        assert SAVED < len(before_kill) <= KILLED
        assert len(after_resume) == EPOCHS * STEPS - SAVED
        # What was trained on and not saved comes again, in the same batches.
        again = before_kill[SAVED:]
        assert after_resume[: len(again)] == again
    for epoch in range(EPOCHS):
        given = [
            n
            for before_kill, after_resume in zip(killed, resumed, strict=True)
            for batch in (before_kill[:SAVED] + after_resume)[epoch * STEPS : (epoch + 1) * STEPS]
            for n in batch
        ]
        assert sorted(given) == list(range(SAMPLES))


def run_script(module: str, script: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [find_loops_python(module), "-c", script, *map(str, arguments)],
        env={**make_environ(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


# Keeps what the loader gave last, to compare it with what arrives in the training step.
WATCH = """
from feedrate.loader.iteration import LoaderIterator
take = LoaderIterator.__next__

def watched(self):
    global last
    last = take(self)
    return last

LoaderIterator.__next__ = watched
"""

# Checkpoints of every step, of the last one of an epoch, of the end of an epoch, of after a validation.
LIGHTNING = """
import glob, re, sys
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from feedrate import Loader

pack, out = sys.argv[1:]

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch):
        assert batch[0] is last[0]
        given.append(batch[0].tolist())
        return self.layer(torch.ones(1, 1)).sum()
    def validation_step(self, batch, number):
        validated.append(batch[0].tolist())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def run(folder, checkpoint=None, **when):
    global given, validated
    given, validated = [], []
    saving = ModelCheckpoint(f"{out}/{folder}", save_top_k=-1, filename="{step}", **when)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, val_check_interval=5, num_sanity_val_steps=0,
        callbacks=[saving], logger=False, enable_progress_bar=False, enable_model_summary=False,
    )
    options = dict(fields=("number",), rank=0, world_size=1, device="cpu")
    validating = Loader(pack, 50, shuffle=False, **options)
    trainer.fit(Net(), Loader(pack, 10, **options), validating, ckpt_path=checkpoint)
    return given

whole = run("whole")
assert len(whole) == 27
assert sorted(sum(validated, [])) == sorted(3 * list(range(83)))
resumed = 0
for number, when in enumerate([{}, {"every_n_train_steps": 1, "save_on_train_epoch_end": False}]):
    run(number, **when)
    for path in glob.glob(f"{out}/{number}/*.ckpt"):
        step = int(re.search(r"step=(\\d+)", path)[1])
        assert run("again", path) == whole[step:], path
        resumed += 1
print(resumed)
"""


def test_lightning_goes_on_from_a_checkpoint_of_any_step_and_moves_no_tensor_again(
    numbers: Path, tmp_path: Path
) -> None:
    assert int(run_script("lightning", WATCH + LIGHTNING, numbers, tmp_path).splitlines()[-1]) >= 27


TRAINER = """
import importlib.util, sys
import torch, transformers
from feedrate import Loader

pack, out, path = sys.argv[1:]
spec = importlib.util.spec_from_file_location("example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

class Trainer(example.PackTrainer):
    def get_train_dataloader(self):
        return Loader(self.pack, 10, fields=("number",), rank=0, world_size=1, device="cpu")
    def compute_loss(self, model, inputs, *args, **options):
        assert inputs[0] is last[0]
        given.append(inputs[0].tolist())
        return model(torch.ones(1, 1)).sum()

def run(folder, checkpoint=None, ignore_data_skip=True):
    global given
    given = []
    settings = transformers.TrainingArguments(
        f"{out}/{folder}", num_train_epochs=3, per_device_train_batch_size=10, report_to=[], use_cpu=True,
        save_strategy="no" if checkpoint else "steps", save_steps=1, logging_strategy="no", disable_tqdm=True,
        ignore_data_skip=ignore_data_skip, restore_callback_states_from_checkpoint=True,
    )
    trainer = Trainer(pack, model=torch.nn.Linear(1, 1), args=settings)
    trainer.train(resume_from_checkpoint=checkpoint)
    return given, trainer.state.global_step

whole, steps = run("whole")
assert (len(whole), steps) == (27, 27)
for step in (1, 8, 9, 10, 26):
    assert run("again", f"{out}/whole/checkpoint-{step}") == (whole[step:], 27), step
try:
    run("again", f"{out}/whole/checkpoint-4", ignore_data_skip=False)
except AttributeError as error:
    print(error)
"""


def test_the_trainer_goes_on_from_a_checkpoint_of_any_step_and_can_neither_skip_nor_move_twice(
    numbers: Path, tmp_path: Path
) -> None:
    shown = run_script("transformers", WATCH + TRAINER, numbers, tmp_path, EXAMPLES / "trainer_train.py")
    assert "Trainer of transformers: ignore_data_skip=True" in shown.splitlines()[-1]


STATEFUL = """
import sys
from torchdata.stateful_dataloader import StatefulDataLoader
from feedrate import Loader

def make_theirs():
    return StatefulDataLoader(range(83), batch_size=10)

def make_ours():
    return Loader(sys.argv[1], 10, shuffle=False, fields=("number",), rank=0, world_size=1)

def values_of(batch):
    return (batch[0] if isinstance(batch, tuple) else batch).tolist()

def stop_and_go_on(make, stop):
    loader = make()
    given = []
    for number, batch in enumerate(loader):
        given.append(values_of(batch))
        if number + 1 == stop:
            break
    again = make()
    again.load_state_dict(loader.state_dict())
    return given, len(again), [values_of(b) for b in again], len(again), [values_of(b) for b in again]

for stop in range(1, 11):
    assert stop_and_go_on(make_ours, stop) == stop_and_go_on(make_theirs, stop), stop
"""


def test_a_loader_stops_and_goes_on_as_a_stateful_dataloader_does(numbers: Path) -> None:
    run_script("torchdata", STATEFUL, numbers)


ACCELERATE = """
import sys
import accelerate, torch
from feedrate import Loader

accelerator = accelerate.Accelerator(cpu=True)
loader = Loader(sys.argv[1], 10, fields=("number",), device=accelerator.device)
assert accelerator.prepare(loader) is loader
(numbers,) = next(iter(loader))
assert accelerate.utils.send_to_device(numbers, accelerator.device) is numbers
try:
    accelerator.skip_first_batches(loader, 3)
except AttributeError as error:
    print(error)
"""


def test_accelerate_leaves_a_loader_and_its_tensors_alone_and_cannot_skip(numbers: Path) -> None:
    shown = run_script("accelerate", ACCELERATE, numbers)
    assert "Accelerate: no skip_first_batches" in shown.splitlines()[-1]
