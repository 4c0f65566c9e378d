# SPDX-License-Identifier: Apache-2.0
"""DataLoaders of scripts under the hook of `feedrate run`: what is proved, told, counted, and left."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from feedrate.run.inside.loaders import STRICT_EXIT
from support.run_scripts import PREAMBLE, Ran, end_script, make_run_folder, start_script

# Each loader has a dataset class of its own, so that each is proved. Forty samples are ten fetches; of the
# first worker's, or of the training process's, one is made bare.
WAYS = """
import gc, threading, weakref

class Plain(Quick): pass
class Workers(Quick): pass
class Persistent(Quick): pass
class Spawned(Quick): pass
class Served(Quick): pass
class Inner(Quick): pass

class Differs(Quick):
    samples = [(f"/data/\\x1b[31m{number}.jpg", 0) for number in range(40)]
    def draw(self, index): return index + (are_recipes() and index == 5), torch.rand(1)

class Warns(Quick):
    def draw(self, index):
        for level in range(2, 5): warnings.warn("of a sample", stacklevel=level)
        return index, torch.rand(1)

class Anew(Quick):
    def transform(self): pass

class Kept(Anew): pass

def anew():
    made, datasets = [], []
    for epoch in range(3):
        dataset = Anew()
        datasets.append(weakref.ref(dataset))
        made.append(epochs(loader(dataset), 1))
    del dataset
    gc.collect()
    return made, [dataset() is None for dataset in datasets]

class Step: pass
class Changed(Quick): transform = None

def changing():
    changed, made = Changed(), []
    for epoch in range(3):
        changed.transform = changed.transform if epoch == 1 else Step()
        made.append(epochs(loader(changed), 1))
    return made

class Outer(Quick):
    def draw(self, index):
        return sum(float(part.sum()) for batch in DataLoader(Inner(4), batch_size=2) for part in batch)
    def __getitem__(self, index): return torch.tensor([self.draw(index)])

class OuterWorkers(Outer): pass

class Turns(Quick):
    barrier = None
    def draw(self, index):
        if self.barrier: self.barrier.wait()
        return index

class Held(Turns):
    samples = Differs.samples
    def draw(self, index): return super().draw(index) + (are_recipes() and index == 5)

def at_once():
    # Two threads take turns with samples: of one loader with recipes, of another one that runs bare.
    loaders = [DataLoader(kind(), batch_size=4) for kind in (Held, Turns)]
    made = {type(one.dataset).__name__: list(map(repr, one)) for one in loaders}
    barrier = threading.Barrier(2)
    for one in loaders: one.dataset.barrier = barrier
    def go(one): made[type(one.dataset).__name__] += list(map(repr, one))
    threads = [threading.Thread(target=go, args=(one,)) for one in loaders]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return made

class Stream(IterableDataset):
    def __iter__(self):
        for number in range(20):
            make_image()
            yield number, random.random()

def loader(dataset, **options):
    return DataLoader(dataset, batch_size=4, shuffle=not isinstance(dataset, IterableDataset), **options)

if __name__ == "__main__":
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    made = {
        "Plain": epochs(loader(Plain())),
        "Workers": epochs(loader(Workers(), num_workers=2)),
        "Persistent": epochs(loader(Persistent(), num_workers=2, persistent_workers=True)),
        "Spawned": epochs(loader(Spawned(), num_workers=2, multiprocessing_context="spawn"), 1),
        "Served": epochs(loader(Served(), num_workers=1, multiprocessing_context="forkserver"), 1),
        "Differs": epochs(loader(Differs())),
        "Anew": anew(),
        "Kept": epochs(loader(Kept())),
        "Changed": changing(),
        "Warns": epochs(loader(Warns(), pin_memory=True)),
        "Outer": epochs(loader(Outer(8))),
        "OuterWorkers": epochs(loader(OuterWorkers(8), num_workers=2)),
        "Stream": epochs(loader(Stream())),
        "Held": at_once(),
    }
    print(json.dumps(made))
"""
# The process that trains forks another one that trains, too.
FORKS = """
class Mine(Quick): pass
class Theirs(Quick): pass

