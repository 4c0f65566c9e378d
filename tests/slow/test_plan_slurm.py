# SPDX-License-Identifier: Apache-2.0
"""Inside a real Slurm job, a plan reckons with the job's memory, not with the machine's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from feedrate.lab.photographs import make_photographs
from support.slurm_cluster import cluster_or_skip, submit, wait_for_end

pytestmark = pytest.mark.slow


def test_in_a_slurm_job_with_mem_the_plan_uses_the_limit_of_the_job(tmp_path: Path) -> None:
    for number, photograph in enumerate(make_photographs(12)):
        (tmp_path / "photos" / str(photograph.label)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / str(photograph.label) / f"{number}.jpg").write_bytes(photograph.jpeg)
    out, log = tmp_path / "plan.json", tmp_path / "log"
    command = (
        f"{sys.executable} -m feedrate plan {tmp_path}/photos --seconds 2 --scratch {tmp_path} --json {out}"
    )
    with cluster_or_skip(memory_limits=True) as environment:
        job = submit(environment, "--mem=900M", f"--output={log}", "--wrap", command)
        assert wait_for_end(environment, job)[:1] == ["COMPLETED"], log.read_text()
    node = json.loads(out.read_text())["node"]
    assert node["memory_origin"] == "this Slurm job's --mem"
    assert 500e6 < node["memory_bytes"]["value"] <= 900 * 2**20
