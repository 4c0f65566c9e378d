# SPDX-License-Identifier: Apache-2.0
"""How many images are below a folder: exact where all was listed, within its interval where not."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate.errors import StorageError
from feedrate.files.tree import FolderSample
from feedrate.plan import folders
from feedrate.plan.folders import Total, count_tree, estimate_entries, estimate_total

DISTRIBUTIONS: dict[str, Callable[[random.Random], int]] = {
    "alike": lambda draw: draw.randint(732, 1300),
    "exponential": lambda draw: int(draw.expovariate(1 / 200)),
    "log-normal": lambda draw: int(draw.lognormvariate(4, 0.7)),
    "two kinds": lambda draw: draw.choice((10, 2000)),
}


def touch(path: Path, *names: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).touch()


def list_only(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let the time be over after so many folders of each level."""

    def map_some(function: Callable[[Any], Any], items: Iterable[Any], **_: object) -> Iterator[Any]:
        yield from map(function, itertools.islice(items, most // 3))

    monkeypatch.setattr(folders, "map_in_time", map_some)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("listed", [30, 300])
def test_nine_of_ten_intervals_hold_the_truth_whatever_the_sizes_of_folders(name: str, listed: int) -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(200):
        sizes = [DISTRIBUTIONS[name](draw) for _ in range(1000)]
        figure = estimate_total(draw.sample(sizes, listed), Total(1000)).figure(0)
        hits += figure.low <= sum(sizes) <= figure.high
    assert hits >= 180


def test_folders_that_were_all_listed_give_an_exact_number() -> None:
    figure = estimate_total([3, 4, 50], Total(3)).figure(57)
    assert (figure.low, figure.value, figure.high) == (57, 57, 57)


def test_an_estimate_is_never_below_what_was_seen() -> None:
    assert estimate_total([1, 1000], Total(20)).figure(1001).low == 1001


def test_a_tree_that_was_listed_whole_is_counted_exactly(tmp_path: Path) -> None:
    for number in range(12):
        touch(tmp_path / f"class-{number}", *(f"{n}.jpg" for n in range(number)), "notes.txt", ".hidden.jpg")
    touch(tmp_path / "class-0" / "deep", "one.PNG")
    tree = count_tree(str(tmp_path), seconds=5)
    assert tree.is_whole
    assert (tree.images.low, tree.images.value, tree.images.high) == (67, 67, 67)
    assert (tree.folders.value, tree.others.value) == (14, 12)
    assert tree.suffixes == {".jpg": 66, ".png": 1}
    assert sorted(tree.paths) == sorted(str(path) for path in tmp_path.rglob("[!.]*.[jpJP]*"))


def test_a_tree_that_was_listed_in_part_is_estimated_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        touch(tmp_path / "train" / f"class-{number:02d}", *(f"{n}.jpg" for n in range(8 + number % 5)))
    list_only(monkeypatch, 30)
    random.seed(0)  # of twenty draws, one is outside of two standard errors
    tree = count_tree(str(tmp_path), seconds=5)
    assert not tree.is_whole
    assert tree.images.low <= 600 <= tree.images.high
    assert tree.images.low < tree.images.high
    assert tree.folders.value == 62
    assert tree.how.startswith("32 folders of about 62 listed")


def test_images_are_drawn_as_likely_from_large_folders_as_they_hold_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "large", *(f"{n}.jpg" for n in range(900)))
    touch(tmp_path / "small", *(f"{n}.jpg" for n in range(100)))
    monkeypatch.setattr(folders, "_MOST_NAMES", 200)
    drawn = count_tree(str(tmp_path), seconds=5).paths
    assert len(set(drawn)) == len(drawn)
    from_large = sum("large" in path for path in drawn)
    assert 0.8 < from_large / len(drawn) < 1


def test_a_folder_that_links_to_one_above_it_is_listed_once(tmp_path: Path) -> None:
    touch(tmp_path / "a", "1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert count_tree(str(tmp_path), seconds=5).images.value == 1


def test_a_folder_that_cannot_be_listed_is_noted_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "a", "1.jpg")
    touch(tmp_path / "b", "2.jpg")
    opened = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    tree = count_tree(str(tmp_path), seconds=5)
    assert tree.unlisted == {str(tmp_path / "b"): "Permission denied"}
    assert (tree.images.low, tree.images.high) == (1, 1)


def test_a_top_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot list .*nowhere: No such file"):
        count_tree(str(tmp_path / "nowhere"), seconds=1)


def make_cut(entries: int, **facts: Any) -> FolderSample:
    found = FolderSample("/data")
    for name, value in {"entries": entries, "name_bytes": 12 * entries, **facts}.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize("bytes_per_entry", [24, 27.2, 36])
def test_a_folder_of_blocks_tells_within_a_factor_how_many_files_it_has(bytes_per_entry: float) -> None:
    size_bytes = int(1_000_000 * bytes_per_entry) // 4096 * 4096
    found = estimate_entries(make_cut(50_000, size_bytes=size_bytes))
    assert found.low <= 1_000_000 <= found.high


def test_a_folder_that_tells_nothing_has_at_least_what_was_seen() -> None:
    found = estimate_entries(make_cut(50_000))
    assert found.low == 50_000
    assert found.high > 2 * found.low