if __name__ == "__main__":
    epochs(DataLoader(Mine(), batch_size=4))
    if os.fork():
        os.wait()
    else:
        epochs(DataLoader(Theirs(), batch_size=4, num_workers=1))
        epochs(DataLoader(Mine(), batch_size=4))
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran]:
    """The script of all ways, bare and under run."""
    tmp = tmp_path_factory.mktemp("ways")
    folder = make_run_folder(tmp / "run")
    both = [
        start_script(tmp / f"{way}.py", PREAMBLE + WAYS, folder if way == "under" else None)
        for way in ("bare", "under")
    ]
    bare, under = (end_script(process, folder) for process in both)
    assert bare.code == 0, bare.stderr
    assert under.code == 0, under.stderr
    return bare, under


ALL = (
    "Plain", "Workers", "Persistent", "Spawned", "Served", "Differs", "Anew", "Kept", "Changed", "Warns",
    "Outer", "OuterWorkers", "Stream", "Held",
)  # fmt: skip


def test_batches_and_random_states_are_the_bare_runs(ways: tuple[Ran, Ran]) -> None:
    bare, under = (json.loads(run.stdout) for run in ways)
    assert under == bare
    assert under.keys() == set(ALL)
    assert under["Anew"][1] == [True] * 3  # nobody keeps datasets that are over


def test_all_fetches_but_one_are_made_with_recipes(ways: tuple[Ran, Ran]) -> None:
    two, one, three = 2 * 40 - 4, 40 - 4, 3 * 40 - 4
    expected = {
        "Plain": two, "Workers": two, "Persistent": two, "Spawned": one, "Served": one, "Anew": three,
        "Changed": three, "Stream": one,
    }  # fmt: skip
    reports = {name: ways[1].loader(name) for name in expected}
    assert {name: report.images for name, report in reports.items()} == expected
    assert {name: 4 * report.batches - 4 for name, report in reports.items()} == expected
    assert all(report.is_taken and report.gain > 1.5 for report in reports.values()), reports


def test_a_loader_that_differs_runs_bare_and_the_others_do_not(ways: tuple[Ran, Ran]) -> None:
    report = ways[1].loader("Differs")
    assert (report.is_taken, report.verdict, report.images, report.batches) == (False, "differs", 0, 20)
    assert report.why == "samples differ from the bare run's: sample 5 (/data/\x1b[31m5.jpg)"


def test_each_loader_is_told_once(ways: tuple[Ran, Ran]) -> None:
    said = ways[1].said
    assert len(said) == len(ALL) + 1  # Held, and Turns beside it
    assert said[0].startswith(
        "feedrate run: loader 0 (Plain, 40 samples, no workers): 40 samples made both ways are equal; "
    )
    assert said[1].startswith("feedrate run: loader 1 (Workers, 40 samples, 2 workers): 40 samples made")
    assert said[5] == (
        "feedrate run: loader 5 (Differs, 40 samples, no workers) runs bare: samples differ from the bare "
        "run's: sample 5 (/data/\\x1b[31m5.jpg)"
    )
    assert said[12].startswith("feedrate run: loader 12 (Stream, no workers): ")


def test_warnings_name_the_lines_that_they_name_in_a_bare_run(ways: tuple[Ran, Ran]) -> None:
    bare, under = (
        [line.replace(f"{way}.py", "script") for line in run.stderr.splitlines() if line not in run.said]
        for way, run in zip(("bare", "under"), ways, strict=True)
    )
    assert sum("UserWarning" in line for line in bare) == 3
    assert under == bare


@pytest.mark.parametrize(("name", "proofs"), [("Plain", 0), ("Kept", 0), ("Anew", 2), ("Changed", 1)])
def test_a_loader_that_is_made_anew_or_changed_is_proved_again_but_shortly(
    ways: tuple[Ran, Ran], name: str, proofs: int
) -> None:
    number = ways[1].loader(name).number
    assert [fact["loader"] for fact in ways[1].of_kind("proof")].count(number) == proofs


@pytest.mark.parametrize("name", ["Outer", "OuterWorkers"])
def test_a_loader_inside_a_sample_is_part_of_it(ways: tuple[Ran, Ran], name: str) -> None:
    run = ways[1]
    assert "Inner" not in {fact["dataset"] for fact in run.of_kind("loader")}
    # Of each sample four images; one of the fetches, of four samples, was bare where there are so many.
    bare = 16 if name == "Outer" else 0
    assert run.loader(name).images == 2 * 8 * 4 - bare


