# SPDX-License-Identifier: Apache-2.0
"""The demo: with a runner that trains nothing, and once for real."""

from __future__ import annotations

import errno
import math
import shutil
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feedrate.demo.run import DemoOptions, run_demo, write_photographs
from feedrate.errors import AlreadyExists, MissingExtra, StorageError, UsageError
from feedrate.lab.loader import list_images
from feedrate.lab.photographs import CLASSES

Usage = namedtuple("Usage", "total used free")


class FakeTraining:
    """Looks at what it is given, and says that feedrate was twice as fast."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, function: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        assert function == "feedrate.demo.train:train"
        self.seen.append({**arguments, "exists": Path(arguments["path"]).exists()})
        seconds = 4.0 if arguments["kind"] == "files" else 2.0
        readings = {
            "images": [20],
            "seconds": [seconds],
            "wait_s": 1.0,
            "cpu_s": seconds,
            "first_batch_s": 0.1,
            "accuracy": 0.75,
        }
        return readings, 10**8


@pytest.fixture(autouse=True)
def _temporary_files_go_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def left_over(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "temporary").iterdir())


def test_files_are_trained_on_first_and_the_pack_second_with_equal_options(tmp_path: Path) -> None:
    training, said = FakeTraining(), []
    result = run_demo(DemoOptions(images=20, epochs=3), say=said.append, runner=training)
    assert [run["kind"] for run in training.seen] == ["files", "pack"]
    assert all(run["exists"] for run in training.seen)
    assert training.seen[0]["options"] == training.seen[1]["options"]
    assert result.ratio == 2.0
    assert result.kept is None
    assert [line.split()[0] for line in said] == ["making", "training", "packing", "packed", "training"]
    assert left_over(tmp_path) == []


def test_a_kept_folder_holds_images_and_pack(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    result = run_demo(DemoOptions(20, 1, folder, keep=True), say=lambda _: None, runner=FakeTraining())
    assert result.kept == str(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["held-out", "images", "pack"]
    assert len(list_images(folder / "images")) == 20


def test_a_folder_of_the_user_stays_and_what_was_put_in_goes(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    run_demo(DemoOptions(20, 1, folder), say=lambda _: None, runner=FakeTraining())
    assert list(folder.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "precious").write_text("x")
    with pytest.raises(AlreadyExists, match="is there and not empty"):
        run_demo(DemoOptions(20, 1, tmp_path, keep=False), say=lambda _: None, runner=FakeTraining())
    assert (tmp_path / "images" / "precious").exists()


def test_an_interrupt_leaves_nothing_behind_even_when_the_folder_was_to_be_kept(tmp_path: Path) -> None:
    def interrupt(*_: object) -> tuple[dict[str, Any], int]:
        raise KeyboardInterrupt

    for options in (DemoOptions(20, 1), DemoOptions(20, 1, tmp_path / "new", keep=True)):
        with pytest.raises(KeyboardInterrupt):
            run_demo(options, say=lambda _: None, runner=interrupt)
    assert left_over(tmp_path) == []
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_said_before_it_is_filled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10**6))
    with pytest.raises(StorageError, match=r"the demo needs .* has 1\.00 MB free"):
        run_demo(DemoOptions(20, 1), say=lambda _: None, runner=FakeTraining())
    assert left_over(tmp_path) == []


def test_a_disk_that_fills_up_on_the_way_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(StorageError, match=r"cannot write to .*: No space left on device"):
        run_demo(DemoOptions(20, 1), say=lambda _: None, runner=FakeTraining())
    assert left_over(tmp_path) == []


def test_without_torch_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="needs torch, which is not installed") as caught:
        run_demo(DemoOptions(20, 1), say=lambda _: None, runner=FakeTraining())
    assert caught.value.hint == "pip install 'feedrate[torch]'"


@pytest.mark.parametrize(
    ("images", "epochs", "words"), [(9, 1, "--images must be at least 10"), (20, 0, "--epochs")]
)
def test_counts_that_make_no_sense_are_refused(images: int, epochs: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        DemoOptions(images, epochs)


def test_images_lie_in_folders_named_like_their_classes(tmp_path: Path) -> None:
    size_bytes = write_photographs(tmp_path / "images", 12, seed=0)
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == sorted(CLASSES)
    assert size_bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.jpg"))


def test_both_trainings_run_for_real_and_name_their_accuracy() -> None:
    pytest.importorskip("torch")
    result = run_demo(DemoOptions(images=40, epochs=1), say=lambda _: None)
    for one in (result.before, result.after):
        assert one.images_per_s > 0
        assert 0 <= one.wait_share <= 1
        assert one.peak_memory_bytes > 10**7
        assert one.accuracy is not None
        assert 0 <= one.accuracy <= 1
    assert result.runs[0].images == result.runs[1].images == (40,)
    assert math.isfinite(result.ratio)
