# SPDX-License-Identifier: Apache-2.0
"""`bench loader`: its plan with a runner that loads nothing, its contestants for real on a few images."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedrate import PackOptions, Recode, pack
from feedrate.bench.loader import BenchOptions, bench_loader
from feedrate.demo.run import write_photographs
from feedrate.draws import draw_crop
from feedrate.errors import PackError, SourceError, UsageError
from feedrate.lab.decode import check_pixels
from feedrate.lab.loader import FeedOptions, drain, list_images, make_feed


@pytest.fixture(scope="module")
def files_and_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("bench")
    write_photographs(folder / "files", 20, seed=0)
    pack(folder / "files", folder / "pack", PackOptions())
    return str(folder / "files"), str(folder / "pack")


def fake_runner(function: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    assert function == "feedrate.lab.loader:drain"
    seconds = 4.0 if arguments["kind"] == "files" else 1.0
    images = 20 * arguments["options"]["repeat"]
    readings = {
        "images": [images],
        "seconds": [seconds],
        "wait_s": seconds,
        "cpu_s": 1.0,
        "first_batch_s": 0.1,
    }
    return readings, 10**8


def test_the_same_images_go_through_both_loaders(files_and_pack: tuple[str, str]) -> None:
    files, packed = files_and_pack
    result = bench_loader(
        files, packed, BenchOptions(rounds=2), source="x", say=lambda _: None, runner=fake_runner
    )
    assert result.ratio == 4.0
    assert result.dataset_images == 20
    assert [run.contestant for run in result.runs] == ["DataLoader + Pillow", "feedrate"] * 2
    assert result.pixels.is_same


def test_raw_pixels_are_nothing_to_compare_with(files_and_pack: tuple[str, str], tmp_path: Path) -> None:
    files, _ = files_and_pack
    pack(files, tmp_path / "raw", PackOptions(recode=Recode(raw=True, resize=32)))
    with pytest.raises(PackError, match="x holds raw pixels, and no files that DataLoader"):
        bench_loader(files, str(tmp_path / "raw"), BenchOptions(), source="x", say=lambda _: None)


def test_a_small_dataset_is_repeated_until_an_epoch_can_be_timed(files_and_pack: tuple[str, str]) -> None:
    options = BenchOptions(rounds=1, shortest_epoch_images=90)
    result = bench_loader(*files_and_pack, options, source="x", say=lambda _: None, runner=fake_runner)
    assert result.runs[0].images == (100,)


@pytest.mark.slow  # three processes import torch; tests/demo does the same with a network behind
def test_both_loaders_run_for_real(files_and_pack: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    options = BenchOptions(rounds=1, epochs=1, threads=1, batch_size=8, side=32, shortest_epoch_images=40)
    result = bench_loader(*files_and_pack, options, source="x", say=lambda _: None)
    assert [run.images for run in result.runs] == [(40,), (40,)]
    assert result.before.images_per_s > 0
    assert result.after.peak_memory_bytes > 10**7


@pytest.mark.parametrize("kind", ["files", "pack"])
def test_a_feed_gives_every_image_as_often_as_asked_and_in_another_order_each_epoch(
    kind: str, files_and_pack: tuple[str, str]
) -> None:
    pytest.importorskip("torch")
    feed = make_feed(
        kind, files_and_pack[kind == "pack"], FeedOptions(batch_size=8, threads=1, side=32, repeat=2)
    )
    orders = []
    for epoch in range(2):
        labels = []
        for images, numbers in feed.epoch(epoch):
            assert tuple(images.shape[1:]) == (3, 32, 32)
            assert str(images.dtype) == "torch.uint8"
            labels += numbers.tolist()
        assert np.bincount(labels).tolist() == [4] * 10
        orders.append(labels)
    assert orders[0] != orders[1]


def test_draining_counts_images_and_time(files_and_pack: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    options = {"batch_size": 8, "threads": 1, "side": 32, "seed": 0, "repeat": 1}
    readings = drain("pack", files_and_pack[1], 2, options)
    assert readings["images"] == [20, 20]
    assert len(readings["seconds"]) == 2


def test_crops_through_the_kernel_are_those_of_pillow(files_and_pack: tuple[str, str]) -> None:
    state = random.getstate()
    check = check_pixels(files_and_pack[1], side=224)
    assert check.images == 20
    assert check.by_pillow == 0
    assert check.is_same
    assert random.getstate() == state


def test_labels_are_numbers_of_top_folders_and_a_flat_folder_has_one(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "a/2.JPEG", "a/deep/3.png", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [(Path(p).name, label) for p, label in list_images(tmp_path)] == [
        ("2.JPEG", 0),
        ("3.png", 0),
        ("1.jpg", 1),
    ]
    assert {label for _, label in list_images(tmp_path / "b")} == {0}


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no images in"):
        list_images(tmp_path)


@pytest.mark.parametrize("size", [(500, 375), (10, 1000), (1000, 10), (1, 1)])
def test_crops_lie_inside_the_image(size: tuple[int, int]) -> None:
    for _ in range(50):
        left, top, right, bottom = draw_crop(*size)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]


def test_options_that_make_no_sense_are_refused_by_the_name_of_the_flag() -> None:
    with pytest.raises(UsageError, match="--batch-size must be at least 1, got 0"):
        BenchOptions(batch_size=0)
