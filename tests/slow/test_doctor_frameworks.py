# SPDX-License-Identifier: Apache-2.0
"""The doctor under Lightning, the Hugging Face Trainer and torchdata's StatefulDataLoader.

The scripts are as users write them. The libraries live in an environment of their own, whose Python
FEEDRATE_LOOPS_PYTHON names; `.ci/run` makes one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.summarise import measure
from feedrate.doctor.analyse.timeline import build_loops
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.hook.feedrate_hook import layout
from support.bench_results import MACHINE
from support.doctor_scripts import PRELUDE, STEPS, Run, run_script
from support.frameworks import find_loops_python

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ALL = [layout.DRAIN, layout.AGAIN, layout.REPLAY, layout.TRIAL, layout.TRIAL]

# A Python loop makes each sample, and no two are alike. MOST: steps after which the script ends by itself.
SLOW = """
import hashlib, random

MOST = int(sys.argv[1]) if len(sys.argv) > 1 else 10000

class Slow(Numbers):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        total = random.random()
        for i in range(60000):
            total = (total * 31 + i) % 1009
        return x + total / 1009, y

def tell(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)
"""

LIGHTNING = """
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def training_step(self, batch, number):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("validation", torch.nn.functional.cross_entropy(self.layers(x), y))

    def on_train_batch_end(self, outputs, batch, number):
        print("step", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

lightning.seed_everything(0)
net = Net()
trainer = lightning.Trainer(
    max_steps=MOST, val_check_interval=200, limit_val_batches=2, log_every_n_steps=2, accelerator="cpu",
    logger=lightning.pytorch.loggers.CSVLogger("out/logs", flush_logs_every_n_steps=2),
    callbacks=[lightning.pytorch.callbacks.ModelCheckpoint("out", every_n_train_steps=4, save_top_k=-1)],
)
trainer.fit(net, DataLoader(Slow(), batch_size=BATCH, shuffle=True), DataLoader(Numbers(), batch_size=BATCH))
tell(net)
"""

HUGGING_FACE = """
from transformers import BertConfig, BertForSequenceClassification
from transformers import Trainer, TrainerCallback, TrainingArguments

class Texts(Slow):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        words = (50 * x).long() % 50
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": y}

class Telling(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("step", flush=True)

torch.manual_seed(0)
random.seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
))
arguments = TrainingArguments(
    output_dir="out", max_steps=MOST, per_device_train_batch_size=BATCH, logging_steps=2, save_steps=4,
    eval_strategy="steps", eval_steps=200, eval_on_start=True, report_to=[], use_cpu=True, seed=0,
)
trainer = Trainer(
    model, arguments, train_dataset=Texts(), eval_dataset=torch.utils.data.Subset(Texts(), range(8)),
    callbacks=[Telling()],
)
trainer.train()
tell(model)
"""

STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(0)
random.seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = StatefulDataLoader(Slow(), batch_size=BATCH, shuffle=True, num_workers=WORKERS)
step = 0
for x, y in loader:
    train(x, y)
    step += 1
    print("step", flush=True)
    if step % 4 == 0:
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"out/step{step}.pt")
    if step == MOST:
        break
tell(model)
"""

# name -> the module that must be there, the script
LOOPS = {
    "lightning": ("lightning", LIGHTNING),
    "transformers": ("transformers", HUGGING_FACE),
    "torchdata": ("torchdata", "WORKERS = 0" + STATEFUL),
    "torchdata-2-workers": ("torchdata", "WORKERS = 2" + STATEFUL),
}


@pytest.fixture(scope="module", params=LOOPS)
def examined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each of the loops, under the experiments."""
    module, body = LOOPS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"try_workers": [1]}
    return run_script(folder, SLOW + body, settings=settings, python=find_loops_python(module))


def test_the_loop_is_examined_to_the_end_and_ended(examined: Run) -> None:
    assert examined.code == 0
    assert examined.phases() == ALL
    assert [fact["why"] for fact in examined.of("skipped")] == [
        "no CUDA device is used",
        "no convolution of the model is given batches of images",
    ]
    assert examined.of("trouble") == []
    assert examined.of("end")[-1]["error"] is None
    assert "Traceback" not in examined.errors
    assert "weights" not in examined.output
    assert examined.leftovers == ()


def test_each_batch_is_one_step(examined: Run) -> None:
    # The Hugging Face Trainer is given a batch when the one after it is there.
    assert examined.output.splitlines().count("step") in (STEPS, STEPS - 1)
    drained = next(fact for fact in examined.of("phase") if fact["phase"] == layout.DRAIN)
    assert examined.waits(layout.DRAIN) == drained["batches"]


def test_nothing_is_written_from_the_first_experiment_on(examined: Run) -> None:
    numbers = {int(n) for n in re.findall(r"(?:step=?|checkpoint-)(\d+)", "\n".join(examined.tree("out")))}
    assert numbers == set(range(4, examined.output.splitlines().count("step") + 1, 4))
    if (examined.folder / "before").exists():  # workers do not know when the experiments begin
        assert examined.tree("out") == examined.tree("before")


def test_the_python_loop_in_the_dataset_is_found(examined: Run) -> None:
    loops = build_loops(examined.recording, warmup=2)
    assert loops
    measured = measure(examined.recording, loops, MachineSummary(cores=1.0))
    diagnosis = diagnose(
        measured, command=[], mode="experiments", exit_code=None, seconds=10.0, machine=MACHINE
    )
    # Where a core is free, a first worker is worth much, and where none is, a second one costs: that is
    # right, too, and depends on the machine.
    of_machine = {"workers-starved", "workers-oversubscribed"}
    found = next(one for one in diagnosis.findings if one.code not in of_machine)
    assert found.code == "transform-bound"
    assert any("Slow.__getitem__" in line for line in found.evidence)
    parts = {part.name: part.share for part in diagnosis.split}
    assert {"waiting for data", "forward", "backward", "optimizer", "saving"} <= set(parts)
    assert max(parts, key=lambda name: parts[name]) == "waiting for data"


@pytest.mark.parametrize("name", ["lightning", "transformers", "torchdata"])
def test_a_run_that_is_only_watched_gives_the_same_weights_and_files(name: str, tmp_path: Path) -> None:
    module, body = LOOPS[name]
    python = find_loops_python(module)
    watching = [sys.executable, "-m", "feedrate", "doctor", "--passive", "--json", "../report.json", "--"]
    started = {}
    for folder, words in ((tmp_path / "bare", []), (tmp_path / "watched", watching)):
        folder.mkdir()
        (folder / "train.py").write_text(PRELUDE + SLOW + body)
        started[folder] = subprocess.Popen(
            [*words, python, "train.py", "16"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    told, files = [], []
    for folder, process in started.items():
        output, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
        assert "Traceback" not in errors
        told.append([line for line in output.splitlines() if line.startswith(("step", "weights"))])
        files.append(sorted(str(path.relative_to(folder)) for path in (folder / "out").rglob("*")))
    assert told[0] == told[1]
    assert [line.split()[0] for line in told[0]] == ["step"] * 16 + ["weights"]
    assert files[0] == files[1]
    run = json.loads((tmp_path / "report.json").read_text())["run"]
    assert (run["mode"], run["exit_code"]) == ("passive", 0)
