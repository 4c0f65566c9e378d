# SPDX-License-Identifier: Apache-2.0
"""What the hook notes about how a dataset is written, in real loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.sample import Views
from feedrate.doctor.hook.feedrate_hook.record import parts
from support.hooked import PREAMBLE, Run, run_script
from support.judged_runs import judge

pytest.importorskip("torch", reason="torch is not installed")

STREAM = (
    PREAMBLE
    + """
from torch.utils.data import get_worker_info

class Shards(IterableDataset):
    num_shards = 1
    def __iter__(self):
        for number in range(get_worker_info().id, self.num_shards, get_worker_info().num_workers):
            yield from (torch.zeros(2) for _ in range(8))

keeps = sys.argv[1] == "keep"
loader = DataLoader(Shards(), batch_size=2, num_workers=3, persistent_workers=keeps)
print([sum(len(batch) for batch in loader) for _ in range(2)])
"""
)


@pytest.mark.parametrize("workers", ["keep", "anew"])
def test_a_worker_without_data_says_so_at_once(workers: str, tmp_path: Path) -> None:
    run = run_script(tmp_path, STREAM, workers)
    assert (run.code, run.stdout, run.facts("hook-error")) == (0, "[8, 8]\n", [])
    ended = sorted((fact["worker_id"], fact["batches"]) for fact in run.facts("worker-ended"))
    assert ended == [(0, 4), (0, 4), (1, 0), (1, 0), (2, 0), (2, 0)]  # in each of two epochs
    assert {fact["shards"] for fact in run.facts("worker-ended")} == {1}


VIEWS = (
    PREAMBLE
    + """
class Parts(Dataset):
    kept = torch.zeros(1000, 1000)
    def __len__(self): return 24
    def __getitem__(self, index):
        if sys.argv[1] == "kept":
            return self.kept[index, :10]
        part = torch.zeros(1000, 1000)[0, :10]
        return part.clone() if sys.argv[1] == "cloned" else {"name": "one", "part": part}

collate = None if sys.argv[1] == "collated" else list
for batch in DataLoader(Parts(), batch_size=4, num_workers=1, collate_fn=collate): pass
"""
)


def sizes_of(tmp_path: Path, kind: str) -> list[tuple[int, int]]:
    run = run_script(tmp_path, VIEWS, kind)
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return [(fact["used_bytes"], fact["copied_bytes"]) for fact in run.facts("views")]


def test_the_storage_under_a_batch_of_views_is_weighed(tmp_path: Path) -> None:
    sizes = sizes_of(tmp_path, "new")
    assert sizes
    assert set(sizes) == {(4 * 40, 4 * 4_000_000)}


def test_a_tensor_that_the_dataset_keeps_is_copied_once(tmp_path: Path) -> None:
    sizes = sizes_of(tmp_path, "kept")
    assert sizes[0] == (160, 4_000_000)
    # The worker makes its second batch before the first one is on its way, but not the third.
    assert set(sizes[2:]) == {(160, 0)}


@pytest.mark.parametrize("kind", ["cloned", "collated"])
def test_batches_with_memory_of_their_own_are_not_noted(kind: str, tmp_path: Path) -> None:
    assert sizes_of(tmp_path, kind) == []


IN_ADVANCE = (
    PREAMBLE
    + """
import zlib
packed = zlib.compress(np.zeros(100))
class Unpacked(Dataset):
    def __init__(self): self.arrays = [np.frombuffer(zlib.decompress(packed)).copy() for _ in range(40)]
    def __len__(self): return 40
    def __getitem__(self, index): return self.arrays[index]

loader = DataLoader(Unpacked(), batch_size=4, num_workers=int(sys.argv[1]))
for _ in range(2):
    for batch in loader: zlib.decompress(packed)
