# SPDX-License-Identifier: Apache-2.0
"""What feedrate's decoder would give, on files of which it takes some: judged by what it takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from test_doctor_advice import find
from test_doctor_findings import LOCAL, run_steps

import feedrate
from feedrate.cli import make_parser
from feedrate.doctor import examine
from feedrate.doctor.analyse import data_files
from feedrate.doctor.analyse.data_files import time_kernel
from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.metrics import KernelTime, LoaderCall, Measured
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.examine import measure_run
from feedrate.doctor.findings.diagnose import diagnose
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.results import Diagnosis
from feedrate.lab.trial import TrialOptions
from feedrate.loader.geometry import Geometry
from feedrate.report.doctor import draw_diagnosis
from support.doctor_runs import FakeLoop
from support.images import save_image
from support.judged_runs import MACHINE, judge

SIDE = 512


def examine_files(folder: Path, files: list[Path], pipeline: dict[str, Any] | None = None) -> Diagnosis:
    """Return the verdict on a run that decoded these files."""
    measured = measure_files(folder, files, pipeline)
    return diagnose(measured, command=["x"], mode="experiments", exit_code=None, seconds=1.0, machine=MACHINE)


def measure_files(folder: Path, files: list[Path], pipeline: dict[str, Any] | None = None) -> Measured:
    """Sum up a run that decoded these files: 90 of 100 ms a batch, on every core."""
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", samples=8, tensors=[{"shape": [8, 3, 64, 64], "bytes": 1}])
    if pipeline is not None:
        loop.main.fact("pipeline", loader="loader-0", **pipeline)
    run_steps(loop, 40)
    worker = loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (90, 0)})
    for path in files:
        worker.record(layout.OPENED, str(path), 0, 0)
    worker.write(folder)
    loop.main.write(folder)
    measured = measure_run(read_run(folder), read_machine(folder), DoctorOptions())
    assert measured is not None
    return measured


def save_images(folder: Path, kinds: list[str], *, side: int = SIDE) -> list[Path]:
    """Write images of kinds like ".png" and "progressive", in turn."""
    paths = []
    for number in range(12):
        kind = kinds[number % len(kinds)]
        suffix, options = (".jpg", {"progressive": True}) if kind == "progressive" else (kind, {})
        path = folder / f"{number}{suffix}"
        paths.append(save_image(path, number, width=side, height=side, **options))
    return paths


def test_the_decoder_is_credited_only_with_the_files_that_it_takes(tmp_path: Path) -> None:
    """A third of the files are small JPEGs: what is left to Pillow bounds the gain."""
    photos = save_images(tmp_path / "photos", [".jpg"], side=96)
    scans = save_images(tmp_path / "scans", [".png"])
    remedy = find(examine_files(tmp_path, photos[:6] + scans), "faster-decode")
    assert remedy is not None
    assert remedy.predicted_speedup < 1.5
    assert "12 of 18 files are PNG" in remedy.note


def test_the_files_that_are_timed_are_of_each_kind_as_often_as_all_are(tmp_path: Path) -> None:
    photos = [save_image(tmp_path / f"{n}.jpg", n, width=16, height=16) for n in range(40)]
    scans = [save_image(tmp_path / f"{n}.png", n, width=16, height=16) for n in range(40)]
    timed = time_kernel([str(path) for path in photos + scans], (16, 16), crops=False)
    assert timed is not None
    assert (timed.taken, timed.tried) == (12, 24)


def test_a_set_of_baseline_jpegs_is_decoded_as_a_whole(tmp_path: Path) -> None:
    diagnosis = examine_files(tmp_path, save_images(tmp_path / "photos", [".jpg"]))
    remedy = find(diagnosis, "faster-decode")
    assert remedy is not None
    assert remedy.predicted_speedup > 2
    assert "instead of" in remedy.note
    assert find(diagnosis, "normalise") is None


@pytest.mark.parametrize(
    ("kinds", "note"),
    [
        (["progressive"], "no pixel changes"),
        ([".png", ".jpg"], "changes pixels; with --raw, none"),
    ],
)
def test_files_that_the_decoder_does_not_take_are_to_be_normalised(
    tmp_path: Path, kinds: list[str], note: str
) -> None:
    diagnosis = examine_files(tmp_path, save_images(tmp_path / "files", kinds))
    decoded, normalised = find(diagnosis, "faster-decode"), find(diagnosis, "normalise")
    assert decoded is not None
    assert normalised is not None
    assert normalised.predicted_speedup > 1.3 * decoded.predicted_speedup
    assert normalised.note == note
    assert normalised.command == f"feedrate pack {tmp_path / 'files'} PACK --normalise"
    make_parser().parse_args(shlex.split(normalised.command)[1:])
    assert normalised in diagnosis.findings[0].remedies
    assert note in " ".join(draw_diagnosis(diagnosis).split())


def test_images_of_more_than_8_bits_are_to_be_mapped(tmp_path: Path) -> None:
    """`--normalise` leaves these alone."""
    files = [
        save_image(tmp_path / "x" / f"{n}.png", n, width=SIDE, height=SIDE, mode="I;16") for n in range(4)
    ]
    normalised = find(examine_files(tmp_path, files), "normalise")
    assert normalised is not None
    assert normalised.command == f"feedrate pack {tmp_path / 'x'} PACK --map MODULE:FUNCTION --raw"
    make_parser().parse_args(shlex.split(normalised.command)[1:])


def test_code_for_images_of_more_than_8_bits_has_a_depth_and_names_the_choice(tmp_path: Path) -> None:
    photos = save_images(tmp_path / "x", [".jpg"], side=96)
    scans = [save_image(tmp_path / "x" / f"{n}.png", n, width=96, height=96, mode="I;16") for n in range(4)]
    diagnosis = examine_files(tmp_path, photos + scans, pipeline={"layers": [{"class": "Files"}]})
    decoded, loader = find(diagnosis, "faster-decode"), find(diagnosis, "loader")
    assert decoded is not None
    assert decoded.change is not None
    assert decoded.change.count("depth=(LOW, HIGH)") == 2
    assert loader is not None
    assert loader.code is not None
    call, comment = loader.code.partition("loader = ")[2], loader.code.partition("loader = ")[0]
    assert 'depth="uint16"' in call
    assert "clip" not in call
    assert all(choice in comment for choice in ('"uint16"', "(low, high)", '"clip"'))
    compile(loader.code, "pasted", "exec")
    assert max(map(len, loader.code.splitlines())) <= 78


def test_code_for_other_images_has_no_depth(tmp_path: Path) -> None:
    photos = save_images(tmp_path / "x", [".jpg"], side=96)
    diagnosis = examine_files(tmp_path, photos, pipeline={"layers": [{"class": "Files"}]})
    for code in ("faster-decode", "loader"):
        remedy = find(diagnosis, code)
        assert remedy is not None
        assert "depth" not in f"{remedy.change}{remedy.code}"


@pytest.mark.parametrize("taken_share", [1.0, 0.5, 0.1])
def test_what_decoding_costs_is_shared_out_by_the_time_of_each_kind(
    tmp_path: Path, taken_share: float
) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (90, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(0.001, taken=8, tried=16, taken_share=taken_share)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL), kernel=kernel)[1], "faster-decode")
    assert remedy is not None
    # A batch takes 110 ms of two cores: 90 are decoding; ours takes 1 ms for each of its four images.
    then = 20 + 90 * (1 - taken_share) + 4
    assert remedy.predicted_speedup == pytest.approx(110 / then, rel=0.05)


def test_opening_goes_with_the_decoder_and_making_tensors_stays(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {
        "read:PIL.Image.open": (10.0, 0.0),
        "decode:PIL": (60.0, 0.0),
        "transform:PIL.resize": (10.0, 0.0),
    }
    worker = loop.fetches(200, 20, cpu=100, parts=parts | {"transform:ToTensor": (10.0, 0.0)})
    worker.write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(0.001, taken=8, tried=8)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL), kernel=kernel)[1], "faster-decode")
    assert remedy is not None
    # Of 110 ms on two cores 80 are replaced by 8 images of 1 ms.
    assert remedy.predicted_speedup == pytest.approx(110 / (110 - 80 + 8), rel=0.05)
    assert "instead of 10.0 ms" in remedy.note


def test_files_that_are_gone_are_not_said_to_decode_in_no_time(tmp_path: Path) -> None:
    gone = [str(tmp_path / f"{number}.jpg") for number in range(3)]
    assert time_kernel(gone, (64, 64), crops=False, at_once=2) is None


def test_our_decoder_is_timed_beside_itself_as_workers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.012, 0.024, 0.036])  # each thread's, for all images
    monkeypatch.setattr(data_files, "_time_passes", lambda *_: next(seconds))
    files = [str(path) for path in save_images(tmp_path / "photos", [".jpg"], side=96)]
    timed = time_kernel(files, (64, 64), crops=True, at_once=3)
    assert timed is not None
    assert timed.cpu_s_per_image == pytest.approx(0.024 / 12)


def test_of_images_that_take_long_each_thread_tries_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    take = Geometry.take

    def note(self: Geometry, chosen: Any) -> Geometry:
        tried.append(len(chosen))
        return take(self, chosen)

    monkeypatch.setattr(Geometry, "take", note)
    monkeypatch.setattr(data_files, "_LONGEST_S", 0.0)
    files = [str(path) for path in save_images(tmp_path / "photos", [".jpg"], side=96)]
    timed = time_kernel(files, (64, 64), crops=False, at_once=2)
    assert timed is not None
    assert timed.cpu_s_per_image > 0
    assert tried == [1, 1]


@pytest.mark.parametrize("error", [OSError("no such disk"), MemoryError()])
def test_a_decoder_that_cannot_be_timed_is_not_known(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(data_files, "_time_passes", refuse)
    files = [str(path) for path in save_images(tmp_path / "photos", [".jpg"], side=96)]
    assert time_kernel(files, (64, 64), crops=False) is None


def test_the_call_that_is_tried_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = LoaderCall({"image": feedrate.Resize(8), "flip": 0.25, "batch_size": 3}, "loader = 1\n", ())
    tried: list[TrialOptions] = []

    def note(_: object, options: TrialOptions, **__: object) -> tuple[None, str]:
        tried.append(options)
        return None, ""

    monkeypatch.setattr(examine, "find_call", lambda *_: call)
    monkeypatch.setattr(examine, "try_loader", note)
    measured = measure_files(tmp_path, save_images(tmp_path / "photos", [".jpg"], side=96))
    assert measured.tried.call is call
    assert tried == [TrialOptions(feedrate.Resize(8), 0.25, 3)]


def test_what_limits_after_a_faster_decoder_is_not_the_decoder_of_before(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    parts = {"decode:PIL": (60.0, 0.0), "transform:ColorJitter": (35.0, 0.0)}
    loop.fetches(200, 20, cpu=100, parts=parts).write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(0.0005, taken=8, tried=8)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL), kernel=kernel)[1], "faster-decode")
    assert remedy is not None
    assert remedy.next_bottleneck == "transform-bound"


def test_images_inside_of_other_files_are_not_said_to_be_of_another_kind(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    shard.write_bytes(bytes(1000))
    remedy = find(examine_files(tmp_path, [shard]), "faster-decode")
    assert remedy is not None
    assert remedy.note == "no image files were seen: what feedrate's decoder takes for them is unknown"


def test_a_run_whose_jpegs_pillow_decodes_is_told_to_start_by_feedrate_run(tmp_path: Path) -> None:
    diagnosis = examine_files(tmp_path, save_images(tmp_path / "photos", [".jpg"]))
    remedy = find(diagnosis, "run")
    assert remedy is not None
    assert remedy.predicted_speedup > 1.5
    assert remedy.command == "feedrate run -- x"
    assert remedy in diagnosis.findings[0].remedies
    lines = draw_diagnosis(diagnosis).rstrip().split("\n")
    assert lines[-1] == "  $ feedrate run -- x"
    assert lines[-2].startswith("Without an edit, ")


@pytest.mark.parametrize("words", [["/usr/bin/feedrate"], ["python", "-m", "feedrate"]])
def test_a_command_that_begins_with_feedrate_run_is_not_told_to(tmp_path: Path, words: list[str]) -> None:
    measured = measure_files(tmp_path, save_images(tmp_path / "photos", [".jpg"]))
    command = [*words, "run", "--", "python", "train.py"]
    diagnosis = diagnose(
        measured, command=command, mode="experiments", exit_code=None, seconds=1.0, machine=MACHINE
    )
    assert find(diagnosis, "run") is None


def test_nothing_is_said_of_feedrate_run_where_another_library_decodes(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts={"decode:cv2.imread@": (90, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    kernel = KernelTime(0.001, taken=8, tried=8)
    diagnosis = judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL), kernel=kernel)[1]
    assert find(diagnosis, "faster-decode") is not None
    assert find(diagnosis, "run") is None
    assert "feedrate run" not in draw_diagnosis(diagnosis)


def test_what_pillow_goes_on_decoding_is_no_gain_of_feedrate_run(tmp_path: Path) -> None:
    photos = save_images(tmp_path / "photos", [".jpg"], side=96)
    scans = save_images(tmp_path / "scans", [".png"])
    remedy = find(examine_files(tmp_path, photos[:6] + scans), "run")
    assert remedy is not None
    assert remedy.predicted_speedup < 1.5
