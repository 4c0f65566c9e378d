# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of four nodes, each with a /tmp of its own for every job: one copy per node, killed jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate.scratch.commands import stage
from support.images import read_tree
from support.packs import write_images
from support.paths import ROOT
from support.scratches import part_bytes, wait_for, write_tree
from support.slurm_cluster import cluster_or_skip, submit, wait_for_end

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs" / "scratch.md"

RANK = """
import dataclasses, json, os, sys
import feedrate
source, scratch, results = sys.argv[1:4]
node = os.environ["SLURMD_NODENAME"]
scratch = scratch.replace("NODE", node)
os.makedirs(scratch, exist_ok=True)
limit = int(sys.argv[4]) if len(sys.argv) > 4 else None
staged = feedrate.stage(source, scratch, rate_limit=limit)
files = sum(os.path.isfile(os.path.join(staged.path, name)) for name in os.listdir(staged.path))
about = {**dataclasses.asdict(staged), "seen": files, "job": os.environ["SLURM_JOB_ID"]}
with open(os.path.join(results, f"{about['job']}-{os.environ['SLURM_PROCID']}.json"), "w") as file:
    json.dump(about, file)
"""

TRAIN = """
import os, sys
import feedrate
ranks = dict(rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_STEP_NUM_TASKS"]))
try:
    feedrate.Loader(sys.argv[1])
except feedrate.UsageError as error:
    assert f"task {ranks['rank']} of 2" in str(error)
else:
    raise AssertionError("tasks of a step are taken for trainings of their own")
with feedrate.Loader(sys.argv[1], batch_size=8, fields=("label",), output="numpy", **ranks) as loader:
    count = sum(len(labels) for (labels,) in loader)
copies = len(os.listdir(os.path.dirname(os.path.dirname(sys.argv[1]))))
name = f"{os.environ['SLURM_JOB_ID']}-{os.environ['SLURMD_NODENAME']}"
open(os.path.join(os.environ["RESULTS"], name), "w").write(f"{count} samples, {copies} copy")
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    if sys.executable.startswith("/tmp/") or str(DOCS).startswith("/tmp/"):
        pytest.skip("jobs have a /tmp of their own, and this Python lies in /tmp")
    with (
        # What jobs note of their copies must not end in the home folder of who runs the tests.
        tempfile.TemporaryDirectory(prefix="state-", dir="/var/tmp") as state,
        cluster_or_skip(private_tmp=True) as environment,
    ):
        path = f"{Path(sys.executable).parent}:{environment['PATH']}"
        yield {**environment, "PATH": path, "SLURM_JOB_NAME": "test", "XDG_STATE_HOME": state}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Outside of /tmp, of which each job has its own."""
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_images(tmp_path / "set.pack", 24, shards=4)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def run(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def read_results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_eight_ranks_on_two_nodes_make_one_copy_on_each(
    source: Path, tmp_path: Path, results: Path, slurm: dict[str, str]
) -> None:
    rank = [
        "srun",
        "--nodes=2",
        "--ntasks=8",
        "--overcommit",
        sys.executable,
        "-c",
        RANK,
    ]
    run([*rank, str(source), f"{tmp_path}/scr-NODE", str(results)], slurm)
    ranks = read_results(results)
    assert sorted(one["node"] for one in ranks) == ["n1"] * 4 + ["n2"] * 4
    for node in ("n1", "n2"):
        own = [one for one in ranks if one["node"] == node]
        assert len({one["path"] for one in own}) == 1
        assert sorted(one["copied_bytes"] for one in own) == [0, 0, 0, own[0]["size_bytes"]]
        assert read_tree(Path(own[0]["path"])) == read_tree(source)


def test_a_job_is_killed_in_mid_copy_and_another_finishes(
    tmp_path: Path, results: Path, slurm: dict[str, str]
) -> None:
    large = write_tree(tmp_path / "large", {"x.bin": os.urandom(2_000_000), "y.bin": b"y"})
    scratch = tmp_path / "scr-NODE"
    (tmp_path / "rank.py").write_text(RANK)
    slow = f"{sys.executable} {tmp_path}/rank.py {large} {scratch} {results} 30000"  # a minute in all
    log = tmp_path / "job.log"
    job = submit(slurm, "--nodelist=n1", f"--output={log}", f"--wrap={slow}")
    wait_for(lambda: part_bytes(tmp_path / "scr-n1") > 15_000, "the first job to be in mid-copy")
    run(["scancel", "--full", "--signal=KILL", job], slurm)
    wait_for_end(slurm, job)
    second = ["srun", "--nodelist=n1", sys.executable, str(tmp_path / "rank.py")]
    run([*second, str(large), str(scratch), str(results)], slurm)
    (finished,) = read_results(results)  # the first one wrote none
    assert finished["resumed_bytes"] > 15_000
    assert finished["copied_bytes"] == finished["size_bytes"] - finished["resumed_bytes"]
    assert read_tree(Path(finished["path"])) == read_tree(large)


def test_each_job_has_its_own_copy_where_tmp_is_its_own(
    source: Path, results: Path, slurm: dict[str, str]
) -> None:
    scratch = "/tmp/feedrate-test-scratch"
    for _ in range(2):
        run(
            [
                "srun",
                "--nodes=2",
                "--ntasks=2",
                sys.executable,
                "-c",
                RANK,
                str(source),
                scratch,
                str(results),
            ],
            slurm,
        )
    ranks = read_results(results)
    assert [one["copied_bytes"] for one in ranks] == [ranks[0]["size_bytes"]] * 4
    assert {one["path"] for one in ranks} == {ranks[0]["path"]}
    assert not Path(scratch).exists()


def test_the_sbatch_file_of_the_manual_works_as_it_stands(
    source: Path, tmp_path: Path, results: Path, slurm: dict[str, str]
) -> None:
    (script,) = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```", DOCS.read_text(), re.S | re.M)
    (tmp_path / "train.sbatch").write_text(script)
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {**slurm, "FEEDRATE_SCRATCH": "/tmp", "RESULTS": str(results)}
    job = submit(environment, f"--chdir={tmp_path}", str(tmp_path / "train.sbatch"), str(source))
    states = wait_for_end(environment, job)
    log = (tmp_path / f"train-{job}.log").read_text()
    assert states == ["COMPLETED"], log
    found = {path.name: path.read_text() for path in results.iterdir()}
    assert found == {f"{job}-n1": "12 samples, 1 copy", f"{job}-n2": "12 samples, 1 copy"}
    assert len(re.findall(r"^copied ", log, re.M)) == 2
    assert "($FEEDRATE_SCRATCH" in log


def test_a_copy_made_by_a_job_is_found_by_this_process(
    source: Path, tmp_path: Path, results: Path, slurm: dict[str, str]
) -> None:
    words = [
        "srun",
        "--nodes=1",
        sys.executable,
        "-c",
        RANK,
        str(source),
        str(tmp_path / "scr"),
        str(results),
    ]
    run(words, slurm)
    assert stage(source, tmp_path / "scr").copied_files == 0
