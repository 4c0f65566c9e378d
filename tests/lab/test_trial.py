# SPDX-License-Identifier: Apache-2.0
"""Image files drained as a feedrate.Loader would: which call is tried, and what becomes of odd files."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import feedrate
from feedrate.errors import StorageError
from feedrate.lab import trial as loader_trial
from feedrate.lab.decode import Samples, open_files
from feedrate.lab.trial import TrialOptions, guess_options, options_of, try_loader
from feedrate.loader.pipeline import Feed
from feedrate.machine.cpu import count_usable_cores
from support.images import save_image


@pytest.fixture(autouse=True)
def _be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_DRAIN_S", "_ALONE_S", "_WINDOW_S"):
        monkeypatch.setattr(loader_trial, name, 0.01)


def save(folder: Path, count: int, suffix: str = ".jpg") -> list[str]:
    return [str(save_image(folder / f"{n}{suffix}", n, width=64, height=48)) for n in range(count)]


CROPS = TrialOptions(feedrate.RandomResizedCrop(32), flip=0.5, batch_size=4)


def test_a_trial_tells_what_all_cores_and_one_take(tmp_path: Path) -> None:
    trial, why = try_loader(save(tmp_path, 12), CROPS)
    assert why == ""
    assert trial is not None
    assert (trial.images, trial.threads) == (12, count_usable_cores())
    assert 0 < trial.alone_cpu_s <= trial.cpu_s
    assert 0 < trial.images_per_s <= trial.threads / trial.cpu_s
    assert 0 < trial.busy_threads <= trial.threads
    assert trial.scan_s > 0


def test_ranks_share_what_the_machine_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_trial, "count_usable_cores", lambda: 4)
    trial, _ = try_loader(save(tmp_path, 12), CROPS, ranks=2)
    assert trial is not None
    assert (trial.threads, trial.ranks) == (2, 2)
    assert trial.busy_threads <= 2


def test_files_that_the_kernel_leaves_to_pillow_are_tried_with_pillow(tmp_path: Path) -> None:
    trial, _ = try_loader(save(tmp_path / "a", 6) + save(tmp_path / "b", 6, ".png"), CROPS)
    assert trial is not None
    assert trial.images == 12


def test_some_files_that_are_gone_are_left_out(tmp_path: Path) -> None:
    files = save(tmp_path, 12)
    for path in files[:6]:
        Path(path).unlink()
    trial, _ = try_loader(files, CROPS)
    assert trial is not None
    assert trial.images == 6


def test_a_folder_that_is_gone_is_said_and_no_error(tmp_path: Path) -> None:
    said = "what feedrate.Loader would give: its image files cannot be read any more"
    assert try_loader([str(tmp_path / "gone.jpg")], CROPS) == (None, said)


def test_files_that_are_no_images_are_said_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"no image at all")
    trial, why = try_loader([str(tmp_path / "x.jpg")], CROPS)
    assert trial is None
    assert why == "what feedrate.Loader would give: none of its image files can be decoded any more"


def test_crops_larger_than_every_image_are_said_and_no_error(tmp_path: Path) -> None:
    trial, why = try_loader(save(tmp_path, 3), TrialOptions(feedrate.RandomCrop(100), 0.0, 2))
    assert trial is None
    assert "takes none of these images" in why


def test_images_that_take_too_long_are_said_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_trial, "_LONGEST_S", 0.0)
    trial, why = try_loader(save(tmp_path, 3), CROPS)
    assert trial is None
    assert why.endswith("too long to be tried")


def test_a_crop_that_is_padded_beyond_the_image_is_tried(tmp_path: Path) -> None:
    trial, why = try_loader(save(tmp_path, 3), TrialOptions(feedrate.RandomCrop(48, padding=8), 0.0, 2))
    assert (trial is not None, why) == (True, "")


def test_too_little_memory_is_said_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no memory for 5 bytes of images: Cannot allocate memory")

    monkeypatch.setattr(loader_trial, "open_files", refuse)
    trial, why = try_loader(save(tmp_path, 3), CROPS)
    assert (trial, why.endswith("Cannot allocate memory")) == (None, True)


@pytest.mark.parametrize(
    ("names", "image", "flip"),
    [
        (["decode:PIL", "transform:RandomResizedCrop", "transform:RandomHorizontalFlip"],
         feedrate.RandomResizedCrop(64), 0.5),
        (["transform:PIL.crop", "transform:PIL.transpose"], feedrate.RandomResizedCrop(64), 0.5),
        (["transform:Resize", "transform:CenterCrop"], feedrate.CenterCrop(64, resize=73), 0.0),
        (["decode:PIL", "transform:PIL.resize"], feedrate.Resize(64), 0.0),
    ],
)  # fmt: skip
def test_the_call_is_guessed_from_what_the_script_did(
    names: list[str], image: feedrate.Resize, flip: float
) -> None:
    guessed = guess_options(names, (64, 64), 8)
    assert type(guessed.image) is type(image)
    assert guessed.image.out_size == image.out_size
    assert getattr(guessed.image, "resize", None) == getattr(image, "resize", None)
    assert (guessed.flip, guessed.batch_size) == (flip, 8)


def test_a_recognised_call_counts_before_a_guess() -> None:
    guessed = guess_options([], (64, 48), 8, channels=1)
    assert options_of({}, guessed) == guessed
    crop = feedrate.RandomResizedCrop(32, interpolation="bicubic")
    call = {"image": crop, "flip": True, "batch_size": 16, "mode": "RGB", "seed": 3}
    assert options_of(call, guessed) == TrialOptions(crop, 0.5, 16, 3)


def test_one_thread_alone_is_tried_with_its_part_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[int, int]] = []
    drain = loader_trial._drain

    def note(samples: Samples, options: TrialOptions, batch: int, threads: int, seconds: float) -> object:
        tried.append((batch, threads))
        return drain(samples, options, batch, threads, seconds)

    monkeypatch.setattr(loader_trial, "count_usable_cores", lambda: 4)
    monkeypatch.setattr(loader_trial, "_drain", note)
    trial, why = try_loader(save(tmp_path, 12), replace(CROPS, batch_size=8))
    assert (trial is not None, why) == (True, "")
    batch = tried[0][0]
    assert batch >= 4
    assert tried == [(batch, 4), (batch // 4, 1)]


def test_files_held_in_memory_give_the_same_pixels_and_need_no_file(tmp_path: Path) -> None:
    files = save(tmp_path, 4)
    pixels = []
    for in_memory in (False, True):
        with open_files(files, in_memory=in_memory) as samples:
            out = np.zeros((4, 32, 32, 3), np.uint8)
            if in_memory:
                for path in files:
                    Path(path).unlink()
            report = samples.decode(samples.draw(32, 0), out)
            assert not report.statuses.any()
            pixels.append(out)
    assert np.array_equal(*pixels)


def test_no_thread_stays_when_a_trial_is_interrupted_as_its_threads_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Feed.begin

    def interrupted(feed: Feed[int], steps: int) -> None:
        begin(feed, steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(Feed, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        try_loader(save(tmp_path, 1), CROPS)
    # One that decodes while the interpreter ends would abort the process.
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("feedrate-maker")]
