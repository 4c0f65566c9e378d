# SPDX-License-Identifier: Apache-2.0
"""`feedrate.cached`: what a dataset returned comes again, in every process, and nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import feedrate
from feedrate import UsageError
from feedrate.cache.views import Views
from feedrate.loader.cached import name_dataset

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Subset  # noqa: E402


class Squares(Dataset):
    """Samples that can be told from each other; writes down in a file which ones were made."""

    def __init__(self, count: int, log: Path | None = None, side: int = 4) -> None:
        self.count, self.log, self.side = count, log, side
        self.classes = ["even", "odd"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        return {"image": torch.full((self.side, self.side), index, dtype=torch.int32), "label": index % 2}


class Batches(Squares):
    asked: ClassVar[list[list[int]]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]


class Noise(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(3)


class Files(Squares):
    """One file each, and more in memory than on the disk."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(count)
        self.folder = folder
        for number in range(count):
            (folder / str(number)).write_bytes(bytes([number]) * 1000)

    def __getitem__(self, index: int) -> Any:
        data = (self.folder / str(index)).read_bytes()
        return np.repeat(np.frombuffer(data, np.uint8), 4)


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"] * 2}


def spoil(sample: dict[str, Any]) -> dict[str, Any]:
    sample["image"].zero_()
    sample["label"] = -1
    return sample


