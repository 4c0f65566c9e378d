# SPDX-License-Identifier: Apache-2.0
"""What the hook records of loaders: waits, fetches, hand-over, passes; however the workers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.hook.feedrate_hook import layout
from support.hooked import PREAMBLE, Run, names_of, run_script

pytest.importorskip("torch", reason="torch is not installed")

TRAINING = (
    PREAMBLE
    + """
def main():
    workers = int(sys.argv[1])
    context = sys.argv[2] if workers else None
    train = DataLoader(Numbers(22), batch_size=4, shuffle=True, num_workers=workers,
                       persistent_workers=workers > 0, multiprocessing_context=context)
    test = DataLoader(Numbers(6), batch_size=3)
    model, loss = nn.Linear(4, 2), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in train:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in test:
                model(x)
        torch.save(model.state_dict(), "model.pt")

if __name__ == "__main__":
    main()
"""
)


@pytest.fixture(
    scope="module", params=["none", "fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    # Each spawned worker imports torch once more, which is most of what this file takes.
    workers = {"none": "0", "spawn": "1"}.get(request.param, "2")
    is_forked = request.param in ("none", "fork")
    folder = tmp_path_factory.mktemp(request.param)
    run = run_script(folder, TRAINING, workers, request.param, is_forked=is_forked)
    assert (run.code, run.stdout, run.stderr) == (0, "", "")
    assert run.facts("hook-error") == []
    return run


def worker_ids(run: Run) -> set[int]:
    return set(range(run.facts("loader")[0]["num_workers"]))


def test_each_next_is_a_wait_with_its_samples_and_its_number(trained: Run) -> None:
    waits = [w for w in trained.main.of(layout.WAIT) if trained.main.name(w["name"]) == "loader-0"]
    epoch = [(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (2, 5), (-1, 6)]
    assert [(int(w["a"]), int(w["b"])) for w in waits] == epoch * 2


def test_six_of_eight_steps_are_probed(trained: Run) -> None:
    """The end of one loader and the first batch of the next are one step: no optimizer stepped in between."""
    probed = [bool(int(w["c"]) & layout.PROBED) for w in trained.main.of(layout.WAIT)]
    steps = [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 8, 9, 10, 11, 12, 13, 14, 14, 15, 16]
    assert probed == [number % 8 < 6 for number in steps]


def test_steps_that_are_not_probed_cost_no_reading_of_the_cpu_clock(trained: Run) -> None:
    for wait in trained.main.of(layout.WAIT):
        assert int(wait["cpu"]) == 0 or int(wait["c"]) & layout.PROBED
    for fetch in trained.main.of(layout.FETCH):
        waits = [w for w in trained.main.of(layout.WAIT) if w["start"] <= fetch["start"]]
        is_probed = bool(int(waits[-1]["c"]) & layout.PROBED)
        assert (int(fetch["cpu"]) >= 0, int(fetch["queue"]) >= 0) == (is_probed, is_probed)
    for worker in trained.workers:
        assert (worker.of(layout.FETCH)["cpu"] >= 0).all()


def test_each_batch_is_a_fetch_of_its_maker_and_probed_ones_have_their_parts(trained: Run) -> None:
    makers = trained.workers if worker_ids(trained) else [trained.main]
    training = [f for p in makers for f in p.of(layout.FETCH) if int(f["a"]) != 3]
    assert sorted(int(f["a"]) for f in training) == [2, 2] + [4] * 10
    assert {int(f["b"]) for f in training} == (worker_ids(trained) or {-1})
    for maker in makers:
        probed = {int(r["start"]) for r in maker.of(layout.IO)}
        assert probed
        assert probed == {int(r["start"]) for r in maker.of(layout.PART)}
        assert probed <= {int(r["start"]) for r in maker.of(layout.FETCH)}
        collate = "collate:torch.utils.data._utils.collate.default_collate"
        assert set(names_of(maker, layout.PART)) == {collate}


def test_between_two_fetches_of_a_worker_there_is_a_hand_over(trained: Run) -> None:
    if not worker_ids(trained):
        assert len(trained.main.of(layout.HANDOVER)) == 0
    for worker in trained.workers:
        fetches, gaps = worker.of(layout.FETCH), worker.of(layout.HANDOVER)
        assert len(gaps) == len(fetches) - 1
        assert (gaps["start"] >= (fetches["start"] + fetches["wall"])[:-1]).all()
        assert (gaps["start"] + gaps["wall"] <= fetches["start"][1:]).all()


def test_a_part_takes_no_longer_than_its_fetch(trained: Run) -> None:
    for process in [trained.main, *trained.workers]:
        walls = {int(f["start"]): int(f["wall"]) for f in process.of(layout.FETCH)}
        assert all(int(p["wall"]) <= walls[int(p["start"])] for p in process.of(layout.PART))


def test_forward_backward_optimizer_and_checkpoint_are_timed(trained: Run) -> None:
    main = trained.main
    assert {"torch.nn.modules.linear.Linear", "torch.nn.modules.loss.CrossEntropyLoss"} == set(
        names_of(main, layout.FORWARD)
    )
    probed = sum(
        bool(int(w["c"]) & layout.PROBED) and int(w["a"]) >= 0 and main.name(w["name"]) == "loader-0"
        for w in main.of(layout.WAIT)
    )
    assert len(main.of(layout.BACKWARD)) == len(main.of(layout.OPTIMIZER)) == probed
    saves = names_of(main, layout.SAVE)
    assert len(saves) == 2
    assert all(s.startswith("torch.save ") and ":" in s and "script.py" in s for s in saves)


def test_facts_say_what_was_run(trained: Run) -> None:
    loader = trained.facts("loader")[0]
    assert (loader["dataset"].split(".")[-1], loader["dataset_len"], loader["batches"]) == ("Numbers", 22, 6)
    assert (loader["shuffle"], loader["iterable"], loader["class"]) == (True, False, "DataLoader")
    assert loader["made_at"].endswith("script.py:18")
    batch = trained.facts("batch")[0]
    assert batch["asked_at"].endswith("script.py:24")
    assert (batch["samples"], batch["tensors"][0]["shape"], batch["tensors"][0]["dtype"]) == (
        4,
        [4, 4],
        "float32",
    )
    model = trained.facts("module")[0]
    assert (model["class"], model["parameters"]) == ("torch.nn.modules.linear.Linear", 10)
    assert trained.facts("autocast")[0]["enabled"] is False
    assert trained.facts("torch")[0]["threads"] == 1
    assert trained.main.last("end")["how"] == "script"
    if worker_ids(trained):
        pids = {worker.pid for worker in trained.workers}
        assert set(trained.main.facts_of("workers")[0]["pids"]) == pids
        assert {fact["worker_id"] for fact in trained.facts("worker")} == worker_ids(trained)
        assert {worker.last("process")["ppid"] for worker in trained.workers} == {trained.main.pid}


MIXED = (
    PREAMBLE
    + """
