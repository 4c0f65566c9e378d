# SPDX-License-Identifier: Apache-2.0
"""`bench kernel`: rounds with decoders that decode nothing and a clock that counts; small runs for real."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate import PackOptions, kernel, pack
from feedrate.bench.kernel import (
    DECODERS,
    Decoder,
    KernelOptions,
    Part,
    Task,
    bench_made,
    bench_set,
    bench_source,
    measure_stages,
    on_one_thread,
)
from feedrate.errors import NotFound, SourceError, UsageError
from feedrate.kernel import U8
from feedrate.lab.photographs import SETS, MadeSet, make_camera_picture, write_set
from feedrate.loader.samples import Samples, compare_pixels, open_files
from support.images import save_image

SMALL = KernelOptions(side=16, rounds=2)


def quiet(_: str) -> None:
    pass


@pytest.fixture
def samples(jpeg_folder: Path) -> Iterator[Samples]:
    with open_files([str(jpeg_folder / "cat" / f"{n}.jpg") for n in range(4)]) as opened:
        yield opened


class FakeClock:
    """Time passes only when a decoder says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, name: str, seconds: list[float], called: list[str]) -> Decoder:
        # The first call is the warm-up.
        left = itertools.chain([0.0], seconds)

        def decode(_: Task, out: U8) -> None:
            called.append(name)
            out[:] = 50
            self.now += next(left)

        return Decoder(name, decode)


def test_decoders_take_turns_and_ratios_are_of_paired_rounds(samples: Samples) -> None:
    clock, called = FakeClock(), list[str]()
    decoders = [
        clock.spend("feedrate", [1.0, 2.0, 1.0], called),
        clock.spend("Pillow", [4.0, 6.0, 8.0], called),
    ]
    options = dataclasses.replace(SMALL, rounds=3)
    result = bench_set("x", samples, options, say=quiet, decoders=decoders, clock=clock)
    assert called == ["feedrate", "Pillow"] * 4
    ours, theirs = result.standings
    assert ours.cpu_s == (1.0, 2.0, 1.0)
    assert ours.images_per_cpu_s == 4.0
    assert theirs.ratio == 4.0
    assert theirs.images_per_cpu_s == pytest.approx(4 / 6)


def test_what_is_not_installed_or_fails_is_left_out_with_its_reason(samples: Samples) -> None:
    clock = FakeClock()

    def fail(*_: object) -> None:
        raise ValueError("no such\nluck")

    decoders = [
        *(clock.spend(name, [1.0, 1.0], []) for name in ("feedrate", "Pillow")),
        Decoder("other", fail, needs=("no_such_module",)),
        Decoder("fails", fail),
        Decoder("half", fail, is_reduced=True),
    ]
    result = bench_set("x", samples, SMALL, say=quiet, decoders=decoders, clock=clock)
    assert [one.contestant for one in result.standings] == ["feedrate", "Pillow"]
    assert result.left_out["other"] == "not installed: pip install no_such_module"
    assert result.left_out["fails"] == "does not decode these images: no such luck"


def test_reduced_decoders_take_part_only_where_crops_are_large_enough(tmp_path: Path) -> None:
    large = [str(save_image(tmp_path / f"{n}.jpg", n, width=400, height=400)) for n in range(3)]
    clock = FakeClock()
    with open_files(large) as samples:
        for side, runs in ((32, True), (300, False)):
            decoders = [clock.spend(name, [1.0] * 9, []) for name in ("feedrate", "Pillow")]
            decoders.append(dataclasses.replace(clock.spend("half", [1.0] * 9, []), is_reduced=True))
            options = KernelOptions(side=side, rounds=1)
            result = bench_set("x", samples, options, say=quiet, decoders=decoders, clock=clock)
            assert ("half" not in result.left_out) is runs


def test_a_failure_of_our_own_is_never_hidden(samples: Samples) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        bench_set("x", samples, SMALL, say=quiet, decoders=[Decoder("feedrate", fail)])


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: d.name)
def test_every_decoder_makes_the_same_picture(decoder: Decoder, tmp_path: Path) -> None:
    if decoder.find_missing():
        pytest.skip(str(decoder.find_missing()))
    paths = [str(save_image(tmp_path / f"{n}.jpg", n, width=500, height=400, quality=95)) for n in range(5)]
    with open_files(paths) as opened, on_one_thread():
        task = Task(opened, opened.draw(32, 0), 32)
        assert task.geometry.flips.any()
        out, reference = task.make_out(), task.make_out()
        decoder.decode(task, out)
        DECODERS[1].decode(task, reference)
    for ours, theirs in zip(out, reference, strict=True):
        found = compare_pixels(ours, theirs)
        assert found.psnr_db is None or found.psnr_db > 30