print(float(batch.sum()))
"""
)


@pytest.fixture(params=["0", "1"])
def in_advance(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    run = run_script(tmp_path, IN_ADVANCE, request.param)
    assert (run.code, run.stdout, run.stderr, run.facts("hook-error")) == (0, "0.0\n", "", [])
    return run


def test_what_is_decoded_before_the_first_batch_is_counted_in_the_training_process(in_advance: Run) -> None:
    (fact,) = in_advance.facts("before-loop")
    assert fact in in_advance.main.facts
    (part,) = [part for part in fact["parts"] if part["name"] == "decode:zlib"]
    assert part["calls"] == 40
    line = 1 + IN_ADVANCE[: IN_ADVANCE.index("self.arrays = ")].count("\n")
    assert part["place"].endswith(f"script.py:{line}")
    assert 0 < part["wall_ns"] < fact["wall_ns"]


def count_zlib(process: Any) -> int:
    return sum(process.name(record["name"]) == "decode:zlib" for record in process.records)


def test_what_is_decoded_in_the_loop_is_not_counted_as_a_part_of_a_fetch(in_advance: Run) -> None:
    assert [count_zlib(process) for process in in_advance.recording.processes] == [0] * len(
        in_advance.recording.processes
    )


ALL_THREE = (
    PREAMBLE
    + """
import zlib
from torch.utils.data import get_worker_info

class Shards(IterableDataset):
    def __init__(self):
        packed = zlib.compress(np.zeros(100))
        self.arrays = [np.frombuffer(zlib.decompress(packed)) for _ in range(40)]
    def __iter__(self):
        if get_worker_info().id == 0:
            for _ in range(80):
                yield torch.zeros(1000, 1000)[0, :4]

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for batch in DataLoader(Shards(), batch_size=2, num_workers=3, collate_fn=list):
    optimizer.zero_grad()
    model(torch.stack(batch)).sum().backward()
    optimizer.step()
"""
)


def test_a_run_with_all_of_it_is_measured_as_it_was_written(tmp_path: Path) -> None:
    run = run_script(tmp_path, ALL_THREE)
    assert (run.code, run.facts("hook-error")) == (0, [])
    measured, diagnosis = judge(run.folder, MachineSummary(cores=4.0))
    assert measured.loader.idle.count == 2
    assert measured.loader.views == Views(used_bytes=2 * 16, copied_bytes=2 * 4_000_000)
    assert measured.samples.start is not None
    assert (measured.samples.start.name, measured.samples.start.calls) == ("zlib", 40)
    (idle,) = [finding for finding in diagnosis.findings if finding.code == "workers-idle"]
    assert idle.evidence[0].startswith("2 of 3 workers gave no batch")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> parts.Prelude:
    now = iter(range(0, 10**9, 10))
    monkeypatch.setattr("feedrate.doctor.hook.feedrate_hook.clock.wall_ns", lambda: next(now))
    monkeypatch.setattr("feedrate.doctor.hook.feedrate_hook.clock.cpu_ns", lambda: 0)
    return parts.Prelude()


def test_of_very_many_calls_some_stand_for_the_others(begun: parts.Prelude) -> None:
    timed = 0
    for _ in range(10_000):
        if begun.enter("decode", "decode:PIL"):
            timed += 1
            begun.leave()
    (part,) = begun.described_parts()
    assert timed == 2000 + 500
    assert part["calls"] == 10_000
    assert part["wall_ns"] == 10_000 * 10  # each mark moves the clock by 10


def test_a_decoder_that_another_one_calls_is_not_counted_twice(begun: parts.Prelude) -> None:
    for _ in range(5000):
        is_timed = begun.enter("decode", "decode:librosa.load")
        if begun.enter("decode", "decode:soundfile.read"):
            begun.leave()
        if is_timed:
            begun.leave()
    assert [part["name"] for part in begun.described_parts()] == ["decode:librosa.load"]


def test_transforms_before_the_first_batch_are_left_untimed(begun: parts.Prelude) -> None:
    assert not begun.enter("transform", "transform:PIL.resize")
    assert begun.described_parts() == []


def test_a_worker_that_was_spawned_forgets_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "open_fetches", {})
    parts.begin_prelude()
    assert parts.open_fetches
    parts.end_prelude(is_forgotten=True)
    assert not parts.open_fetches