class Stream(IterableDataset):
    def __iter__(self): return iter(torch.arange(10.0))

for workers in (0, 1):
    for batch in DataLoader(Stream(), batch_size=4, num_workers=workers):
        pass

for batch in DataLoader(Numbers(3), batch_size=None):
    pass

pairs = zip(DataLoader(Numbers(4), batch_size=2), DataLoader(Numbers(4), batch_size=2))
for (a, _), (b, _) in pairs:
    assert torch.equal(a, b)

model = nn.Linear(4, 2)
first = torch.optim.SGD(model.parameters(), lr=0.01)
second = torch.optim.SGD(model.parameters(), lr=0.01)
test = DataLoader(Numbers(40), batch_size=2)
for x, _ in DataLoader(Numbers(12), batch_size=2):
    model(x).sum().backward()
    first.step()
    second.step()
    if x[0, 0] == 4:
        for number, (x, _) in enumerate(test):
            if number == 3:
                break

class Broken(Numbers):
    def __getitem__(self, index): raise OSError("sample 3 is gone")

for workers in (0, 1):
    try:
        next(iter(DataLoader(Broken(4), num_workers=workers)))
    except OSError as error:
        print(type(error).__name__, "sample 3 is gone" in str(error))
"""
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_script(tmp_path_factory.mktemp("mixed"), MIXED)
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    return run


def samples_taken(run: Run, loader: str) -> list[int]:
    return [int(w["a"]) for w in run.main.of(layout.WAIT) if run.main.name(w["name"]) == loader]


@pytest.mark.parametrize("loader", ["loader-0", "loader-1"], ids=["without workers", "with a worker"])
def test_an_iterable_dataset_counts_the_samples_of_its_last_batch(mixed: Run, loader: str) -> None:
    assert samples_taken(mixed, loader) == [4, 4, 2, -1]
    assert mixed.facts("loader")[0]["iterable"] is True
    assert [4, 4, 2] in [list(worker.of(layout.FETCH)["a"]) for worker in mixed.workers]


def test_loaders_that_run_side_by_side_are_kept_apart(mixed: Run) -> None:
    assert len(samples_taken(mixed, "loader-2")) == 4
    assert (samples_taken(mixed, "loader-3"), samples_taken(mixed, "loader-4")) == ([2, 2, -1], [2, 2])


def test_loaders_that_are_made_anew_for_each_epoch_are_one(tmp_path: Path) -> None:
    anew = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for number, (x, y) in enumerate(DataLoader(Numbers(20), batch_size=4, shuffle=True)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if epoch == 1 and number == 2:
            break
"""
    run = run_script(tmp_path, PREAMBLE + anew)
    assert (run.code, run.facts("hook-error")) == (0, [])
    assert [fact["loader"] for fact in run.facts("loader")] == ["loader-0"]
    assert [fact["loader"] for fact in run.facts("loader-anew")] == ["loader-0"] * 2
    waits = run.main.of(layout.WAIT)
    assert waits["b"].tolist() == [*range(6), *range(3), *range(6)]
    assert set(names_of(run.main, layout.WAIT)) == {"loader-0"}
    assert len(run.main.of(layout.ITERATOR)) == 3