def made(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_a_sample_is_made_once_and_then_comes_from_the_cache(tmp_path: Path) -> None:
    dataset = feedrate.cached(Squares(10, tmp_path / "log"), ram="10MB")
    for _ in range(3):
        for index in range(10):
            sample = dataset[index]
            assert type(sample) is dict
            assert sample["image"].dtype == torch.int32
            assert sample["image"].unique().tolist() == [index]
            assert sample["label"] == index % 2
    # The first one is made twice, to see whether it comes out the same.
    assert sorted(made(tmp_path / "log")) == sorted([*range(10), 0])
    report = dataset.report()
    assert (report.samples, report.kept, report.hits, report.misses) == (10, 10, 20, 10)


def test_a_dataset_that_fetches_batches_is_asked_for_the_missing_ones_alone() -> None:
    Batches.asked = []
    dataset = feedrate.cached(Batches(10), ram="10MB")
    dataset.__getitems__([0, 1])
    found = dataset.__getitems__([3, 0, -1, 1])
    assert [sample["image"][0, 0].item() for sample in found] == [3, 0, 9, 1]
    assert Batches.asked == [[0, 1], [0], [3, 9]]


@pytest.mark.parametrize("side", [4, 400])
def test_what_is_written_into_a_sample_does_not_come_back(side: int) -> None:
    dataset = feedrate.cached(Squares(3, side=side), ram="10MB").map(spoil)
    for _ in range(3):
        assert dataset[2]["image"].sum() == 0
    assert dataset.source[2]["image"].unique().tolist() == [2]


def test_a_large_sample_is_a_view_of_shared_memory_and_a_kept_one_stays_valid() -> None:
    dataset = feedrate.cached(Squares(4, side=400), ram="10MB")
    _ = dataset[1]
    sample = dataset[1]
    assert is_file_memory(sample["image"].data_ptr())
    sample["image"] += 1
    assert not is_file_memory(dataset[0]["image"].data_ptr())  # a miss: what the dataset made
    dataset.close()
    assert sample["image"].unique().tolist() == [2]


def is_file_memory(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < stop:
            return "feedrate-cache" in line
    return False


def test_map_runs_at_every_access() -> None:
    calls: list[int] = []
    dataset = feedrate.cached(Squares(2), ram="1MB").map(lambda s: calls.append(s["label"]) or s)
    for _ in range(3):
        _ = dataset[1]
    assert calls == [1, 1, 1]
    assert dataset.map(double)[1]["image"].unique().tolist() == [2]
    assert len(dataset) == 2


@pytest.mark.parametrize(
    ("method", "workers"),
    [("fork", 0), ("fork", 2), ("spawn", 1), pytest.param("forkserver", 2, marks=pytest.mark.slow)],
)
def test_workers_share_what_each_of_them_made(tmp_path: Path, method: str, workers: int) -> None:
    dataset = feedrate.cached(Squares(24, tmp_path / "log"), ram="10MB").map(double)
    loader = DataLoader(
        dataset,
        4,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=method != "fork",  # they take seconds to start
    )
    for _ in range(2):
        seen = [number for batch in loader for number in (batch["image"][:, 0, 0] // 2).tolist()]
        assert sorted(seen) == list(range(24))
    # Each worker makes its first sample twice while the cache is empty.
    assert set(made(tmp_path / "log")) == set(range(24))
    assert len(made(tmp_path / "log")) <= 24 + max(workers, 1)
    report = dataset.report()
    assert (report.kept, report.hits, report.misses) == (24, 24, 24)


def test_persistent_workers_and_samplers_with_repeats_work(tmp_path: Path) -> None:
    dataset = feedrate.cached(Squares(12, tmp_path / "log"), ram="10MB")
    sampler = RandomSampler(dataset, replacement=True, num_samples=60)
    loader = DataLoader(
        dataset, 5, sampler=sampler, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    for _ in range(2):
        for batch in loader:
            assert (batch["image"][:, 0, 0] % 2 == batch["label"]).all()
    report = dataset.report()
    assert report.hits + report.misses == 120
    assert report.kept == len(set(made(tmp_path / "log")))


def test_subsets_and_chains_of_cached_datasets_work() -> None:
    dataset = feedrate.cached(Squares(10), ram="1MB")
    subset = Subset(dataset, [7, 2])
    joined = ConcatDataset([subset, dataset])
    assert [joined[n]["image"][0, 0].item() for n in (0, 1, 2)] == [7, 2, 0]
    assert [s["image"][0, 0].item() for s in feedrate.cached(subset, ram="1MB")] == [7, 2]
    batch = next(iter(DataLoader(subset, 2)))
    assert batch["label"].tolist() == [1, 0]


def test_samples_that_no_batch_is_made_of_travel_from_a_worker_as_they_are() -> None:
    dataset = feedrate.cached(Squares(3, side=400), ram="10MB")
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context="fork")
    for _ in range(2):
        assert [sample["image"].unique().tolist() for sample in loader] == [[0], [1], [2]]


def test_no_torch_warning_comes_of_what_is_kept() -> None:
    # Warnings are errors in these tests: torch complains about memory that cannot be written to.
    dataset = feedrate.cached(Arrays(), ram="10MB")
    for _ in range(2):
        for batch in DataLoader(dataset, 2):
            assert batch.shape[1:] == (200, 200)


class Arrays(Squares):
    def __init__(self) -> None:
        super().__init__(4)

    def __getitem__(self, index: int) -> Any:
        return np.full((200, 200), index, np.float64)


def test_when_memory_is_full_the_rest_is_made_anew_and_hits_are_the_kept_share(tmp_path: Path) -> None:
    dataset = feedrate.cached(Squares(50, tmp_path / "log", side=50), ram=25 * 10_240)
    for _ in range(3):
        for index in np.random.default_rng(0).permutation(50):
            assert dataset[index]["image"][0, 0] == index
    report = dataset.report()
    assert 20 <= report.kept <= 25
    assert report.kept_bytes <= 25 * 10_240
    assert report.hits == 2 * report.kept
    assert report.kept_share == report.kept / 50


def test_what_memory_has_no_room_for_goes_to_the_disk_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    dataset = feedrate.cached(Squares(20, tmp_path / "log", side=50), ram=50_000, disk=f"{folder}:10MB")
    for _ in range(2):
        assert [dataset[n]["image"][0, 0].item() for n in range(20)] == list(range(20))
    ram, disk = dataset.report().tiers
    assert (ram.kind, disk.kind) == ("ram", "disk")
    assert 0 < ram.samples < 20
    assert ram.samples + disk.samples == 20
    dataset.close()
    assert list(folder.iterdir()) == []


def test_a_cache_in_which_nothing_fits_gives_what_the_dataset_gives() -> None:
    dataset = feedrate.cached(Squares(5, side=100), ram=100)
    assert [dataset[n]["image"][0, 0].item() for n in [*range(5), *range(5)]] == [*range(5), *range(5)]
    assert dataset.report().kept == 0


def test_the_report_says_hits_and_how_much_larger_samples_are_than_their_files(tmp_path: Path) -> None:
    dataset = feedrate.cached(Files(tmp_path, 20), ram="1MB")
    for _ in range(2):
        for index in range(20):
            assert dataset[index].tolist() == [index] * 4000
    report = dataset.report()
    assert report.expansion == pytest.approx(4.1, abs=0.3)
    words = str(report).splitlines()
    assert words[0] == f"20 of 20 samples kept (100%): {report.kept_bytes / 1000:.1f} KB in ram"
    assert words[1:] == [
        "20 hits, 20 misses",
        f"K = {report.expansion:.1f}: bytes kept per byte read from files",
    ]


def test_a_dataset_that_reads_no_files_has_no_k() -> None:
    dataset = feedrate.cached(Squares(4), ram="1MB")
    _ = dataset[0], dataset[0]
    assert dataset.report().expansion is None or dataset.report().expansion > 0


def test_random_samples_are_pointed_out() -> None:
    dataset = feedrate.cached(Noise(3), ram="1MB")
    with pytest.warns(
        UserWarning, match=r"sample 1 of Noise came out differently .* cached\(...\).map\(augment\)"
    ):
        _ = dataset[1]
    _ = dataset[2]


class Odd(Squares):
    def __getitem__(self, index: int) -> Any:
        return (torch.ones(1), {"path": Path("x")}) if index == 3 else (torch.ones(1), {"path": "x"})


# After an error, torch takes five seconds to end a worker.
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sample_that_has_no_encoding_is_named(workers: int) -> None:
    loader = DataLoader(feedrate.cached(Odd(5), ram="1MB"), num_workers=workers, collate_fn=len)
    with pytest.raises(
        UsageError, match=r"sample 3 of Odd holds a pathlib\.\S*PosixPath at \[1\]\['path'\]; cached\(\)"
    ):
        list(loader)


def test_what_the_dataset_says_of_itself_can_be_asked_for() -> None:
    dataset = feedrate.cached(Squares(4), ram="1MB")
    assert dataset.classes == ["even", "odd"]
    assert dataset.map(double).classes == ["even", "odd"]
    with pytest.raises(AttributeError, match="no_such"):
        _ = dataset.no_such


@pytest.mark.parametrize("index", [4, -5, 10**9])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match="of a dataset that has 4"):
        _ = feedrate.cached(Squares(4), ram="1MB")[index]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dataset": iter([1])}, "takes datasets with len"),
        ({"ram": -1}, "ram must be"),
        ({"ram": "lots"}, "'lots' is not a size"),
        ({"ram": 0}, "needs memory or a disk"),
        ({"disk": "/no/such/folder:1GB"}, "is not a folder"),
        ({"key": ""}, "key must be a text"),
        ({"key": 7}, "key must be a text"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], words: str) -> None:
    dataset = arguments.pop("dataset", Squares(4))
    with pytest.raises(UsageError, match=words):
        feedrate.cached(dataset, **arguments)


def test_other_indices_and_other_functions_are_refused() -> None:
    dataset = feedrate.cached(Squares(4), ram="1MB")
    with pytest.raises(UsageError, match="whole numbers, got 'a'"):
        _ = dataset["a"]
    with pytest.raises(UsageError, match=r"map\(\) takes a function, got 3"):
        dataset.map(3)


def test_a_pickled_copy_is_the_same_cache(tmp_path: Path) -> None:
    dataset = feedrate.cached(Squares(6, tmp_path / "log"), ram="1MB")
    _ = dataset[2]
    copy = pickle.loads(pickle.dumps(dataset.map(double)))
    assert copy[2]["image"][0, 0] == 4
    assert copy.report().hits == 1
    assert made(tmp_path / "log") == [2, 2]


def test_two_caches_of_equal_datasets_share_nothing_without_a_key(tmp_path: Path) -> None:
    one = feedrate.cached(Squares(6, tmp_path / "one"), ram="1MB")
    two = feedrate.cached(Squares(6, tmp_path / "two"), ram="1MB")
    _ = one[2]
    assert two.report().kept == 0


def test_with_a_key_they_share_and_with_another_they_do_not(tmp_path: Path) -> None:
    key = f"squares-{os.getpid()}"
    one = feedrate.cached(Squares(6, tmp_path / "one"), ram="1MB", key=key)
    two = feedrate.cached(Squares(6, tmp_path / "two"), ram="1MB", key=key)
    other = feedrate.cached(Squares(6, tmp_path / "three"), ram="1MB", key=key + "b")
    _ = one[2]
    assert two[2]["image"][0, 0] == 2
    assert made(tmp_path / "two") == [0, 3, 5]  # to compare them
    assert (two.report().kept, other.report().kept) == (4, 3)


def test_the_name_changes_with_the_key_the_length_and_the_code() -> None:
    def make(constant: int) -> Any:
        class Data:
            def __len__(self) -> int:
                return 3

            def __getitem__(self, index: int) -> int:
                return index + constant if constant == 1 else index

        return Data()

    plain = name_dataset(Squares(3), "k")
    assert name_dataset(Squares(3), "k") == plain
    assert len({plain, name_dataset(Squares(4), "k"), name_dataset(Squares(3), "l")}) == 3
    assert name_dataset(Noise(3), "k") != plain
    assert name_dataset(make(1), "k") == name_dataset(make(1), "k")


CODE = """
class Data:
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return index {change}
"""


def test_a_changed_line_of_the_class_changes_the_name_and_a_moved_one_does_not() -> None:
    names = []
    for change, before in (("+ 1", ""), ("+ 2", ""), ("+ 1", "\n\n# moved\n")):
        space: dict[str, Any] = {"__name__": "data"}
        exec(before + CODE.format(change=change), space)
        names.append(name_dataset(space["Data"](), "k"))
    assert names[0] == names[2] != names[1]


def test_many_threads_get_the_right_samples() -> None:
    dataset = feedrate.cached(Squares(40, side=400), ram="12MB")
    wrong: list[int] = []

    def read(seed: int) -> None:
        for index in np.random.default_rng(seed).integers(0, 40, 100):
            found = dataset[index]["image"].unique().tolist()
            wrong.extend([] if found == [index] else [index])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_samples_outlive_their_cache_and_nothing_is_said_at_the_end_of_the_process() -> None:
    program = textwrap.dedent(
        """
        import numpy as np, feedrate
        class Data:
            def __len__(self): return 3
            def __getitem__(self, index): return np.full(10**6, index)
        data = feedrate.cached(Data(), ram="100MB")
        held = [data[n] for n in (0, 1, 2, 0, 1, 2)]
        del data
        assert [int(h[5]) for h in held] == [0, 1, 2, 0, 1, 2]
        cycle = [held]; cycle.append(cycle)
        """
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")


def test_memory_that_a_view_shows_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = feedrate.cached(Squares(6, side=400), ram="100MB")
    for index in range(6):
        _ = dataset[index]
    held = [dataset[index]["image"] for index in (4, 5)]
    opened = dataset._store.opened
    monkeypatch.setattr(opened._watch, "must_return", lambda: 10**9)
    dataset._store.opened.relieve()
    assert dataset.report().kept == 2
    assert [image.unique().tolist() for image in held] == [[4], [5]]
    del held
    dataset._store.opened.relieve()
    assert dataset.report().kept == 0
    assert [dataset[n]["image"][0, 0].item() for n in range(6)] == list(range(6))


def test_where_memory_cannot_be_mapped_samples_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Views, "open", lambda *_: None)
    dataset = feedrate.cached(Squares(2, side=400), ram="100MB")
    _ = dataset[1]
    assert dataset[1]["image"].unique().tolist() == [1]
    assert dataset.report().hits == 1


def test_samples_that_outlive_the_names_of_modules_end_without_a_word() -> None:
    program = """
import feedrate, feedrate.cache.views
kept = feedrate.cached([bytes(9000)] * 4, ram="1MB")
samples = [kept[i] for i in range(4)], [kept[i] for i in range(4)]
feedrate.cache.views.os = None  # as the interpreter does it when it ends
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
