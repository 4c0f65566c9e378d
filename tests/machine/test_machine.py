# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine, read from folders that tests make up, and once from the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from feedrate.machine.cpu import count_usable_cores, read_cpu_quota
from feedrate.machine.describe import describe_machine, find_commit, read_cpu_model
from feedrate.machine.memory import (
    count_usable_memory_bytes,
    measure_tree_memory,
    read_memory_limit,
)
from support.images import save_image


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_memory_limit_of_a_job_above_an_unlimited_leaf_counts(tmp_path: Path) -> None:
    proc = write(tmp_path / "cgroup", "0::/slurm/job/step\n")
    write(tmp_path / "root/slurm/job/step/memory.max", "max\n")
    write(tmp_path / "root/slurm/job/memory.max", "4000000\n")
    write(tmp_path / "root/slurm/memory.max", "9000000\n")
    assert read_memory_limit(proc, tmp_path / "root") == 4_000_000


def test_the_memory_limit_of_a_version_1_cgroup_counts_and_its_word_for_unlimited_does_not(
    tmp_path: Path,
) -> None:
    proc = write(tmp_path / "cgroup", "9:memory:/job\n4:cpu,cpuacct:/job\n")
    write(tmp_path / "root/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert read_memory_limit(proc, tmp_path / "root") is None
    write(tmp_path / "root/memory/job/memory.limit_in_bytes", "123456789\n")
    assert read_memory_limit(proc, tmp_path / "root") == 123_456_789


def test_no_cgroups_mean_no_limit(tmp_path: Path) -> None:
    assert read_memory_limit(tmp_path / "none", tmp_path) is None
    assert read_cpu_quota(tmp_path / "none", tmp_path) is None


def test_the_tightest_cpu_quota_counts(tmp_path: Path) -> None:
    proc = write(tmp_path / "cgroup", "0::/job/leaf\n")
    write(tmp_path / "root/job/leaf/cpu.max", "max 100000\n")
    write(tmp_path / "root/job/cpu.max", "150000 100000\n")
    assert read_cpu_quota(proc, tmp_path / "root") == 1.5


def test_a_process_that_has_ended_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_tree_memory(2**22 + 1) == 0
    monkeypatch.setattr("feedrate.machine.memory.read_rollup", lambda _: None)
    assert measure_tree_memory(os.getpid()) == 0


def test_this_process_has_memory_and_cores() -> None:
    assert measure_tree_memory(os.getpid()) > 1_000_000
    assert count_usable_memory_bytes() > 1_000_000
    assert count_usable_cores() >= 1


def test_the_name_of_the_processor_is_read(tmp_path: Path) -> None:
    cpuinfo = write(tmp_path / "cpuinfo", "processor : 0\nmodel name\t: Fast 9000\nmodel name\t: Fast 9000\n")
    assert read_cpu_model(cpuinfo) == "Fast 9000"
    assert read_cpu_model(tmp_path / "none")


def test_the_commit_says_whether_files_were_changed(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    file = write(tmp_path / "src/package/file", "1")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    commit = find_commit(file.parent)
    assert commit is not None
    assert len(commit) == 40
    file.write_text("2")
    assert find_commit(file.parent) == commit + "+"


def test_without_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert find_commit(tmp_path / "a/b/c") is None


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("demo --images 10 --folder anna --keep", "demo --images 10 --folder PATH --keep"),
        ("demo --folder=/home/anna --images=10", "demo --folder=PATH --images=10"),
        ("bench loader anna --size 224 --json anna.json", "bench loader PATH --size 224 --json PATH"),
        ("speedtest anna --model resnet50 --json -", "speedtest PATH --model resnet50 --json -"),
        ("doctor --seconds 1.5 -- python anna.py --user anna", "doctor --seconds 1.5"),
    ],
)
def test_the_machine_is_described_without_naming_a_host_a_folder_or_a_person(
    typed: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/home/anna/bin/feedrate", *typed.split()])
    text = json.dumps(asdict(describe_machine()))
    assert "anna" not in text
    assert json.loads(text)["command_line"] == kept.split()
    assert "numpy" in json.loads(text)["versions"]


def test_the_words_of_a_script_that_measures_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["measure.py", "anna"])
    assert describe_machine().command_line == ()


def test_the_json_of_a_command_names_no_folder(tmp_path: Path) -> None:
    save_image(tmp_path / "anna" / "one.jpg", 1)
    words = ["bench", "loader", "anna", "--size", "16", "--rounds", "1", "--json", str(tmp_path / "out.json")]
    subprocess.run([sys.executable, "-m", "feedrate", *words], cwd=tmp_path, check=True, capture_output=True)
    machine = json.loads((tmp_path / "out.json").read_text())["machine"]
    assert machine["command_line"] == [*words[:2], "PATH", *words[3:-1], "PATH"]