def test_nothing_of_the_proofs_is_left(ways: tuple[Ran, Ran]) -> None:
    run = ways[1]
    (pid,) = {fact["pid"] for fact in run.of_kind("loader")}
    processes = {fact["pid"] for fact in run.of_kind("process")}
    assert pid in processes
    # Beside the training process: spawned workers, and what multiprocessing begins for them.
    assert 3 <= len(processes) <= 7
    assert not run.of_kind("bare")
    patched = run.of_kind("patched")
    assert "torch.utils.data.dataloader._BaseDataLoaderIter.__init__" in patched[0]["names"]


def _run(tmp_path: Path, body: str, settings: dict[str, Any], **environ: str) -> Ran:
    folder = make_run_folder(tmp_path / "run", **settings)
    return end_script(start_script(tmp_path / "script.py", PREAMBLE + body, folder, **environ), folder)


TRAINS = """
torch.manual_seed(1), random.seed(2), np.random.seed(3)
try:
    print(epochs(DataLoader(Quick(), batch_size=4), 1)[0])
finally:
    print("cleaned up")
"""


def test_a_problem_is_said_and_strict_ends_the_run_with_a_code_of_its_own(tmp_path: Path) -> None:
    problem = "Pillow is left alone: there is none"
    body = TRAINS.replace("batch_size=4", "batch_size=4, num_workers=1")
    run = _run(tmp_path, body, {"strict": True}, ARMING=problem)
    assert (run.code, run.stdout) == (STRICT_EXIT, "cleaned up\n")
    assert run.stderr.splitlines() == [
        f"feedrate run: loader 0 (Quick, 40 samples, 1 worker) runs bare: {problem}",
        "feedrate run: --strict: a loader that would run bare ends the run",
    ]
    assert run.of_kind("strict")
    assert run.loader("Quick").why == problem


def test_a_loader_that_cannot_be_looked_at_runs_bare_and_that_is_said_once(tmp_path: Path) -> None:
    body = """
    class Odd(Quick):
        @property
        def transform(self): raise LookupError("there is none")

    for epoch in range(2):
        print(len(list(DataLoader(Odd(), batch_size=4))), flush=True)
    """
    run = _run(tmp_path, textwrap.dedent(body), {})
    why = "a loader could not be looked at: LookupError('there is none')"
    assert (run.code, run.stdout, run.stderr) == (0, "10\n10\n", f"feedrate run: {why}\n")
    assert {fact["why"] for fact in run.of_kind("bare")} == {why}
    (tmp_path / "strict").mkdir()
    run = _run(tmp_path / "strict", textwrap.dedent(body), {"strict": True})
    assert (run.code, run.stdout) == (STRICT_EXIT, "")


def test_of_many_ranks_the_first_speaks_and_their_numbers_add_up(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", prove=8)
    started = [
        start_script(tmp_path / f"{rank}.py", PREAMBLE + TRAINS, folder, RANK=str(rank), ARMING=problem)
        for rank, problem in enumerate(["", "", "its kernel is another one"])
    ]
    first, second, third = (end_script(process, folder) for process in started)
    assert first.stdout == second.stdout == third.stdout
    assert len(first.said) == 1
    assert second.stderr == third.stderr == ""
    report = first.loader("Quick")
    assert (report.batches, report.images) == (30, 2 * (40 - 4))
    assert {fact["samples"] for fact in first.of_kind("loader")} == {8, 0}
    # One that could not take it says more than two that could.
    assert (report.is_taken, report.why) == (False, "its kernel is another one")


def test_a_process_that_was_forked_has_loaders_of_its_own(tmp_path: Path) -> None:
    run = _run(tmp_path, FORKS, {})
    assert run.code == 0, run.stderr
    told = [(fact["dataset"], fact["loader"]) for fact in run.of_kind("loader")]
    assert sorted(told) == [("Mine", 0), ("Mine", 1), ("Theirs", 0)]
    assert len({fact["pid"] for fact in run.of_kind("loader")}) == 2
    assert run.loader("Theirs").images == 76
