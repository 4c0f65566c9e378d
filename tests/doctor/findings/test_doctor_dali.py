# SPDX-License-Identifier: Apache-2.0
"""DALI's iterators, which are no DataLoader: their waits are seen, and that their stages are not is said.

DALI is not installed where tests run: a module of the same names, classes and calls stands in for it. The
patches were tried on nvidia-dali 2.4.0, with a pipeline on the CPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_doctor_findings import run_steps

from doctor_corpus.run_case import HERE
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis
from support.doctor_runs import FakeLoop
from support.hooked import PREAMBLE, Run, run_script
from support.judged_runs import judge

DALI = {
    "class": "DALIClassificationIterator", "opaque": "DALI", "pipeline_threads": 3, "prefetch": 2,
    "iterable": True, "made_at": "train.py:4",
}  # fmt: skip

SCRIPT = (
    PREAMBLE
    + """
sys.path.insert(0, sys.argv[1])
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, Pipeline
import gc, weakref

def make(number):
    return torch.full((3,), float(number)), torch.tensor(number % 2)

loader = DALIClassificationIterator([Pipeline(make, batch_size=4, num_threads=3, batches=5)])
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(2):
    for (batch,) in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["data"]), batch["label"]).backward()
        optimizer.step()
    print(float(batch["data"].sum()))
gone = weakref.ref(loader)
del loader
gc.collect()
print(gone())
"""
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a library lies: its lines are not taken for the user's own."""
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    shutil.copytree(HERE / "lookalikes", folder)
    return folder


@pytest.fixture(scope="module")
def trained(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("torch", reason="torch is not installed")
    folder = tmp_path_factory.mktemp("dali")
    run = run_script(folder, SCRIPT, str(packages), settings={"passive": False})
    assert (run.code, run.stderr, run.facts("trouble")) == (0, "", [])
    return run


def test_every_batch_of_an_iterator_is_one_wait(trained: Run) -> None:
    waits = trained.main.of(layout.WAIT)
    # The batch that it takes while it is made is not among them; each of two epochs ends once.
    assert [(int(wait["a"]), int(wait["b"])) for wait in waits] == [
        *((4, number) for number in range(5)), (-1, 5),
        *((4, number) for number in range(5)), (-1, 5),
    ]  # fmt: skip
    assert len(trained.main.of(layout.OPTIMIZER)) > 0


def test_an_iterator_is_described_as_what_it_is(trained: Run) -> None:
    (loader,) = trained.facts("loader")
    assert loader["class"] == "DALIClassificationIterator"
    assert loader["opaque"] == "DALI"
    assert (loader["batch_size"], loader["pipeline_threads"], loader["prefetch"]) == (4, 3, 2)
    assert "script.py:" in loader["made_at"]


def test_there_are_no_experiments_on_its_batches(trained: Run) -> None:
    assert {fact["phase"] for fact in trained.facts("skipped")} == set(range(1, len(layout.PHASES)))
    assert {fact["why"] for fact in trained.facts("skipped")} == {
        "batches come from DALI, which cannot be asked for them in another way"
    }


def test_the_script_trains_as_without_the_doctor_and_can_let_go_of_its_iterator(
    trained: Run, packages: Path, tmp_path: Path
) -> None:
    bare = run_script(tmp_path, SCRIPT, str(packages), is_hooked=False)
    assert trained.stdout == bare.stdout
    assert trained.stdout.endswith("None\n")


def judge_dali(folder: Path, wait: float, **around: Any) -> Diagnosis:
    loop = FakeLoop(workers=0, loader=DALI)
    run_steps(loop, wait)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=8.0, **around))[1]


def test_waiting_for_dali_is_the_verdict_with_its_settings_and_what_cannot_be_seen(tmp_path: Path) -> None:
    diagnosis = judge_dali(tmp_path, 30, cores_ours=2.0)
    (first, *_) = diagnosis.findings
    assert (first.code, first.title) == ("loader-bound", "Training waits for DALI's pipeline")
    assert first.share == pytest.approx(0.75, abs=0.01)
    assert "num_threads=3, prefetch_queue_depth=2; what its stages take cannot be seen" in first.evidence[1]
    assert first.evidence[2] == "the run uses 2.0 of 8 cores"
    assert "larger num_threads" in first.cause
    assert any("what DALI does for a sample" in unseen for unseen in diagnosis.run.unseen)


@pytest.mark.parametrize(
    ("around", "advice"),
    [({"cores_ours": 7.8}, "decode on the GPU"), ({"cores_ours": 2.0, "disk_busy": 0.95}, "feedrate stage")],
)
def test_advice_follows_what_the_machine_did(tmp_path: Path, around: dict[str, float], advice: str) -> None:
    assert advice in judge_dali(tmp_path, 30, **around).findings[0].cause


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ({"cores_ours": 2.0, "disk_busy": 0.1}, "Cores and disks have time left: try"),
        ({"cores_ours": 2.0}, "Cores have time left: try"),
        ({}, "How busy cores and disks were is not known: try"),
    ],
)
def test_what_was_not_read_is_not_said_to_have_time_left(
    tmp_path: Path, around: dict[str, float], said: str
) -> None:
    assert said in judge_dali(tmp_path, 30, **around).findings[0].cause


def test_advice_for_a_dataloader_is_not_given(tmp_path: Path) -> None:
    diagnosis = judge_dali(tmp_path, 30)
    codes = {finding.code for finding in diagnosis.findings}
    names = {remedy.name for remedy in diagnosis.remedies}
    assert codes.isdisjoint({"workers-starved", "handover-bound", "decode-bound", "transform-bound"})
    assert names.isdisjoint({"more-workers", "pinned-memory", "move-to-workers", "batches-on-device", "pack"})


def test_a_pipeline_that_keeps_up_is_no_cause(tmp_path: Path) -> None:
    assert [finding.code for finding in judge_dali(tmp_path, 0.1).findings] == ["device-bound"]


def test_only_a_loader_whose_stages_are_hidden_is_called_loader_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0)
    run_steps(loop, 30)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0))
    assert "loader-bound" not in {finding.code for finding in diagnosis.findings}
