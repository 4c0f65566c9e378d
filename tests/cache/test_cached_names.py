# SPDX-License-Identifier: Apache-2.0
"""`cached(..., key=...)`: a cache is joined only by the dataset whose samples it holds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import feedrate
from feedrate import UsageError
from feedrate.cache.persistent import home_of
from feedrate.cli import main

COUNT = 10


class Words(Dataset[Any]):
    """Samples that tell which part of the data they are of."""

    def __init__(self, part: str, count: int = COUNT) -> None:
        self.part, self.count = part, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return f"{self.part}-{index}"

    def __repr__(self) -> str:
        return f"Words({self.part!r})"


class Upper:
    """What people write around a Subset, to give each part transforms of its own."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> Any:
        return self.part[index].upper()


def read(dataset: Any) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


@pytest.fixture(params=["disk", "ram"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    disk = f"{tmp_path}:10MB" if request.param == "disk" else None
    return {"ram": "10MB" if disk is None else 0, "disk": disk, "key": "v1"}


@pytest.fixture(autouse=True)
def own_job() -> Iterator[None]:
    """Caches of other tests that still live are not this job's."""
    os.environ["SLURM_JOB_ID"] = f"names-{random.random()}"
    yield
    del os.environ["SLURM_JOB_ID"]


@pytest.mark.parametrize("is_filled", [True, False], ids=["filled", "just opened"])
def test_validation_never_gets_the_samples_of_training(options: dict[str, Any], is_filled: bool) -> None:
    train = feedrate.cached(Words("train"), **options)
    if is_filled:
        read(train)
    with pytest.raises(
        UsageError, match=r"of Words\('validation'\) is not what the cache cached-v1-\w+ holds"
    ) as got:
        feedrate.cached(Words("validation"), **options)
    assert "key of its own" in str(got.value.hint)
    assert read(train) == read(Words("train"))
    train.close()


def test_a_cache_of_an_earlier_job_is_joined_only_by_its_dataset(tmp_path: Path) -> None:
    disk = f"{tmp_path}:10MB"
    for _ in range(2):
        train = feedrate.cached(Words("train"), ram=0, disk=disk, key="v1")
        assert read(train) == read(Words("train"))
        train.close()
    with pytest.raises(UsageError, match=r"is not what the cache cached-v1-\w+ holds under the key 'v1'"):
        feedrate.cached(Words("changed"), ram=0, disk=disk, key="v1")


def make_parts() -> dict[str, Any]:
    whole = Words("all", 30)
    return {
        "first": Subset(whole, range(COUNT)),
        "second": Subset(whole, list(range(COUNT, 2 * COUNT))),
        "other order": Subset(whole, [*range(1, COUNT), 0]),
        "of a part": Subset(Subset(whole, range(10, 30)), range(COUNT)),
        "of another part": Subset(Subset(whole, range(20, 30)), range(COUNT)),
        "joined": ConcatDataset([Subset(whole, range(4)), Subset(whole, range(20, 26))]),
        "joined otherwise": ConcatDataset([Subset(whole, range(6)), Subset(whole, range(20, 24))]),
        "wrapped": Upper(Subset(whole, range(COUNT))),
        "wrapped second": Upper(Subset(whole, range(COUNT, 2 * COUNT))),
        "wrapped twice": Upper(Upper(Subset(whole, range(COUNT)))),
    }


def test_parts_of_a_dataset_have_caches_of_their_own(tmp_path: Path) -> None:
    parts = make_parts()
    for again in (False, True):
        for name, part in parts.items():
            if name == "wrapped twice":
                continue
            dataset = feedrate.cached(part, ram=0, disk=f"{tmp_path}:10MB", key="fold")
            assert read(dataset) == read(part), name
            assert not again or dataset.report().misses == 0, name
            dataset.close()
    assert len(list(home_of(str(tmp_path)).iterdir())) == len(parts) - 1


def test_what_the_name_does_not_tell_the_samples_do(tmp_path: Path) -> None:
    disk = f"{tmp_path}:10MB"
    first, second = (Upper(Upper(Subset(Words("all", 30), range(n, n + COUNT)))) for n in (0, COUNT))
    feedrate.cached(first, ram=0, disk=disk, key="fold").close()
    with pytest.raises(UsageError, match="is not what the cache"):
        feedrate.cached(second, ram=0, disk=disk, key="fold")


class Chance(Words):
    def __getitem__(self, index: int) -> Any:
        return random.random()


def test_a_dataset_that_does_not_repeat_itself_is_a_warning(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="sample 0 of Chance came out differently"):
        first = feedrate.cached(Chance("x"), **options)
    with pytest.warns(UserWarning, match="sample 0 of Chance came out differently"):
        second = feedrate.cached(Chance("x"), **options)
    for dataset in (first, second):
        dataset.close()


class Noted(Words):
    """Notes in a file which process has made which sample."""

    def __init__(self, log: Path) -> None:
        super().__init__("noted")
        self.log = log

    def __getitem__(self, index: int) -> Any:
        with self.log.open("a") as file:
            file.write(json.dumps([os.getpid(), index]) + "\n")
        return super().__getitem__(index)


def test_only_the_process_that_opens_a_filled_cache_makes_three_samples(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for context in (None, "fork", "spawn"):
        dataset = feedrate.cached(Noted(log), ram=0, disk=f"{tmp_path}:10MB", key="v1")
        if context is not None:
            loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context=context)
            assert sorted(word for batch in loader for word in batch) == sorted(read(Words("noted")))
        else:
            read(dataset)
        made = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("")
        dataset.close()
        if context is not None:
            assert made == [[os.getpid(), number] for number in (0, 5, 9)]


class Lazy(Words):
    """Opens its file when it is first asked, as those who read HDF5 in workers do."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = object()
        return super().__getitem__(index)


@pytest.mark.parametrize("is_part", [False, True])
def test_what_is_compared_opens_no_file_that_workers_would_inherit(tmp_path: Path, is_part: bool) -> None:
    for _ in range(2):
        dataset = Lazy("lazy")
        whole = ConcatDataset([Subset(dataset, range(COUNT))]) if is_part else dataset
        feedrate.cached(whole, ram=0, disk=f"{tmp_path}:10MB", key="v1").close()
        assert dataset.file is None


class Broken(Words):
    def __getitem__(self, index: int) -> Any:
        raise OSError("the file server is away")


def test_a_sample_that_cannot_be_made_anew_is_a_warning(tmp_path: Path) -> None:
    disk = f"{tmp_path}:10MB"
    Broken.__qualname__ = Broken.__name__ = "Words"
    feedrate.cached(Words("train"), ram=0, disk=disk, key="v1").close()
    (place,) = home_of(str(tmp_path)).iterdir()
    feedrate.cached(Broken("train"), ram=0, disk=disk, key="v1").close()  # empty: nothing to compare
    (other,) = (path for path in home_of(str(tmp_path)).iterdir() if path != place)
    for name in ("data", "rows"):
        (other / name).write_bytes((place / name).read_bytes())
    with pytest.warns(UserWarning, match="could not be made, .* key 'v1': OSError: the file server is away"):
        dataset = feedrate.cached(Broken("train"), ram=0, disk=disk, key="v1")
    assert dataset[0] == "train-0"
    dataset.close()


def test_a_cache_under_an_old_name_is_listed_and_goes_and_is_not_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = f"{tmp_path}:10MB"
    feedrate.cached(Words("train"), ram=0, disk=disk, key="v1").close()
    (place,) = home_of(str(tmp_path)).iterdir()
    old = place.rename(place.with_name("cached-v1-0123456789abcdef"))
    os.utime(old / "lock", (1, 1))
    feedrate.cached(Words("other"), ram=0, disk=disk, key="v1").close()
    assert main(["scratch", "ls", "--scratch", str(tmp_path)]) == 0
    assert old.name in capsys.readouterr().out
    assert main(["scratch", "gc", "--scratch", str(tmp_path)]) == 0
    assert not old.exists()
    assert place.exists()


@pytest.mark.parametrize("key", [None, "v1"])
def test_a_warning_points_at_the_line_that_called_cached(key: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = feedrate.cached(Chance("x"), ram="1MB", key=key)
        list(DataLoader(dataset, 2))
    (warning,) = caught
    line = Path(warning.filename).read_text().splitlines()[warning.lineno - 1]
    assert line.strip() == 'dataset = feedrate.cached(Chance("x"), ram="1MB", key=key)'
    dataset.close()


def test_a_warning_of_a_worker_points_there_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import random, feedrate\n"
        "from torch.utils.data import DataLoader\n"
        "class Chance(list):\n"
        "    def __getitem__(self, index): return random.random()\n"
        "dataset = feedrate.cached(Chance([0] * 4), ram='1MB')\n"
        "list(DataLoader(dataset, 2, num_workers=1))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert f"{script}:5: UserWarning: sample 0 of Chance came out differently" in done.stderr