def test_a_reduced_picture_keeps_enough_pixels_for_the_crop() -> None:
    part = Part((100, 50, 500, 450), 100, False, (800, 600))
    assert part.needed_size() == (200, 150)
    assert part.scale_box(200, 150) == (25.0, 12.5, 125.0, 112.5)
    # Where the crop is smaller than the output, the whole size is as much as there is.
    assert Part((0, 0, 50, 50), 100, False, (800, 600)).needed_size() == (800, 600)


def test_steps_add_up_to_the_whole_job(samples: Samples) -> None:
    ticks = itertools.count(0.0, 2.0)
    task = Task(samples, samples.draw(16, 0), 16)
    stages = measure_stages(task, np.arange(4), rounds=3, clock=lambda: next(ticks), profile=None)
    steps = {stage.name: stage.cpu_s_per_image for stage in stages}
    assert steps["whole job"] == 0.5
    assert sum(list(steps.values())[:3]) == pytest.approx(steps["whole job"])
    assert all(stage.what for stage in stages)


def test_the_kernel_s_own_profile_is_asked_for_every_crop(samples: Samples) -> None:
    task = Task(samples, samples.draw(16, 0, "bicubic"), 16)
    asked = []

    def profile(
        file: bytes, entries: bytes, *, box: object, size: object, repeats: int, filter_: int
    ) -> dict[str, float]:
        assert entries == kernel.scan(file).entries
        asked.append((box, size, repeats, filter_))
        return {"huffman": 2.0, "idct": 1.0}

    stages = measure_stages(task, np.array([1, 3]), rounds=3, clock=FakeClock(), profile=profile)
    assert asked == [(tuple(task.geometry.boxes[i].tolist()), (16, 16), 3, 3) for i in (1, 3)]
    steps = {stage.name: stage.cpu_s_per_image for stage in stages}
    assert list(steps) == ["read", "huffman", "idct", "whole job", "Huffman of all"]
    assert (steps["huffman"], steps["idct"]) == (2.0, 1.0)


def test_images_that_go_through_pillow_have_no_steps(jpeg_folder: Path) -> None:
    result = bench_source(str(jpeg_folder / "dog" / "picture.png"), SMALL, say=quiet).sets[0]
    assert result.stages == ()
    assert sum(result.by_pillow.values()) == 1


def test_a_folder_and_its_pack_are_measured_for_real(jpeg_folder: Path, tmp_path: Path) -> None:
    pack(jpeg_folder, tmp_path / "pack", PackOptions(workers=1))
    for source in (jpeg_folder, tmp_path / "pack"):
        result = bench_source(str(source), SMALL, say=quiet)
        (found,) = result.sets
        assert found.images == 16
        assert sum(found.by_pillow.values()) == 2
        ours, pillow = found.standings[:2]
        assert (ours.contestant, pillow.contestant) == ("feedrate", "Pillow")
        assert len(ours.cpu_s) == 2
        assert pillow.mean_psnr_db is None
        assert ours.lowest_psnr_db is None or ours.lowest_psnr_db > 54


def make_small(make: Callable[[int], bytes]) -> MadeSet:
    return MadeSet(2, ".jpg", make, "small")


def test_sets_are_made_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(SETS, "camera", make_small(lambda n: make_camera_picture(n, width=320, height=240)))
    options = KernelOptions(images=2, side=16, rounds=1)
    result = bench_made(["photographs", "camera", "png"], options, say=quiet)
    assert [one.name for one in result.sets] == ["photographs", "camera", "png"]
    assert result.sets[2].left_out["simplejpeg + OpenCV"]
    assert list(tmp_path.iterdir()) == []


def test_camera_pictures_are_seeded_and_thinned_in_chroma() -> None:
    made = make_camera_picture(1, width=640, height=480)
    assert made == make_camera_picture(1, width=640, height=480)
    assert made != make_camera_picture(2, width=640, height=480)
    with Image.open(io.BytesIO(made)) as image:
        assert image.size == (640, 480)
        assert image.layer[0][1:3] == (2, 2)
    assert 1.5 < 8 * len(made) / (640 * 480) < 4.5


def test_what_makes_no_sense_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no set 'cats'"):
        write_set("cats", tmp_path, 1)
    with pytest.raises(NotFound, match="no folder, file or pack at"):
        bench_source(str(tmp_path / "gone"), SMALL, say=quiet)
    with pytest.raises(SourceError, match="no images in"):
        bench_source(str(tmp_path), SMALL, say=quiet)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"no image in .* can be decoded: .*broken\.jpg: not a JPEG"):
        bench_source(str(tmp_path), SMALL, say=quiet)
    with pytest.raises(UsageError, match="--rounds must be at least 1, got 0"):
        KernelOptions(rounds=0)
