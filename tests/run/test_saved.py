# SPDX-License-Identifier: Apache-2.0
"""The time that a run saved, from numbers that its processes counted: of loaders of each kind, and ranks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from feedrate.figures import Figure
from feedrate.run.inside.counters import open_counters
from feedrate.run.saved import estimate_bare, read_facts, report_loaders

MS = 1_000_000


@dataclass
class Made:
    """A loader of one training process as it would have counted: times of a fetch in milliseconds.

    Attributes:
        busy: the script's own time of a step; `waits`: for a batch, in the mean.
        bare_fetches: of all; None: one of 64.
    """

    workers: int = 0
    steps: int = 1000
    lazy: float = 10.0
    bare: float = 20.0
    busy: float = 0.0
    waits: float = 10.0
    gain: float = 2.0
    bare_fetches: int | None = None
    proof_s: float = 0.0
    epochs: int = 0
    verdict: str = "equal"
    number: int = 0
    pid: int = 500

    def write(self, folder: Path, **fact: Any) -> None:
        told = {
            "kind": "loader", "loader": self.number, "dataset": "Photos", "length": 100,
            "workers": self.workers, "batch_size": 4, "verdict": self.verdict, "problem": "", "samples": 64,
            "gain": self.gain, "gain_first": 1.5, "sample": "", "left": {}, "proof_s": self.proof_s, **fact,
        }  # fmt: skip
        write_facts(folder, self.pid, told)
        main = open_counters(str(folder), self.number)
        main.add("parent", self.pid - main.get("parent"))
        main.add("batches", self.steps)
        main.add("epochs", self.epochs)
        main.add("busy_ns", self.steps * self.busy * MS)
        main.add("wait_ns", self.steps * self.waits * MS)
        main.add("main_cpu_ns", self.steps * self.busy * MS)
        bare = self.steps // 64 if self.bare_fetches is None else self.bare_fetches
        fetched = [open_counters(str(folder), self.number, self.pid) for _ in range(self.workers)] or [main]
        for one in fetched:
            for way, count, ms in (("bare", bare, self.bare), ("lazy", self.steps - bare, self.lazy)):
                share = count / len(fetched)
                one.add(f"{way}_fetches", share)
                one.add(f"{way}_cpu_ns", share * ms * MS)
                one.add(f"{way}_wall_ns", share * ms * MS)
                one.add(f"{way}_wall_ms2", share * ms**2)
            one.add("taken", 4 * (self.steps - bare) / len(fetched))


def write_facts(folder: Path, pid: int, *facts: dict[str, Any]) -> None:
    with open(folder / f"facts-{_node()}-{pid}.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(fact) + "\n" for fact in facts)


def _node() -> str:

    return os.uname().nodename


def estimate(folder: Path, seconds: float, cores: float = 8) -> Figure | None:
    return estimate_bare(folder, read_facts(folder), seconds, cores)


def test_without_workers_each_lazy_fetch_saved_the_difference(tmp_path: Path) -> None:
    Made(bare_fetches=100).write(tmp_path)
    found = estimate(tmp_path, 12.0)
    assert found is not None
    assert found.value == pytest.approx(12.0 + 900 * 0.010)
    assert found.low < found.value < found.high
    assert found.high - found.value == pytest.approx(2 * 900 * 0.020 * 0.08 * 2**0.5)  # 8 % of both, at least


def test_what_a_proof_took_is_no_time_saved(tmp_path: Path) -> None:
    Made(bare_fetches=100, proof_s=2.0).write(tmp_path)
    write_facts(tmp_path, 500, {"kind": "proof", "loader": 0, "proof_s": 0.5})
    write_facts(tmp_path, 501, {"kind": "proof", "loader": 0, "proof_s": 9.0})  # of no rank
    found = estimate(tmp_path, 14.5)
    assert found is not None
    assert found.value == pytest.approx(12.0 + 900 * 0.010)


def test_where_workers_are_the_limit_the_run_would_have_taken_as_much_longer_as_they(tmp_path: Path) -> None:
    # Two workers of 40 ms: a batch each 20 ms, and 60 ms bare would be one each 30.
    Made(workers=2, lazy=40, bare=60, busy=5, waits=15, bare_fetches=0, gain=1.5).write(tmp_path)
    found = estimate(tmp_path, 20.0)
    assert found is not None
    assert found.value == pytest.approx(30.0)
    assert found.low < 29 < 31 < found.high


def test_where_cores_are_the_limit_they_are_shared_by_the_workers_and_the_script(tmp_path: Path) -> None:
    # Two cores: 40 ms of a worker and 10 of the script make 25 ms a step; 90 and 10 make 50.
    Made(workers=8, lazy=40, bare=90, busy=10, waits=15, bare_fetches=0, gain=2.25).write(tmp_path)
    found = estimate(tmp_path, 25.0, cores=2)
    assert found is not None
    assert found.value == pytest.approx(50.0)


def test_the_first_batch_of_each_epoch_is_waited_for_whatever_the_limit_is(tmp_path: Path) -> None:
    made = Made(workers=8, lazy=400, bare=800, busy=300, waits=0, epochs=5, bare_fetches=0, gain=2.0)
    made.write(tmp_path)
    found = estimate(tmp_path, 300.0, cores=64)
    assert found is not None
    assert found.value == pytest.approx(302.0)


def test_where_the_device_is_the_limit_nothing_was_saved(tmp_path: Path) -> None:
    Made(workers=8, lazy=40, bare=80, busy=30, waits=0).write(tmp_path)
    assert estimate(tmp_path, 30.0) == Figure(30.0, 30.0, 30.0)


def test_a_loader_that_would_have_become_the_limit_saved_what_the_device_would_have_waited(
    tmp_path: Path,
) -> None:
    # With recipes the device takes 30 ms a step; bare, two workers of 80 would have given one each 40.
    Made(workers=2, lazy=40, bare=80, busy=30, waits=0, bare_fetches=0).write(tmp_path)
    found = estimate(tmp_path, 30.0)
    assert found is not None
    assert found.value == pytest.approx(40.0)


@pytest.mark.parametrize("bare_fetches", [0, 2])
def test_with_few_bare_fetches_the_proofs_gain_stands_in(tmp_path: Path, bare_fetches: int) -> None:
    Made(gain=3.0, bare=1000.0, bare_fetches=bare_fetches).write(tmp_path)
    found = estimate(tmp_path, 10.0)
    assert found is not None
    assert found.value == pytest.approx(10.0 + (1000 - bare_fetches) * (0.030 - 0.010))


def test_without_a_lazy_fetch_nothing_is_known_to_be_saved(tmp_path: Path) -> None:
    Made(bare_fetches=1000).write(tmp_path)
    assert estimate(tmp_path, 10.0) is None
    assert estimate_bare(tmp_path, [], 10.0, 8) is None


def test_loaders_of_one_process_add_up_and_ranks_are_a_mean(tmp_path: Path) -> None:
    Made(bare_fetches=100).write(tmp_path)
    Made(bare_fetches=100, number=1).write(tmp_path)
    Made(bare_fetches=100, pid=600).write(tmp_path)
    found = estimate(tmp_path, 20.0)
    assert found is not None
    assert found.value == pytest.approx(20.0 + 1.5 * 9)


def test_ranks_of_a_node_share_its_cores(tmp_path: Path) -> None:
    for pid in (500, 600):
        Made(workers=8, lazy=40, bare=80, busy=0, waits=10, bare_fetches=0, pid=pid).write(tmp_path)
    found = estimate(tmp_path, 10.0, cores=8)
    assert found is not None
    assert found.value == pytest.approx(20.0)


def test_lines_that_a_kill_tore_are_left_out(tmp_path: Path) -> None:
    Made(bare_fetches=100).write(tmp_path)
    with open(tmp_path / f"facts-{_node()}-500.jsonl", "ab") as file:
        file.write(b'{"kind": "loa')
    (tmp_path / "facts-a-node.of-many-7.jsonl").write_bytes(b'\xff\xfe\n\n{"kind": "process"}\n')
    facts = read_facts(tmp_path)
    assert [fact["kind"] for fact in facts if fact["pid"] == 500] == ["loader"]
    assert [(fact["kind"], fact["node"]) for fact in facts if fact["pid"] == 7] == [
        ("process", "a-node.of-many")
    ]


def test_a_loader_of_many_ranks_is_reported_once_with_the_worst_verdict(tmp_path: Path) -> None:
    Made(steps=10, bare_fetches=1, waits=20).write(tmp_path)
    Made(steps=10, bare_fetches=1, pid=600, verdict="differs").write(tmp_path, sample="sample 3 (a.jpg)")
    Made(steps=4, bare_fetches=0, number=1, workers=2).write(tmp_path)
    first, second = report_loaders(tmp_path, read_facts(tmp_path))
    assert (first.number, first.batches, first.images, first.seconds) == (0, 20, 72, 0.2)
    assert (first.is_taken, first.why) == (False, "samples differ from the bare run's: sample 3 (a.jpg)")
    assert (second.number, second.batches, second.images, second.is_taken) == (1, 4, 16, True)
    assert (second.why, second.proved) == ("equal to the last bit", 64)


def test_a_rank_that_ended_before_it_counted_anything_is_told_with_nothing(tmp_path: Path) -> None:
    write_facts(tmp_path, 1, {
        "kind": "loader", "loader": 0, "dataset": "Photos", "length": None, "workers": 0, "batch_size": None,
        "verdict": "not-possible", "problem": "no Pillow", "samples": 0, "gain": 1.0, "gain_first": 1.0,
        "sample": "", "left": {}, "proof_s": 0.0,
    })  # fmt: skip
    (report,) = report_loaders(tmp_path, read_facts(tmp_path))
    assert (report.batches, report.images, report.left, report.why) == (0, 0, {}, "no Pillow")
    assert estimate(tmp_path, 1.0) is None