def test_loaders_for_training_and_testing_that_one_function_makes_are_two(tmp_path: Path) -> None:
    pair = """
def make(): return DataLoader(Numbers(12), batch_size=4)
train, test = [make() for _ in range(2)]
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in train:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for x, y in test:
        model(x)
"""
    run = run_script(tmp_path, PREAMBLE + pair)
    assert [fact["loader"] for fact in run.facts("loader")] == ["loader-0", "loader-1"]


def test_an_error_in_the_dataset_reaches_the_user_as_it_is(mixed: Run) -> None:
    assert mixed.stdout == "OSError True\nOSError True\n"


def test_a_passive_run_keeps_none_of_its_index_lists(tmp_path: Path) -> None:
    body = (
        PREAMBLE
        + """
iterator = iter(DataLoader(Numbers(100), batch_size=2))
batches = [next(iterator) for _ in range(3)]
from feedrate_hook.session import session
print(session.loaders.recent_indices(iterator))
"""
    )
    run = run_script(tmp_path, body)
    assert (run.code, run.stdout, run.facts("hook-error")) == (0, "[]\n", [])
    assert [int(wait["a"]) for wait in run.main.of(layout.WAIT)] == [2, 2, 2]


EXPERIMENTS = """
from feedrate_hook.session import session

class Experiments:
    def __init__(self):
        self.session, self.kept, self.count = session, [], 0

    def on_next(self, iterator, take):
        self.count += 1
        if self.count <= 3:
            self.kept.append(take())
            return self.kept[-1]
        if self.count == 4:
            self.session.phase = 1
            for _ in range(2):
                take()
            asked = self.session.loaders.recent_indices(iterator)
            self.session.facts("skipped", phase=2, why=str(len(asked)))
            self.session.phase = 4
        if self.count == 7:
            self.session.finish("experiments")
            import os
            os._exit(0)
        return self.kept[0]
"""


def test_experiments_take_over_each_next_and_their_phases_are_in_the_records(tmp_path: Path) -> None:
    # The real experiments stand aside for a small one that is written against the same contract.
    body = (
        PREAMBLE
        + f"""
import types
module = types.ModuleType("feedrate_hook.experiment.experiments")
exec({EXPERIMENTS!r}, module.__dict__)
sys.modules["feedrate_hook.experiment.experiments"] = module
loader = DataLoader(Numbers(100), batch_size=2, num_workers=1)
for batch in loader:
    pass
"""
    )
    run = run_script(tmp_path, body, settings={"passive": False})
    assert (run.code, run.stderr, run.facts("hook-error")) == (0, "", [])
    phases = [int(p) for p in run.main.of(layout.WAIT)["phase"]]
    assert phases == [layout.REAL] * 3 + [layout.DRAIN] * 2 + [layout.REPLAY] * 3
    assert int(run.facts("skipped")[0]["why"]) >= 5
    assert run.main.last("end")["how"] == "experiments"
    (worker,) = run.workers
    assert int(worker.of(layout.FETCH)["phase"][0]) == layout.REAL
